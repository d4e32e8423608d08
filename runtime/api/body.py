"""How large a request's body may be, and how long it may take to come."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from runtime.errors import BodyTimeout, BodyTooLarge, CotenantError, DeadlineExceeded

GRAIN = 1 / 64
"""Of the time without a byte: a timer is put off only by more, as that takes as long as reading a small body."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bytes; and seconds without a byte, and from the first to the last."""

    max_bytes: int
    stall_s: float = math.inf
    total_s: float = math.inf

    def too_large(self) -> BodyTooLarge:
        """The refusal, with the limit in it."""
        return BodyTooLarge(f"the body is larger than the {self.max_bytes} bytes that this server takes")


class Patience:
    """How long one body is waited for. Times are the running event loop's."""

    __slots__ = ("_deadline_s", "_end_s", "_limits", "_loop")

    def __init__(self, limits: BodyLimits, deadline_s: float | None) -> None:
        """`deadline_s`: the request's own, on `time.perf_counter`'s clock; None: it has none."""
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._deadline_s = math.inf if deadline_s is None else now_s + deadline_s - time.perf_counter()
        self._end_s = min(now_s + limits.total_s, self._deadline_s)

    def timer(self) -> asyncio.Timeout:
        """Goes off where it ends, unless a byte comes before."""
        return asyncio.timeout_at(self._until_s())

    def prolong(self, timer: asyncio.Timeout) -> None:
        """Put the timer off: some bytes came."""
        until_s = self._until_s()
        if until_s - (timer.when() or 0.0) > GRAIN * self._limits.stall_s:
            timer.reschedule(until_s)

    def _until_s(self) -> float:
        return min(self._loop.time() + self._limits.stall_s, self._end_s)

    def refusal(self, timer: asyncio.Timeout) -> CotenantError:
        """Why it went off when it did."""
        until_s = timer.when()
        if until_s == self._deadline_s:
            return DeadlineExceeded("the deadline passed before the body was there")
        if until_s == self._end_s:
            return BodyTimeout(f"the body was not there after the {self._limits.total_s:g} s that it may take")
        return BodyTimeout(f"nothing more of the body came for {self._limits.stall_s:g} s")
