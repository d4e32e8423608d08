"""What waits for one model, by lane, counted in tokens. Not thread-safe: the executor's lock guards it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

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
    dropped: bool = False
    taken: bool = False


@dataclass(slots=True)
class _LaneQueue:
    entries: deque[Entry] = field(default_factory=deque)
    items: int = 0
    tokens: int = 0


class BatchQueue:
    """First in, first out within a lane. Dropped entries stop counting at once and leave when their turn comes."""

    def __init__(self) -> None:
        self._lanes = {lane: _LaneQueue() for lane in Lane}

    def push(self, lane: Lane, entries: Iterable[Entry]) -> None:
        """Append entries, all of a Job's or none."""
        queue = self._lanes[lane]
        for entry in entries:
            queue.entries.append(entry)
            queue.items += 1
            queue.tokens += entry.prepared.tokens

    def take(self, lane: Lane, max_tokens: int) -> list[Entry]:
        """Remove entries from the front while they fit `max_tokens`; the first is taken whatever its size."""
        queue = self._lanes[lane]
        taken: list[Entry] = []
        room = max_tokens
        while queue.entries:
            entry = queue.entries[0]
            if not entry.dropped:
                if taken and entry.prepared.tokens > room:
                    break
                room -= entry.prepared.tokens
                self._uncount(queue, entry)
                entry.taken = True
                taken.append(entry)
            queue.entries.popleft()
        return taken

    def drop(self, lane: Lane, entries: Iterable[Entry]) -> int:
        """Stop counting those of `entries` that still wait; returns how many. They are never taken."""
        queue = self._lanes[lane]
        dropped = 0
        for entry in entries:
            if not entry.dropped and not entry.taken:
                entry.dropped = True
                self._uncount(queue, entry)
                dropped += 1
        if queue.items == 0:
            queue.entries.clear()
        return dropped

    def front(self, lane: Lane) -> Entry | None:
        """The entry whose turn is next."""
        entries = self._lanes[lane].entries
        while entries and entries[0].dropped:
            entries.popleft()
        return entries[0] if entries else None

    def items(self, lane: Lane) -> int:
        """Entries that wait."""
        return self._lanes[lane].items

    def tokens(self, lane: Lane) -> int:
        """Tokens that wait."""
        return self._lanes[lane].tokens

    @staticmethod
    def _uncount(queue: _LaneQueue, entry: Entry) -> None:
        queue.items -= 1
        queue.tokens -= entry.prepared.tokens
