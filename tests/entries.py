"""Entries of a batch queue that nobody waits for."""

from __future__ import annotations

import numpy as np

from runtime.entry import Entry
from runtime.work import Prepared, Row


class Nobody:
    """An owner that must never be told anything."""

    def ran(self, *, queue_ms: float, device_ms: float, share_ms: float, landed_s: float) -> None:
        raise AssertionError("nobody waits for this batch")

    def land(self, index: int, row: Row) -> None:
        raise AssertionError("nobody waits for this row")

    def fail(self, error: Exception) -> None:
        raise AssertionError("nobody waits for this error")


def entry(tokens: int, index: int = 0, tenant: str = "default") -> Entry:
    """An entry that costs `tokens`; its token ids all are `index`."""
    prepared = Prepared(token_ids=np.full(tokens, index, dtype=np.int32))
    return Entry(prepared, Nobody(), index, queued_s=0.0, due_s=1.0, tenant=tenant)
