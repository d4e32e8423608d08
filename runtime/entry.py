"""One prepared input that waits, and whose it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from runtime.work import Prepared, Row


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
    tenant: str = "default"
    small: bool = False
    """It stands in the line of small inputs."""
    dropped: bool = False
    taken: bool = False
