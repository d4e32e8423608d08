"""Entries of one model that run together, from the moment they are taken to the moment they are answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.entry import Entry
from runtime.models.base import Flight
from runtime.salvage import Answer
from runtime.work import Lane
from runtime.worker import Worker


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """Entries of one model that run together."""

    worker: Worker
    lane: Lane
    entries: Sequence[Entry]
    small: bool
    """Its entries come from the line of small inputs."""
    spare: bool
    """It runs in a spare lane."""
    alone: bool
    """Nothing else ran or waited when it was formed, and it is large enough for all cores to be of use to it."""
    contended: bool
    """Both lanes were waiting when it was formed."""
    taken_s: float
    predicted_ms: float = 0.0
    """Device time by the cost line of the moment it was formed."""
    flight: Flight | None = None
    error: BaseException | None = None
    answers: list[Answer] = field(default_factory=list)
    device_ms: float = 0.0
    padding_tokens: int = 0
    """Positions that were computed for nothing."""
    landed_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of all entries."""
        return sum(entry.prepared.tokens for entry in self.entries)
