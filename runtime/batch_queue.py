"""What waits for one model, by lane, counted in tokens. Not thread-safe: the executor's lock guards it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from runtime.devices.base import SMALL_JOB_INPUTS
from runtime.work import Lane, Prepared, Row


class Owner(Protocol):
    """Whoever waits for an entry's row; runs on the event loop only."""

    def ran(self, *, queue_ms: float, device_ms: float, share_ms: float, landed_s: float) -> None:
        """A batch with some of the owner's entries is done."""

    def land(self, index: int, row: Row) -> None:
        """Row `index` is here."""

    def fail(self, error: Exception) -> None:
        """A row can't be had."""


@dataclass(slots=True, eq=False)
class Entry:
    """One prepared input that waits, and whose it is."""

    prepared: Prepared
    owner: Owner
    index: int
    """Place among its Job's inputs."""
    queued_s: float
    due_s: float
    deadline_s: float = math.inf
    """From here on its row is of no use: it is dropped and never taken. Its owner is told by its own timer."""
    small: bool = False
    """It stands in the line of small inputs."""
    dropped: bool = False
    taken: bool = False


@dataclass(slots=True)
class _Line:
    entries: deque[Entry] = field(default_factory=deque)
    items: int = 0
    tokens: int = 0
    patient_tokens: int = 0
    """Of inputs without a deadline."""

    def count(self, entry: Entry, sign: int = 1) -> None:
        """`entry` came; with -1: it left."""
        tokens = sign * entry.prepared.tokens
        self.items += sign
        self.tokens += tokens
        if math.isinf(entry.deadline_s):
            self.patient_tokens += tokens


class BatchQueue:
    """First in, first out within a lane, and within the small and the large inputs of the online lane.

    Small online inputs stand in a line of their own, because a device may have a lane for them alone; but not where a
    Job has many of them (a rerank of short documents), since others would wait behind them there. Dropped entries stop
    counting at once and leave when their turn comes; so do those whose deadline has passed by then.
    """

    def __init__(self, small_tokens: int = 0) -> None:
        """`small_tokens`: online inputs of at most so many tokens are small; 0: none is."""
        self._small_tokens = small_tokens
        self._lines = {lane: (_Line(), _Line()) for lane in Lane}
        """Of each lane the large inputs and the small ones."""

    def push(self, lane: Lane, entries: Iterable[Entry]) -> None:
        """Append entries, all of a Job's or none."""
        entries = list(entries)
        job_tokens = sum(entry.prepared.tokens for entry in entries)
        few = self._small_tokens > 0 and job_tokens <= SMALL_JOB_INPUTS * self._small_tokens
        for entry in entries:
            entry.small = lane is Lane.ONLINE and few and entry.prepared.tokens <= self._small_tokens
            line = self._lines[lane][entry.small]
            line.entries.append(entry)
            line.count(entry)

    def take(self, lane: Lane, max_tokens: int, small: bool = False, done_s: float = -math.inf) -> list[Entry]:
        """Remove entries from the front while they fit `max_tokens`; the first is taken whatever its size.

        The others only if their deadline is after `done_s`, when the batch will be done: those that it can't help are
        dropped. The first is tried all the same, so that a prediction gone wrong is found out.
        """
        line = self._lines[lane][small]
        taken: list[Entry] = []
        room = max_tokens
        while (entry := _front(line, done_s if taken else -math.inf)) is not None:
            if taken and entry.prepared.tokens > room:
                break
            room -= entry.prepared.tokens
            line.count(entry, -1)
            entry.taken = True
            taken.append(line.entries.popleft())
        return taken

    def drop(self, lane: Lane, entries: Iterable[Entry]) -> int:
        """Stop counting those of `entries` that still wait; returns how many. They are never taken."""
        dropped = 0
        for entry in entries:
            if not entry.dropped and not entry.taken:
                entry.dropped = True
                self._lines[lane][entry.small].count(entry, -1)
                dropped += 1
        for line in self._lines[lane]:
            if line.items == 0:
                line.entries.clear()
        return dropped

    def front(self, lane: Lane, small: bool = False, now_s: float = -math.inf) -> Entry | None:
        """The entry whose turn is next."""
        return _front(self._lines[lane][small], now_s)

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

    def patient_tokens(self, lane: Lane) -> int:
        """Tokens that wait and have no deadline."""
        return sum(line.patient_tokens for line in self._lines[lane])


def _front(line: _Line, now_s: float) -> Entry | None:
    """The first entry that may still run; what stands before it leaves."""
    while line.entries:
        entry = line.entries[0]
        if not entry.dropped:
            if entry.deadline_s > now_s:
                return entry
            entry.dropped = True
            line.count(entry, -1)
        line.entries.popleft()
    return None
