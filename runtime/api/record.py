"""What one request cost and how it ended: the source of its headers, its metrics and its log line."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.api.exchange import Header
from runtime.work import Lane, Task, Timings

UNKNOWN_MODEL = "unknown"
CLIENT_GONE = 499


@dataclass(slots=True, kw_only=True)
class Record:
    """Filled in as the request goes on; what was not reached keeps its default."""

    surface: str
    task: Task
    model: str = UNKNOWN_MODEL
    """The served name once resolved: bounded, because a metric's label is made of it."""
    lane: Lane = Lane.ONLINE
    compute: bytes | None = None
    """`cpu` or `gpu`, once the model's device is known."""
    status: int = CLIENT_GONE
    inputs: int = 0
    characters: int = 0
    tokens: int = 0
    truncated_inputs: int = 0
    timings: Timings = field(default_factory=Timings)
    render_ms: float = 0.0
    code: str | None = None
    """The error's code, if it ended in one."""

    def headers(self, total_ms: float) -> list[Header]:
        """W3C Server-Timing with decimals, and TEI's `x-*` headers in whole milliseconds."""
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
        ]
        if self.compute is not None:
            headers.append((b"x-compute-type", self.compute))
        if self.truncated_inputs:
            headers.append((b"x-truncated-inputs", b"%d" % self.truncated_inputs))
        return headers
