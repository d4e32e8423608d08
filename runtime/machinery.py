"""What keeps the engine's time and turns its wheels: clock, lanes, preparation, policy. Simulations have others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.clock import REAL_CLOCK, Clock
from runtime.devices.base import Device
from runtime.dispatch import Ahead
from runtime.entry import Entry
from runtime.eviction import Replacement, by_value
from runtime.execution import Execution
from runtime.executor import Deliver, Executor
from runtime.preparation import Preparation
from runtime.registry import ModelSpec
from runtime.scheduling import FairShare, Policy
from runtime.work import Job, Lane
from runtime.worker import Worker


class Lanes(Protocol):
    """The part of an Executor that the engine uses; its docstrings hold."""

    execution: Execution

    def start(self) -> None:
        """See Executor.start."""

    def submit(self, worker: Worker, lane: Lane, entries: Sequence[Entry]) -> None:
        """See Executor.submit."""

    def drop(self, worker: Worker, lane: Lane, entries: Sequence[Entry]) -> int:
        """See Executor.drop."""

    def holds(self, worker: Worker) -> bool:
        """See Executor.holds."""

    def ahead(self, worker: Worker, job: Job, tokens: int, small: bool = False) -> Ahead:
        """See Executor.ahead."""

    def stop(self) -> None:
        """See Executor.stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the operator asked of residency, the clock it is judged by, and who gives way to whom."""

    min_residence_s: float
    now_s: Callable[[], float]
    replacement: Replacement


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """How the engine gets each of its moving parts; the real ones by default."""

    clock: Clock = REAL_CLOCK
    lanes: Callable[[Device, Policy, Deliver, float], Lanes] = Executor
    preparation: Callable[[int], Preparation] = Preparation
    policy: Callable[[Iterable[ModelSpec]], Policy] = FairShare.of
    replacement: Replacement = by_value

    def rules(self, min_residence_s: float) -> Rules:
        """What residency goes by."""
        return Rules(min_residence_s=min_residence_s, now_s=self.clock.now_s, replacement=self.replacement)
