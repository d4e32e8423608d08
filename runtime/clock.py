"""What time it is: the machine's own clock, or one that a simulation moves. Knows nothing else."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only ever grow for whoever lives by it; their zero means nothing."""

    def now_s(self) -> float:
        """The time now."""

    def wait_until(self, time_s: float) -> None:
        """Return at `time_s`, or at once where that has passed. Blocks."""


class RealClock:
    """`time.perf_counter`, as everything that measures uses it."""

    now_s = staticmethod(time.perf_counter)

    def wait_until(self, time_s: float) -> None:
        """See Clock.wait_until."""
        time.sleep(max(time_s - time.perf_counter(), 0.0))


class VirtualClock:
    """Time that passes only when told to; a day takes as long as its events.

    Blocking calls carry it forward by themselves (`wait_until`). Whoever lets several things happen side by side sets
    it back to when the next of them begins (`set`).
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        """See Clock.now_s."""
        return self._now_s

    def wait_until(self, time_s: float) -> None:
        """Make it `time_s`, at once."""
        self._now_s = max(self._now_s, time_s)

    def set(self, time_s: float) -> None:
        """Make it `time_s`, be that later or earlier."""
        self._now_s = time_s


REAL_CLOCK = RealClock()
