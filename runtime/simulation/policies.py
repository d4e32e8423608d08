"""The policies that ours is compared with. They serve no one: only simulations choose them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from runtime.devices.base import Concurrency
from runtime.eviction import Claim, Replacement, Standing, by_value
from runtime.fair_turns import FairTurns
from runtime.registry import ModelSpec
from runtime.scheduling import CostLine, Crowd, FairShare, Policy
from runtime.simulation.scenario import PolicyName, ReplacementName
from runtime.work import Choice, Lane, Waiting

Key = tuple[str, Lane]


@dataclass(slots=True)
class FirstInFirstOut:
    """One queue for everything: whoever waits longest, in the largest batch."""

    predict_ms: dict[str, CostLine] = field(default_factory=dict)

    def know(self, spec: ModelSpec) -> None:
        """See Policy.know."""

    def adapt(self, concurrency: Concurrency) -> None:
        """See Policy.adapt."""

    def choose(self, waiting: Sequence[Waiting], now_s: float) -> Choice | None:
        """See Policy.choose."""
        if not waiting:
            return None
        return _all_of(min(waiting, key=lambda queue: queue.queued_s))

    def charge(self, model: str, lane: Lane, device_ms: float, contended: bool) -> None:
        """See Policy.charge."""

    def replied(self, model: str, delay_ms: float) -> None:
        """See Policy.replied."""

    def beside_ms(self, model: str, lane: Lane, own_ms: float, others: Mapping[int, Crowd], now_s: float) -> float:
        """See Policy.beside_ms: all that waits."""
        return math.inf


@dataclass(slots=True)
class RoundRobin(FirstInFirstOut):
    """One queue after the other, whatever their batches cost."""

    _turns: dict[Key, int] = field(default_factory=dict)

    def choose(self, waiting: Sequence[Waiting], now_s: float) -> Choice | None:
        """See Policy.choose."""
        if not waiting:
            return None
        chosen = min(waiting, key=lambda queue: self._turns.get((queue.model, queue.lane), 0))
        self._turns[chosen.model, chosen.lane] = max(self._turns.values(), default=0) + 1
        return _all_of(chosen)


@dataclass(slots=True)
class FairQueueing(FirstInFirstOut):
    """Equal shares of device time for all queues, online or bulk (start-time fair queueing)."""

    _shares: FairTurns[Key] = field(default_factory=FairTurns)

    def choose(self, waiting: Sequence[Waiting], now_s: float) -> Choice | None:
        """See Policy.choose."""
        if not waiting:
            return None
        chosen = min(waiting, key=lambda queue: self._shares.stand((queue.model, queue.lane)))
        self._shares.take((chosen.model, chosen.lane))
        return _all_of(chosen)

    def charge(self, model: str, lane: Lane, device_ms: float, contended: bool) -> None:
        """See Policy.charge."""
        self._shares.charge((model, lane), device_ms)


def _all_of(queue: Waiting) -> Choice:
    return Choice(queue.model, queue.lane, queue.budget_tokens, queue.small)


POLICIES: Final[dict[PolicyName, Callable[[Iterable[ModelSpec]], Policy]]] = {
    "first-in-first-out": lambda specs: FirstInFirstOut(),
    "round-robin": lambda specs: RoundRobin(),
    "fair-queueing": lambda specs: FairQueueing(),
    "fair-share": FairShare.of,
}
"""By the name that a scenario uses; `fair-share` is the one that serves."""


def least_recent(resident: Standing, newcomer: Standing, base_s: float) -> Claim:
    """Who was not asked for longest leaves, for anyone and at once (LRU)."""
    return Claim(-resident.idle_s, 0.0)


REPLACEMENTS: Final[dict[ReplacementName, Replacement]] = {"by-value": by_value, "least-recent": least_recent}
"""By the name that a scenario uses; `by-value` is the one that serves."""
