"""Whether more work comes than can be done for long: whether the last second brought twice as much, mostly in vain.

A queue takes up a burst; under lasting pressure it only makes whoever is let in wait, and answers nobody more (a
standing queue, as Nichols and Jacobson call it: Controlling Queue Delay, ACM Queue 2012). Knows no queue.
"""

from __future__ import annotations

import math

WINDOW_S = 1.0
LEAST_ASKED = 4
"""Fewer in a window say nothing."""
REFUSED_SHARE = 0.5
"""With a short queue a server that can do all that comes, and just so, refuses a third of it: the share must lie above
that, or the pressure would uphold itself."""
TIMES_CAPACITY = 2.0
"""So much work must have come: a polite client who is refused for the sake of one long job presses nobody."""


class Pressure:
    """Counts what was taken and what was refused, in windows of a second. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._ends_s = -math.inf
        self._asked = 0
        self._refused = 0
        self._work_ms = 0.0
        self._high = False

    def note(self, refused: bool, work_ms: float, now_s: float) -> None:
        """A job came that would keep the whole device busy for `work_ms`, and was taken or refused."""
        self._turn(now_s)
        self._asked += 1
        self._refused += refused
        self._work_ms += work_ms

    def is_high(self, now_s: float) -> bool:
        """Whether the window before this one brought more than twice as much as can be done, and most was refused."""
        self._turn(now_s)
        return self._high

    def _turn(self, now_s: float) -> None:
        """Begin a new window where the last one is over; one in which nobody asked ends the pressure."""
        if now_s < self._ends_s:
            return
        was_quiet = now_s >= self._ends_s + WINDOW_S
        enough = self._asked >= LEAST_ASKED and not was_quiet
        too_much = self._work_ms > TIMES_CAPACITY * WINDOW_S * 1000.0
        self._high = enough and too_much and self._refused > REFUSED_SHARE * self._asked
        self._asked, self._refused, self._work_ms = 0, 0, 0.0
        self._ends_s = now_s + WINDOW_S
