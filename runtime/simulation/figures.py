"""What a simulation gave: by kind of traffic the delays, shares, rates and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.work import Lane

Stream = tuple[str, Lane]
"""A model's id, without its copies' numbers, and a lane."""


@dataclass(slots=True)
class StreamFigures:
    """One model's requests in one lane."""

    delays_ms: list[float] = field(default_factory=list)
    """From the request to its answer."""
    inputs: int = 0
    tokens: int = 0
    """Of the batches that landed."""
    batches: int = 0
    device_ms: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Requests that got no answer, by error code; `hung_up` for clients that left."""

    def delay_ms(self, share: float) -> float:
        """The delay within which that share of the requests was answered; 0 where none was."""
        ordered = sorted(self.delays_ms)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


@dataclass(slots=True)
class Figures:
    """Everything that was counted from `settle_s` to the end."""

    counted_s: float
    streams: dict[Stream, StreamFigures] = field(default_factory=dict)
    verdicts: Mapping[str, int] = field(default_factory=dict)
    """Admission's verdicts by kind (admitted, refused, evicted, ...), loads at the start included."""
    asked: int = 0
    """Requests."""
    found: int = 0
    """Those that found their model in memory."""
    ceilings: Mapping[str, int] = field(default_factory=dict)
    """The largest batch of each model at the end, in tokens."""

    def of(self, model: str, lane: Lane) -> StreamFigures:
        """One stream's figures."""
        return self.streams.setdefault((model, lane), StreamFigures())

    @property
    def busy(self) -> float:
        """Part of the time that the device worked, summed over its lanes."""
        return sum(stream.device_ms for stream in self.streams.values()) / (self.counted_s * 1000.0)

    def share(self, model: str, lane: Lane) -> float:
        """A stream's part of all device time."""
        total_ms = sum(stream.device_ms for stream in self.streams.values())
        return self.of(model, lane).device_ms / total_ms if total_ms else 0.0

    def tokens_per_s(self, lane: Lane) -> float:
        """Tokens a second of all models in a lane."""
        return sum(figures.tokens for (_, each), figures in self.streams.items() if each is lane) / self.counted_s

    @property
    def hit_rate(self) -> float:
        """Part of the requests that found their model in memory; 1 where nobody asked."""
        return self.found / self.asked if self.asked else 1.0

    @property
    def answered_rate(self) -> float:
        """Part of the requests that were answered; 1 where nobody asked."""
        return sum(len(each.delays_ms) for each in self.streams.values()) / self.asked if self.asked else 1.0

    @property
    def evictions(self) -> int:
        """Models that had to leave for others."""
        return sum(count for verdict, count in self.verdicts.items() if verdict in ("evicted", "offloaded"))


HEAD = (
    "model",
    "lane",
    "answered",
    "p50 ms",
    "p95 ms",
    "share",
    "inputs/s",
    "tokens/s",
    "batches",
    "without an answer",
)


def table(figures: Figures) -> str:
    """The figures as lines of a table."""
    rows = [HEAD]
    for (model, lane), stream in sorted(figures.streams.items()):
        lost = ", ".join(f"{count} {code}" for code, count in sorted(stream.outcomes.items())) or "0"
        rows.append(
            (
                model,
                lane.value,
                f"{len(stream.delays_ms):,}",
                f"{stream.delay_ms(0.50):.1f}",
                f"{stream.delay_ms(0.95):.1f}",
                f"{figures.share(model, lane):.1%}",
                f"{stream.inputs / figures.counted_s:,.1f}",
                f"{stream.tokens / figures.counted_s:,.0f}",
                f"{stream.batches:,}",
                lost,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    refusals = figures.verdicts.get("refused", 0)
    end = (
        f"device busy {figures.busy:.1%}, models found in memory {figures.hit_rate:.1%},"
        f" answered {figures.answered_rate:.1%}, evictions {figures.evictions:,}, refusals {refusals:,}"
    )
    return "\n".join([*lines, end])
