"""What the edge tells the metrics, kept as it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from runtime.metering import Account
from runtime.work import Lane


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One request as the metrics saw it."""

    surface: str
    model: str
    task: str
    status: int
    lane: Lane = Lane.ONLINE
    seconds: float = dataclasses.field(default=0.0, compare=False)


class FakeMetering:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.request_errors: list[tuple[str, str]] = []
        self.candidates: list[tuple[str, str, int]] = []
        self.costs: list[tuple[Account, float, float | None]] = []

    def render(self) -> bytes:
        return b"# HELP fake A metric\n"

    def observe_request(self, surface: str, model: str, task: str, status: int, seconds: float, lane: Lane) -> None:
        assert seconds >= 0
        self.observations.append(Observation(surface, model, task, status, lane, seconds))

    def observe_request_error(self, surface: str, reason: str) -> None:
        self.request_errors.append((surface, reason))

    def observe_candidates(self, model: str, outcome: str, documents: int) -> None:
        self.candidates.append((model, outcome, documents))

    def observe_cost(
        self, account: Account, stages_ms: Mapping[str, float], device_ms: float, cost_usd: float | None
    ) -> None:
        assert min(stages_ms.values()) >= 0
        self.costs.append((account, device_ms, cost_usd))

    def observe_render(self, model: str, seconds: float) -> None:
        assert seconds > 0
