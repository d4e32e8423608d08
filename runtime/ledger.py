"""The memory books: what is resident, what batches may take beside it, what is free. Arithmetic only.

`base + sum of weights and graphs + lanes x max over models of the batch workspace x 1.15 <= limit`. Workspace is the
maximum, not the sum, since one lane runs one batch at a time, whoever's it is. Batch budgets are elastic: they are
worked out from who is resident, and so is every answer, which is why the order of loading doesn't matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.footprint import Footprint

WORKSPACE_MARGIN = 1.15

Resident = Mapping[str, Footprint]
"""Who is in memory, by model id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The ledger by kind, bytes."""

    limit_bytes: int
    base_bytes: int
    weight_bytes: int
    graph_bytes: int
    host_bytes: int
    """Of offloaded models, too."""
    workspace_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One device's memory. All sizes in bytes."""

    limit_bytes: int
    base_bytes: int
    """What the process holds without any model."""
    lanes: int

    @property
    def base_note(self) -> str:
        """What the process itself takes, in words, where that is most of the limit; else nothing."""
        if 2 * self.base_bytes <= self.limit_bytes:
            return ""
        return f"; the process itself holds {self.base_bytes:,} of the {self.limit_bytes:,} bytes budgeted"

    def used_bytes(self, resident: Resident) -> int:
        """Everything booked, with batch budgets as they are shrunk now."""
        return self.held_bytes(resident) + self.workspace_bytes(resident)

    def least_bytes(self, resident: Resident) -> int:
        """Everything booked if every batch budget were as small as it may be."""
        return self.held_bytes(resident) + self._in_all_lanes(self._least_of_one_lane(resident))

    def held_bytes(self, resident: Resident) -> int:
        """Base, weights and graphs: held whether a batch runs or not."""
        return self.base_bytes + sum(held.resident_bytes for held in resident.values())

    def workspace_bytes(self, resident: Resident) -> int:
        """What batches may take, over all lanes, margin included."""
        wanted = max((held.activation_bytes for held in resident.values()), default=0)
        return self._in_all_lanes(min(wanted, self._room_of_one_lane(resident)))

    def fits(self, resident: Resident) -> bool:
        """Whether all of them fit, with batch budgets as small as they may be."""
        return self.least_bytes(resident) <= self.limit_bytes

    def budgets(self, resident: Resident) -> dict[str, int]:
        """The largest batch of each model whose budget is elastic, in tokens."""
        room = self._room_of_one_lane(resident)
        return {model: held.tokens_within(room) for model, held in resident.items() if held.budget_tokens}

    def most_tokens(self, footprint: Footprint) -> int | None:
        """The largest batch that one lane could run with this model alone in memory; None: its line is not known."""
        per_batch = footprint.activation_bytes - footprint.fixed_bytes
        if not footprint.budget_tokens or per_batch <= 0:
            return None
        room = self.limit_bytes - self.base_bytes - footprint.resident_bytes - footprint.fixed_bytes
        return max(room, 0) * footprint.budget_tokens // per_batch

    def books(self, resident: Resident) -> Books:
        """Everything by kind."""
        return Books(
            limit_bytes=self.limit_bytes,
            base_bytes=self.base_bytes,
            weight_bytes=sum(held.weight_bytes for held in resident.values()),
            graph_bytes=sum(held.graph_bytes for held in resident.values()),
            host_bytes=sum(held.host_bytes for held in resident.values()),
            workspace_bytes=self.workspace_bytes(resident),
            used_bytes=self.used_bytes(resident),
        )

    def _room_of_one_lane(self, resident: Resident) -> int:
        """Workspace that one lane may take beside what is held; never less than the smallest budgets need."""
        room = int((self.limit_bytes - self.held_bytes(resident)) // (self.lanes * WORKSPACE_MARGIN))
        return max(room, self._least_of_one_lane(resident))

    def _in_all_lanes(self, workspace_bytes: int) -> int:
        return int(self.lanes * workspace_bytes * WORKSPACE_MARGIN)

    @staticmethod
    def _least_of_one_lane(resident: Resident) -> int:
        return max((held.least_activation_bytes for held in resident.values()), default=0)
