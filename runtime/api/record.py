"""What one request cost and how it ended: the source of its headers, its metrics and its log line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from runtime.api.exchange import Header
from runtime.api.problems import Dialect
from runtime.metering import STAGES, Account
from runtime.work import Lane, Task, Timings

TOKENIZE: Final = "tokenize"
"""The task of requests that ask a tokenizer only."""
UNKNOWN_MODEL = "unknown"
CLIENT_GONE = 499
MS_PER_HOUR = 3_600_000.0


@dataclass(slots=True, kw_only=True)
class Record:
    """Filled in as the request goes on; what was not reached keeps its default."""

    surface: Dialect
    """Whose conventions the answer follows; a handler may find out more from the body."""
    task: Task | Literal["tokenize"]
    model: str = UNKNOWN_MODEL
    """The served name once resolved: bounded, because a metric's label is made of it."""
    lane: Lane = Lane.ONLINE
    lane_is_named: bool = False
    """The caller or the key named it."""
    tenant: str = "default"
    """Whose key asked."""
    compute: bytes | None = None
    """`cpu` or `gpu`, once the model's device is known."""
    status: int = CLIENT_GONE
    inputs: int = 0
    characters: int = 0
    tokens: int = 0
    candidates: int = 0
    """Documents that the request wants scored, whether they are or not."""
    truncated_inputs: int = 0
    timings: Timings = field(default_factory=Timings)
    render_ms: float = 0.0
    code: str | None = None
    """The error's code, if it ended in one."""
    price_per_hour_usd: float | None = None
    """Of one device thread; None: unknown."""

    @property
    def cost_usd(self) -> float | None:
        """The price of the request's share of the device's time; None where there is none to go by."""
        if self.price_per_hour_usd is None:
            return None
        return self.timings.device_share_ms / MS_PER_HOUR * self.price_per_hour_usd

    @property
    def account(self) -> Account:
        """Whom the request's cost is charged to."""
        return Account(self.model, self.task, self.lane, self.tenant)

    @property
    def stages_ms(self) -> dict[str, float]:
        """Where the request's milliseconds went."""
        timings = self.timings
        spent = (timings.prepare_ms, timings.queue_ms, timings.device_ms, timings.deliver_ms, self.render_ms)
        return dict(zip((*STAGES, "render"), spent, strict=True))

    def add(self, part: Record) -> None:
        """Count what a part of the request cost; parts run side by side, so its stages are the longest of them."""
        mine, its = self.timings, part.timings
        self.inputs += part.inputs
        self.characters += part.characters
        self.tokens += part.tokens
        self.candidates += part.candidates
        self.truncated_inputs += part.truncated_inputs
        self.render_ms += part.render_ms
        if part.model != UNKNOWN_MODEL:
            self.model, self.task, self.lane, self.compute = part.model, part.task, part.lane, part.compute
            self.tenant = part.tenant
        self.timings = Timings(
            prepare_ms=max(mine.prepare_ms, its.prepare_ms),
            queue_ms=max(mine.queue_ms, its.queue_ms),
            device_ms=max(mine.device_ms, its.device_ms),
            deliver_ms=max(mine.deliver_ms, its.deliver_ms),
            total_ms=max(mine.total_ms, its.total_ms),
            device_share_ms=mine.device_share_ms + its.device_share_ms,
        )

    def headers(self, total_ms: float) -> list[Header]:
        """W3C Server-Timing with decimals, TEI's `x-*` headers in whole milliseconds, and what it cost."""
        timings = self.timings
        stages = (timings.prepare_ms, timings.queue_ms, timings.device_ms, self.render_ms, total_ms)
        total = b"%d" % total_ms
        headers = [
            (
                b"server-timing",
                b"prepare;dur=%.3f,queue;dur=%.3f,device;dur=%.3f,render;dur=%.3f,total;dur=%.3f" % stages,
            ),
            (b"x-compute-time", total),
            (b"x-total-time", total),
            (b"x-compute-characters", b"%d" % self.characters),
            (b"x-compute-tokens", b"%d" % self.tokens),
            (b"x-tokenization-time", b"%d" % timings.prepare_ms),
            (b"x-queue-time", b"%d" % timings.queue_ms),
            (b"x-inference-time", b"%d" % timings.device_ms),
            (b"x-device-ms", b"%.3f" % timings.device_share_ms),
        ]
        if self.compute is not None:
            headers.append((b"x-compute-type", self.compute))
        if self.candidates:
            headers.append((b"x-rerank-candidates", b"%d" % self.candidates))
        if self.cost_usd is not None:
            headers.append((b"x-cost-usd", b"%.10f" % self.cost_usd))
        if self.truncated_inputs:
            headers.append((b"x-truncated-inputs", b"%d" % self.truncated_inputs))
        return headers
