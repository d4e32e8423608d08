"""Whether more work comes than can be done for long: whether the last second brought twice as much, mostly in vain.

A queue takes up a burst; under lasting pressure it only makes whoever is let in wait, and answers nobody more (a
standing queue, as Nichols and Jacobson call it: Controlling Queue Delay, ACM Queue 2012). Knows no queue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

WINDOW_S = 1.0
LEAST_ASKED = 4
"""Fewer in a window say nothing."""
REFUSED_SHARE = 0.5
"""With a short queue a server that can do all that comes, and just so, refuses a third of it: the share must lie above
that, or the pressure would uphold itself."""
TIMES_CAPACITY = 2.0
"""So much work must have come: a polite client who is refused for the sake of one long job presses nobody."""


Caller = tuple[str, str]
"""Whose work comes: the model's id and the tenant."""


@dataclass(slots=True)
class _Asked:
    """What one caller brought in a window."""

    jobs: int = 0
    refused: int = 0
    work_ms: float = 0.0


class Pressure:
    """Counts what was taken and what was refused, in windows of a second. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._ends_s = -math.inf
        self._callers: dict[Caller, _Asked] = {}
        self._pressing: frozenset[Caller] = frozenset()

    def note(self, caller: Caller, refused: bool, work_ms: float, now_s: float) -> None:
        """A job came that would keep the whole device busy for `work_ms`, and was taken or refused."""
        self._turn(now_s)
        asked = self._callers.setdefault(caller, _Asked())
        asked.jobs += 1
        asked.refused += refused
        asked.work_ms += work_ms

    def is_of(self, caller: Caller, now_s: float) -> bool:
        """Whether `caller` pressed in the window before this one."""
        self._turn(now_s)
        return caller in self._pressing

    def _turn(self, now_s: float) -> None:
        """Begin a new window where the last one is over; one in which nobody asked ends the pressure."""
        if now_s < self._ends_s:
            return
        was_quiet = now_s >= self._ends_s + WINDOW_S
        self._pressing = frozenset() if was_quiet else _pressing(self._callers)
        self._callers = {}
        self._ends_s = now_s + WINDOW_S


def _pressing(callers: Mapping[Caller, _Asked]) -> frozenset[Caller]:
    """Of a window's callers those who asked for more than an equal share, where all asked for far too much.

    Who asked for less is not to pay for the others; nor do their answered jobs speak for those.
    """
    capacity_ms = WINDOW_S * 1000.0
    if sum(asked.work_ms for asked in callers.values()) <= TIMES_CAPACITY * capacity_ms:
        return frozenset()
    many = {caller: asked for caller, asked in callers.items() if asked.work_ms > capacity_ms / len(callers)}
    jobs = sum(asked.jobs for asked in many.values())
    refused = sum(asked.refused for asked in many.values())
    return frozenset(many) if jobs >= LEAST_ASKED and refused > REFUSED_SHARE * jobs else frozenset()
