"""How long one batch may hold a device that can't be interrupted, so that online work meets its objective.

A query that arrives waits for the batch that runs, so its p95 is about as long as the longest batch. Bulk work may
take half of what the strictest model lately asked for online leaves beside its own run; after an idle second it may
take long, efficient batches again. What is measured trims that by additive increase and multiplicative decrease
(AIMD, as congestion control does it; for batch sizes Crankshaw et al., Clipper, NSDI 2017). Knows no queue.
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
    trim_ms: float = MOST_MS
    """The bulk limit that measured delays allow."""
    _seen: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By model: when online work of it last waited, and the device time of its first input."""
    _delays: list[float] = field(default_factory=list)
    """Delays of answers since the last trim, as parts of their objectives."""

    def saw_online(self, model: str, unit_ms: float, now_s: float) -> None:
        """Online work of `model` waits, and its first input needs `unit_ms`."""
        self._seen[model] = (now_s, unit_ms)

    def bulk_ms(self, now_s: float) -> float:
        """`clamp((SLO - t_query - host) / 2, 4, 50)` of the strictest model that is in use online, then trimmed."""
        strictest = self._strictest(now_s)
        if strictest is None:
            return MOST_MS
        slo_ms, unit_ms = strictest
        return max(min((slo_ms - unit_ms - HOST_MS) / 2.0, self.trim_ms, MOST_MS), LEAST_MS)

    def online_ms(self, now_s: float) -> float:
        """Half of the strictest objective in use, so that a large request travels in several batches."""
        strictest = self._strictest(now_s)
        return max(strictest[0] / 2.0, LEAST_MS) if strictest else MOST_MS

    def replied(self, model: str, delay_ms: float) -> None:
        """An online input of `model` was answered after `delay_ms`. Each 200 of them trim the limit."""
        self._delays.append(delay_ms / self.slo_ms[model] if model in self.slo_ms else 0.0)
        if len(self._delays) < REPLIES_A_TRIM:
            return
        p95 = sorted(self._delays)[int(0.95 * REPLIES_A_TRIM)]
        self._delays.clear()
        if p95 > 1.0:
            self.trim_ms = max(self.trim_ms * TRIM_CUT, LEAST_MS)
        elif p95 < COMFORTABLE:
            self.trim_ms = min(self.trim_ms + TRIM_STEP_MS, MOST_MS)

    def _strictest(self, now_s: float) -> tuple[float, float] | None:
        """Objective and unit of the model with the least room, among those that online work waited for lately."""
        fresh = [
            (self.slo_ms[model], unit_ms)
            for model, (seen_s, unit_ms) in self._seen.items()
            if now_s - seen_s <= ONLINE_MEMORY_S and model in self.slo_ms
        ]
        return min(fresh, default=None)


def slow_unit(unit_ms: float, slos_ms: dict[str, float]) -> tuple[str, float] | None:
    """The model whose objective one input of `unit_ms` endangers, because it can't be cut, and that objective.

    Whoever waits for it waits longer than half of what the strictest model may take. None: nobody is endangered.
    """
    if not slos_ms:
        return None
    model, slo_ms = min(slos_ms.items(), key=lambda each: each[1])
    return (model, slo_ms) if unit_ms > slo_ms / 2.0 else None
