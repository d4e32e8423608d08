"""From exchanges to figures: rates, quantiles, medians over rounds, ratios."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from scripts.bench_load.load import Exchange, Span
from scripts.bench_load.processor import Cores


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One workload against one target in one round.

    `figures` maps names with units (`texts_per_s`, `p95_ms`) to values; `requests` and `faults` count what
    began within the measured span.
    """

    workload: str
    target: str
    round: int
    figures: dict[str, float]
    requests: int
    faults: int = 0
    fault_samples: tuple[str, ...] = ()
    cores: Cores | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def rate_per_s(exchanges: Iterable[Exchange], span: Span, *, tokens: bool = False) -> float:
    """Work done within the span, per second, in texts or reported tokens.

    A request counts by the share of its life that lies within the span. Whole counts would be off by up to
    one round of requests in flight, which is a tenth of a slow server's figure.
    """
    done = 0.0
    for exchange in exchanges:
        inside_s = min(exchange.end_s, span.end_s) - max(exchange.begin_s, span.begin_s)
        if exchange.fault is None and inside_s > 0:
            amount = exchange.tokens if tokens else exchange.texts
            done += amount * inside_s / (exchange.end_s - exchange.begin_s)
    return done / span.seconds


def within(exchanges: Iterable[Exchange], span: Span) -> list[Exchange]:
    """Those that were due within the span."""
    return [exchange for exchange in exchanges if span.begin_s <= exchange.begin_s < span.end_s]


def latency_ms(exchanges: Iterable[Exchange], share: float) -> float:
    """The latency that `share` of the successful exchanges stay within (nearest rank); 0 without any."""
    return quantile([(each.end_s - each.begin_s) * 1e3 for each in exchanges if each.fault is None], share)


def quantile(values: Iterable[float], share: float) -> float:
    """The nearest-rank quantile; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


@dataclass(frozen=True)
class Summary:
    """A figure over the rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        return f"{shown(self.median)} ({shown(min(self.values))}–{shown(max(self.values))})"

    def over(self, other: "Summary") -> str:
        """The ratio of the medians, and the smallest and largest of one round; a dash where theirs is 0."""
        if len(self.values) != len(other.values) or not all(other.values):
            return "–"
        rounds = Summary(tuple(mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)))
        return f"{self.median / other.median:.2f} ({min(rounds.values):.2f}–{max(rounds.values):.2f})"


def summarize(measurements: Sequence[Measurement], workload: str, target: str, figure: str) -> Summary | None:
    """The figure's values in round order; None where no round has it."""
    values = tuple(
        each.figures[figure]
        for each in measurements
        if each.workload == workload and each.target == target and figure in each.figures
    )
    return Summary(values) if values else None


def shown(value: float) -> str:
    """Three significant digits, and whole numbers from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
