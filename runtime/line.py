"""Those who wait for one model in one lane: first in, first out for each tenant, and tenants in fair turns by tokens.

Not thread-safe: the executor's lock guards it.
"""

from __future__ import annotations

import math
from collections import deque

from runtime.entry import Entry
from runtime.fair_turns import FairTurns


class Line:
    """Entries in their order, and what they come to. Dropped ones stop counting at once and leave when they are met."""

    def __init__(self) -> None:
        self.items = 0
        self.tokens = 0
        self.patient_tokens = 0
        """Of inputs without a deadline."""
        self._entries: dict[str, deque[Entry]] = {}
        """By tenant; only of those who have any."""
        self._tokens: dict[str, int] = {}
        """The same, counted; of everybody who ever had any."""
        self._turns: FairTurns[str] = FairTurns()

    def append(self, entry: Entry) -> None:
        """`entry` comes last of its tenant's."""
        self._entries.setdefault(entry.tenant, deque()).append(entry)
        self._count(entry, 1)

    def front(self, now_s: float = -math.inf) -> Entry | None:
        """The entry whose turn is next; those before it that are dropped or too late leave."""
        if len(self._entries) == 1:
            return self._head(next(iter(self._entries)), now_s)
        heads = [head for tenant in list(self._entries) if (head := self._head(tenant, now_s)) is not None]
        return min(heads, key=lambda entry: (self._turns.stand(entry.tenant), entry.queued_s), default=None)

    def take(self, entry: Entry) -> None:
        """`entry`, which is its tenant's first, leaves for the device."""
        entry.taken = True
        if len(self._entries) > 1:  # alone it takes nobody's turn
            self._turns.take(entry.tenant)
            self._turns.charge(entry.tenant, entry.prepared.tokens)
        self._count(entry, -1)
        self._leave(entry.tenant)

    def drop(self, entry: Entry) -> None:
        """`entry` will never be taken."""
        entry.dropped = True
        self._count(entry, -1)
        if self.items == 0:
            self._entries.clear()

    def tokens_before(self, tenant: str, tokens: int) -> int:
        """Of what waits, that which runs before the last of so many more tokens of `tenant` has run.

        Each of the others gets as much as `tenant` until then, if it has as much.
        """
        if not self.items:
            return 0
        own = self._tokens.get(tenant, 0)
        if own == self.tokens:
            return own
        return own + sum(min(self._tokens[other], own + tokens) for other in self._entries if other != tenant)

    def _head(self, tenant: str, now_s: float) -> Entry | None:
        while (entries := self._entries.get(tenant)) is not None:
            entry = entries[0]
            if not entry.dropped:
                if entry.deadline_s > now_s:
                    return entry
                entry.dropped = True
                self._count(entry, -1)
            self._leave(tenant)
        return None

    def _leave(self, tenant: str) -> None:
        entries = self._entries[tenant]
        entries.popleft()
        if not entries:
            del self._entries[tenant]

    def _count(self, entry: Entry, sign: int) -> None:
        tokens = sign * entry.prepared.tokens
        self.items += sign
        self.tokens += tokens
        self._tokens[entry.tenant] = self._tokens.get(entry.tenant, 0) + tokens
        if math.isinf(entry.deadline_s):
            self.patient_tokens += tokens
