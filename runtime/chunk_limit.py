"""How long one batch may hold a device that can't be interrupted, so that online work meets its objective.

A query that arrives waits for the batch that runs, so its p95 is about as long as the longest batch. Bulk work may
take half of what the strictest model lately asked for online leaves beside its own run; after an idle second it may
take long, efficient batches again. What is measured trims that, either way, by additive increase and multiplicative
decrease (AIMD, as congestion control does it; for batch sizes Crankshaw et al., Clipper, NSDI 2017). Knows no queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HOST_MS = 3.0
"""What a query spends outside the device."""
LEAST_MS, MOST_MS = 4.0, 50.0
ONLINE_MEMORY_S = 1.0
"""After so long without online work, bulk batches may be long."""
REPLIES_A_TRIM = 200
TRIM_CUT = 0.7
TRIM_STEP_MS = 1.0
COMFORTABLE = 0.8
"""A p95 below this part of the objective lets the limit grow."""


@dataclass(slots=True)
class ChunkLimit:
    """Milliseconds for the next bulk and the next online batch. Not thread-safe."""

    slo_ms: dict[str, float] = field(default_factory=dict)
    """How soon each model's online requests should be answered."""
    trim_ms: float = 0.0
    """What measured delays add to the bulk limit, or take from it."""
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By model: when online work of it last waited, and the device time of its first input."""
    _delays_ms: dict[str, list[float]] = field(default_factory=dict)
    """By model: delays of answers since its last p95."""
    _steering: str | None = None
    """The strictest model that is in use."""

    def saw_online(self, model: str, unit_ms: float, now_s: float) -> None:
        """Online work of `model` waits, and its first input needs `unit_ms`."""
        self._seen[model] = (now_s, unit_ms)
        if self._steering is not None and model in self.slo_ms and self.slo_ms[model] < self.slo_ms[self._steering]:
            self._steering = model

    def bulk_ms(self, now_s: float) -> float:
        """`clamp((SLO - t_query - host) / 2 + trim, 4, 50)` of the strictest model that is in use online."""
        strictest = self._strictest(now_s)
        return MOST_MS if strictest is None else _clamped(_untrimmed_ms(*strictest) + self.trim_ms)

    def online_ms(self, now_s: float) -> float:
        """Half of the strictest objective in use, so that a large request travels in several batches."""
        strictest = self._strictest(now_s)
        return MOST_MS if strictest is None else max(strictest[0] / 2.0, LEAST_MS)

    def replied(self, model: str, delay_ms: float) -> None:
        """An online input of `model` was answered after `delay_ms`. Each 200 of them may trim the limit.

        Any model that misses its objective shortens bulk batches; only the strictest one lengthens them.
        """
        delays_ms = self._delays_ms.setdefault(model, [])
        delays_ms.append(delay_ms)
        if len(delays_ms) < REPLIES_A_TRIM or model not in self.slo_ms:
            return
        p95 = sorted(delays_ms)[int(0.95 * len(delays_ms))] / self.slo_ms[model]
        delays_ms.clear()
        steering = self._seen.get(self._steering or model)
        if p95 > 1.0 and steering is not None:
            untrimmed_ms = _untrimmed_ms(self.slo_ms[self._steering or model], steering[1])
            self.trim_ms = TRIM_CUT * _clamped(untrimmed_ms + self.trim_ms) - untrimmed_ms
        elif p95 < COMFORTABLE and model == self._steering:
            self.trim_ms = min(self.trim_ms + TRIM_STEP_MS, MOST_MS)

    def _strictest(self, now_s: float) -> tuple[float, float] | None:
        """Objective and unit of the strictest model that online work waited for lately."""
        # Kept as long as it is in use: looking through all models for each batch would cost more than the choice.
        if self._steering is None or now_s - self._seen[self._steering][0] > ONLINE_MEMORY_S:
            fresh = [
                (self.slo_ms[model], model)
                for model, (seen_s, _) in self._seen.items()
                if now_s - seen_s <= ONLINE_MEMORY_S and model in self.slo_ms
            ]
            self._steering = min(fresh)[1] if fresh else None
        return None if self._steering is None else (self.slo_ms[self._steering], self._seen[self._steering][1])


def _untrimmed_ms(slo_ms: float, unit_ms: float) -> float:
    return (slo_ms - unit_ms - HOST_MS) / 2.0


def _clamped(limit_ms: float) -> float:
    return min(max(limit_ms, LEAST_MS), MOST_MS)


def slow_unit(unit_ms: float, slos_ms: dict[str, float]) -> tuple[str, float] | None:
    """The model whose objective one input of `unit_ms` endangers, because it can't be cut, and that objective.

    Whoever waits for it waits longer than half of what the strictest model may take. None: nobody is endangered.
    """
    if not slos_ms:
        return None
    model, slo_ms = min(slos_ms.items(), key=lambda each: each[1])
    return (model, slo_ms) if unit_ms > slo_ms / 2.0 else None


def slow_unit_warning(model: str, unit_ms: float, endangered: str, slo_ms: float) -> str:
    """What `slow_unit` found, in a sentence."""
    return (
        f"{model}: one input takes {unit_ms:.1f} ms of the device and can't be cut, which endangers the objective of"
        f" {endangered} ({slo_ms:g} ms)"
    )
