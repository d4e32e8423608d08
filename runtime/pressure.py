"""Whether more work comes than can be done for long: whether most of what came in the last second was refused.

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


class Pressure:
    """Counts what was taken and what was refused, in windows of a second. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._ends_s = -math.inf
        self._asked = 0
        self._refused = 0
        self._high = False

    def note(self, refused: bool, now_s: float) -> None:
        """A job came, and was taken or refused."""
        self._turn(now_s)
        self._asked += 1
        self._refused += refused

    def is_high(self, now_s: float) -> bool:
        """Whether most of what came in the window before this one was refused."""
        self._turn(now_s)
        return self._high

    def _turn(self, now_s: float) -> None:
        """Begin a new window where the last one is over; one in which nobody asked ends the pressure."""
        if now_s < self._ends_s:
            return
        was_quiet = now_s >= self._ends_s + WINDOW_S
        enough = self._asked >= LEAST_ASKED and not was_quiet
        self._high = enough and self._refused > REFUSED_SHARE * self._asked
        self._asked = self._refused = 0
        self._ends_s = now_s + WINDOW_S
