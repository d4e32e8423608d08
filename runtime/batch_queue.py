"""What waits for one model, by lane, counted in tokens. Not thread-safe: the executor's lock guards it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from runtime.devices.base import SMALL_JOB_INPUTS
from runtime.entry import Entry
from runtime.line import Line
from runtime.work import Lane


class BatchQueue:
    """First in, first out within a lane and tenant, and within the small and the large inputs of the online lane.

    Small online inputs stand in a line of their own, because a device may have a lane for them alone; but not where a
    Job has many of them (a rerank of short documents), since others would wait behind them there. Dropped entries stop
    counting at once and leave when their turn comes; so do those whose deadline has passed by then.
    """

    def __init__(self, small_tokens: int = 0) -> None:
        """`small_tokens`: online inputs of at most so many tokens are small; 0: none is."""
        self._small_tokens = small_tokens
        self._lines = {lane: (Line(), Line()) for lane in Lane}
        """Of each lane the large inputs and the small ones."""

    def push(self, lane: Lane, entries: Iterable[Entry]) -> None:
        """Append entries, all of a Job's or none."""
        entries = list(entries)
        job_tokens = sum(entry.prepared.tokens for entry in entries)
        few = self._small_tokens > 0 and job_tokens <= SMALL_JOB_INPUTS * self._small_tokens
        for entry in entries:
            entry.small = lane is Lane.ONLINE and few and entry.prepared.tokens <= self._small_tokens
            self._lines[lane][entry.small].append(entry)

    def take(self, lane: Lane, max_tokens: int, small: bool = False, done_s: float = -math.inf) -> list[Entry]:
        """Remove entries from the front while they fit `max_tokens`; the first is taken whatever its size.

        The others only if their deadline is after `done_s`, when the batch will be done: those that it can't help are
        dropped. The first is tried all the same, so that a prediction gone wrong is found out.
        """
        line = self._lines[lane][small]
        taken: list[Entry] = []
        room = max_tokens
        while (entry := line.front(done_s if taken else -math.inf)) is not None:
            if taken and entry.prepared.tokens > room:
                break
            room -= entry.prepared.tokens
            line.take(entry)
            taken.append(entry)
        return taken

    def drop(self, lane: Lane, entries: Iterable[Entry]) -> int:
        """Stop counting those of `entries` that still wait; returns how many. They are never taken."""
        dropped = 0
        for entry in entries:
            if not entry.dropped and not entry.taken:
                self._lines[lane][entry.small].drop(entry)
                dropped += 1
        return dropped

    def front(self, lane: Lane, small: bool = False, now_s: float = -math.inf) -> Entry | None:
        """The entry whose turn is next."""
        return self._lines[lane][small].front(now_s)

    def items(self, lane: Lane, small: bool | None = None) -> int:
        """Entries that wait; `small` None: of both sizes."""
        large_ones, small_ones = self._lines[lane]
        if small is None:
            return large_ones.items + small_ones.items
        return (small_ones if small else large_ones).items

    def tokens(self, lane: Lane, small: bool | None = None) -> int:
        """Tokens that wait; `small` None: of both sizes."""
        large_ones, small_ones = self._lines[lane]
        if small is None:
            return large_ones.tokens + small_ones.tokens
        return (small_ones if small else large_ones).tokens

    def tokens_before(self, lane: Lane, tenant: str, tokens: int) -> int:
        """Of the tokens that wait those that run before so many more of `tenant` have run."""
        large_ones, small_ones = self._lines[lane]
        return large_ones.tokens_before(tenant, tokens) + small_ones.tokens_before(tenant, tokens)

    def patient_tokens(self, lane: Lane) -> int:
        """Tokens that wait and have no deadline."""
        return sum(line.patient_tokens for line in self._lines[lane])
