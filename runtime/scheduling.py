"""Who runs next and how much: decided from what waits and what time it is. Knows no device and no thread.

Online work goes first, by its model's priority and then the queue with the least slack (its due time minus the time it
needs). Where that one is late already, slack says nothing any more: a model with more work than time would have the
least for ever, and all others would be late with it. Models then take fair turns (`fair_turns.py`). On a device that
can't be interrupted a batch is cut to what the objectives allow (`chunk_limit.py`). Bulk work shares what is left in
fair turns. A minimum share keeps it alive under endless online work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from runtime.chunk_limit import ChunkLimit
from runtime.devices.base import Concurrency
from runtime.fair_turns import FairTurns
from runtime.registry import ModelSpec
from runtime.work import Choice, Lane, Waiting

BULK_MIN_SHARE = 0.10
"""Of the device time while both lanes wait, what online work can't take from bulk work."""
CONTENTION_MEMORY_MS = 5_000.0
"""Device time over which that share is kept; older time fades."""
REWEIGH_S = 0.1
"""How soon a queue that does not change is weighed again: cost lines move, and it is in use as long as it waits."""


@dataclass(slots=True)
class CostLine:
    """Device milliseconds of a batch of T tokens: `fixed_ms + ms_per_token * T`, refined from every batch.

    Recursive least squares with exponential forgetting on (1, T) would chase noise on so few distinct sizes; the slope
    alone is followed, by an exponential mean of what each batch says about it.
    """

    fixed_ms: float = 2.0
    ms_per_token: float = 0.2
    rate: float = 0.05

    def predict_ms(self, tokens: int) -> float:
        """Predicted device time of one batch."""
        return self.fixed_ms + self.ms_per_token * tokens

    def drain_ms(self, tokens: int, batch_tokens: int) -> float:
        """Predicted device time of `tokens` that wait, in batches of `batch_tokens`."""
        return math.ceil(tokens / batch_tokens) * self.fixed_ms + self.ms_per_token * tokens

    def tokens_within(self, most_ms: float) -> int:
        """The largest batch that takes `most_ms`, and at least a token.

        Never so small that more than half of its time is the fixed part: that would cost bulk work more than it
        would spare online work.
        """
        return max(int((max(most_ms, 2.0 * self.fixed_ms) - self.fixed_ms) / self.ms_per_token), 1)

    def learn(self, tokens: int, device_ms: float) -> None:
        """Move the slope towards what a batch of at least 64 tokens measured."""
        if tokens >= 64:
            slope = max(device_ms - self.fixed_ms, 0.0) / tokens
            self.ms_per_token += self.rate * (slope - self.ms_per_token)

    @staticmethod
    def fit(points: Sequence[tuple[int, float]]) -> CostLine:
        """Least squares through (tokens, milliseconds); at least two different sizes."""
        n = len(points)
        mean_t = sum(t for t, _ in points) / n
        mean_ms = sum(ms for _, ms in points) / n
        spread = sum((t - mean_t) ** 2 for t, _ in points)
        slope = sum((t - mean_t) * (ms - mean_ms) for t, ms in points) / spread if spread else 0.0
        slope = max(slope, 1e-6)
        return CostLine(fixed_ms=max(mean_ms - slope * mean_t, 0.0), ms_per_token=slope)


FREE = CostLine(fixed_ms=0.0, ms_per_token=0.0)
"""Stands for a line that isn't known yet."""


class Crowd(NamedTuple):
    """Models that wait in one lane."""

    models: int
    weights: float
    """Of all of them."""


NOBODY = Crowd(0, 0.0)


class Policy(Protocol):
    """Chooses among queues; told afterwards what its choice cost. All calls come under the executor's lock."""

    predict_ms: dict[str, CostLine]
    """Cost lines by model; the engine adds each when it has been measured."""

    def know(self, spec: ModelSpec) -> None:
        """Take over what a model's entry in the registry asks for, new or changed."""

    def adapt(self, concurrency: Concurrency) -> None:
        """Told once, before the first choice, how many batches the device takes."""

    def choose(self, waiting: Sequence[Waiting], now_s: float) -> Choice | None:
        """Whose turn it is; None when nothing in `waiting` may run."""

    def charge(self, model: str, lane: Lane, device_ms: float, contended: bool) -> None:
        """A batch of `model` took `device_ms`. `contended`: both lanes were waiting when it was chosen."""

    def replied(self, model: str, delay_ms: float) -> None:
        """The first input of an online Job was answered `delay_ms` after it was queued."""

    def beside_ms(self, model: str, lane: Lane, own_ms: float, others: Mapping[int, Crowd], now_s: float) -> float:
        """The most device time that other models that wait in `lane` get until `own_ms` of this one's work are done.

        `others`: these models by their priority number. Infinite: all that they have.
        """


@dataclass(slots=True)
class FairShare:
    """Least slack online, fair shares in bulk, a minimum share for bulk, batches no longer than objectives allow."""

    weights: dict[str, float] = field(default_factory=dict)
    predict_ms: dict[str, CostLine] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    chunks: ChunkLimit = field(default_factory=ChunkLimit)
    bulk_min_share: float = BULK_MIN_SHARE
    _is_preemptible: bool = False
    _turns: dict[Lane, FairTurns[str]] = field(default_factory=lambda: {lane: FairTurns() for lane in Lane})
    _urgencies: dict[Waiting, tuple[int, float]] = field(default_factory=dict)
    _weigh_again_s: float = -math.inf
    _contended_ms: dict[Lane, float] = field(default_factory=lambda: dict.fromkeys(Lane, 0.0))

    @classmethod
    def of(cls, specs: Iterable[ModelSpec]) -> FairShare:
        """The policy for these models."""
        policy = cls()
        for spec in specs:
            policy.know(spec)
        return policy

    def know(self, spec: ModelSpec) -> None:
        """See Policy.know: weight, priority and objective."""
        self.weights[spec.id] = spec.weight
        self.priorities[spec.id] = spec.priority
        self.chunks.slo_ms[spec.id] = spec.slo_ms

    def adapt(self, concurrency: Concurrency) -> None:
        """See Policy.adapt. With a spare lane a query starts beside whatever runs, so no batch need be short."""
        self._is_preemptible = concurrency.spare_lanes > 0

    def choose(self, waiting: Sequence[Waiting], now_s: float) -> Choice | None:
        """See Policy.choose."""
        bulk = [queue for queue in waiting if queue.lane is Lane.BULK]
        online = waiting if not bulk else [queue for queue in waiting if queue.lane is Lane.ONLINE]
        next_online = self._next_online(online, now_s)
        if next_online is not None and not (bulk and self._bulk_is_starved()):
            return self._take(next_online, now_s)
        if bulk:
            return self._take(self._fairest(bulk), now_s)
        return None

    def charge(self, model: str, lane: Lane, device_ms: float, contended: bool) -> None:
        """See Policy.charge."""
        self._turns[lane].charge(model, device_ms, self.weights.get(model, 1.0))
        if contended:
            fade = max(0.0, 1.0 - device_ms / CONTENTION_MEMORY_MS)
            for each in Lane:
                self._contended_ms[each] *= fade
            self._contended_ms[lane] += device_ms

    def replied(self, model: str, delay_ms: float) -> None:
        """See Policy.replied."""
        self.chunks.replied(model, delay_ms)

    def beside_ms(self, model: str, lane: Lane, own_ms: float, others: Mapping[int, Crowd], now_s: float) -> float:
        """See Policy.beside_ms. Their shares of that time by weight, and a batch of each, which may come first."""
        weight = self.weights.get(model, 1.0)
        if lane is Lane.BULK:
            models = sum(crowd.models for crowd in others.values())
            weights = sum(crowd.weights for crowd in others.values())
            return own_ms * weights / weight + self.chunks.bulk_ms(now_s) * models
        mine = self.priorities.get(model, 0)
        if min(others, default=mine) < mine:
            return math.inf
        models, weights = others.get(mine, NOBODY)
        return own_ms * weights / weight + self.chunks.online_ms(now_s) * models

    def _next_online(self, online: Sequence[Waiting], now_s: float) -> Waiting | None:
        """Of the lowest priority number the queue with the least slack; in fair turns once that one is late.

        With many models most queues don't change between two batches, and are not weighed again.
        """
        known = self._urgencies
        if now_s >= self._weigh_again_s:
            known, self._weigh_again_s = {}, now_s + REWEIGH_S
        self._urgencies = {queue: known.get(queue) or self._urgency(queue, now_s) for queue in online}
        soonest = min(online, key=self._urgencies.__getitem__, default=None)
        if soonest is None:
            return None
        priority, latest_start_s = self._urgencies[soonest]
        if latest_start_s < now_s:
            return self._fairest([queue for queue in online if self._urgencies[queue][0] == priority])
        return soonest

    def _urgency(self, queue: Waiting, now_s: float) -> tuple[int, float]:
        """Who has the least goes first: the priority number, then when the next batch must begin."""
        cost = self.predict_ms.get(queue.model, FREE)
        if not self._is_preemptible:
            self.chunks.saw_online(queue.model, cost.predict_ms(queue.first_tokens), now_s)
        needed_ms = cost.predict_ms(min(queue.tokens, queue.budget_tokens))
        return self.priorities.get(queue.model, 0), queue.due_s - needed_ms / 1000.0

    def _fairest(self, queues: Sequence[Waiting]) -> Waiting:
        """Of one lane's queues that whose model has had least; of a model's small and large ones what is due first."""
        turns = self._turns[queues[0].lane]
        return min(queues, key=lambda queue: (turns.stand(queue.model), queue.due_s))

    def _bulk_is_starved(self) -> bool:
        total = sum(self._contended_ms.values())
        # A short history says nothing: one online batch would look like 100 %.
        return total > 100.0 and self._contended_ms[Lane.BULK] < self.bulk_min_share * total

    def _take(self, queue: Waiting, now_s: float) -> Choice:
        self._turns[queue.lane].take(queue.model)
        cost = None if self._is_preemptible else self.predict_ms.get(queue.model)
        tokens = queue.budget_tokens
        if cost is not None:
            bulk = queue.lane is Lane.BULK
            tokens = min(tokens, cost.tokens_within((self.chunks.bulk_ms if bulk else self.chunks.online_ms)(now_s)))
        return Choice(queue.model, queue.lane, tokens, queue.small)
