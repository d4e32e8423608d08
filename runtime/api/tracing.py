"""OpenTelemetry, where it is asked for: a span a request that continues the caller's trace, and one a batch.

Needs the extra `tracing`. Spans go out by OTLP over HTTP; the variables OTEL_* say where to, how often and under
which name. Spans hold sizes, names and times, never the input.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime import __version__
from runtime.api.record import Record
from runtime.errors import ConfigurationError
from runtime.work import Lane, Task

UNTRACED: Final = "/(health|live|ready|ping|metrics)$,/v2/health/,/.well-known/"
OPERATIONS: Final[dict[str, str]] = {Task.EMBED: "embeddings", Task.MULTI_VECTOR: "embeddings"}
"""OpenTelemetry's `gen_ai.operation.name`; it has none for the other tasks, which keep their own."""
MOST_LINKS: Final = 128
"""OpenTelemetry's limit of links in one span."""


class Tracing:
    """The spans of one server. On the event loop only."""

    def __init__(self, exporter: Any = None) -> None:
        """`exporter`: where spans go instead of to OTLP, at once.

        Raises ConfigurationError where OpenTelemetry isn't installed.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        except ImportError as error:
            missing = "tracing: OpenTelemetry is not installed; install cotenant[tracing]"
            raise ConfigurationError(missing) from error
        names = {"service.name": "cotenant", "service.version": __version__}
        # It sends what is left when the process ends.
        self._provider = TracerProvider(resource=Resource(names).merge(Resource.create()))
        processor = BatchSpanProcessor(OTLPSpanExporter()) if exporter is None else SimpleSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("cotenant", __version__)
        self._trace, self._middleware = trace, OpenTelemetryMiddleware
        self._open: dict[str, Any] = {}
        """Contexts of the requests in flight, by request id: what batches are linked to."""

    def around(self, app: ASGIApp) -> ASGIApp:
        """The app with a span for each request but probes."""

        async def untraced_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
            await (traced if scope["type"] == "http" else app)(scope, receive, send)

        traced: ASGIApp = self._middleware(
            app,
            excluded_urls=UNTRACED,
            default_span_details=lambda scope: (f"{scope['method']} {scope['path']}", {}),
            tracer_provider=self._provider,
            exclude_spans=["receive", "send"],
        )
        return untraced_lifespan

    def begin(self, request_id: str) -> None:
        """A request to a model has begun, in the current span."""
        self._open[request_id] = self._trace.get_current_span().get_span_context()

    def end(self, request_id: str) -> None:
        """That request is over."""
        self._open.pop(request_id, None)

    def describe(self, request_id: str, record: Record) -> None:
        """What the request turned out to be. Call it before the answer goes out, which ends the span."""
        timings = record.timings
        self._trace.get_current_span().set_attributes(
            {
                "gen_ai.operation.name": OPERATIONS.get(record.task, str(record.task)),
                "gen_ai.request.model": record.model,
                "cotenant.request_id": request_id,
                "cotenant.lane": record.lane.value,
                "cotenant.inputs": record.inputs,
                "cotenant.tokens": record.tokens,
                "cotenant.prepare_ms": timings.prepare_ms,
                "cotenant.queue_ms": timings.queue_ms,
                "cotenant.device_ms": timings.device_ms,
                "cotenant.render_ms": record.render_ms,
                "cotenant.code": record.code or "ok",
            }
        )

    def note_batch(self, model: str, lane: Lane, job_ids: Sequence[str], tokens: int, device_ms: float) -> None:
        """One batch has just been answered: a span of its own, linked to the requests that rode in it."""
        contexts = [self._open[job_id] for job_id in job_ids if job_id in self._open][:MOST_LINKS]
        end_ns = time.time_ns()
        span = self._tracer.start_span(
            f"batch {model}",
            context=self._trace.set_span_in_context(self._trace.INVALID_SPAN),
            links=[self._trace.Link(context) for context in contexts],
            start_time=end_ns - int(device_ms * 1e6),
            attributes={
                "gen_ai.request.model": model,
                "cotenant.lane": lane.value,
                "cotenant.jobs": len(job_ids),
                "cotenant.tokens": tokens,
            },
        )
        span.end(end_ns)
