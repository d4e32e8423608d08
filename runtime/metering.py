"""Milliseconds, dollars, tokens and counts by model, stage, lane and tenant, as Prometheus metrics with bounded labels.

Label values are model names from the registry, lanes, stages, states and error codes: never anything a client sends.
Gauges of the present (queues, states, memory) are read when scraped, so they are true and cost nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client import Gauge as StandingGauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from runtime import __version__
from runtime.work import Lane, Timings

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STAGES = ("prepare", "queue", "device", "deliver")

M = TypeVar("M", bound=MetricWrapperBase)

Gauge = tuple[str, str, tuple[str, ...], Iterable[tuple[tuple[str, ...], float]]]
"""Name, help, label names, and (label values, value) samples."""


class Account(NamedTuple):
    """Whom a request's cost is charged to. All of them are label values, so none is what a client makes up."""

    model: str
    task: str
    lane: str
    tenant: str


class Metering:
    """All counters of one engine, and the process's own, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        StandingGauge(
            "cotenant_build_info", "1 for the version that runs", ("version",), registry=self.registry
        ).labels(__version__).set(1)
        self._requests = self._counter("requests", "HTTP requests", "surface", "model", "task", "code")
        self._request_seconds = self._histogram(
            "request_duration_seconds", "Request time", SECONDS, "surface", "model", "lane"
        )
        self._request_errors = self._counter("request_errors", "Requests that ended in an error", "surface", "reason")
        self._stage_seconds = self._histogram("stage_duration_seconds", "Time by stage", SECONDS, "model", "stage")
        self._batch_tokens = self._histogram("batch_tokens", "Tokens in a batch", TOKENS, "model", "lane")
        self._padding = self._counter("padding_tokens", "Positions computed for nothing", "model", "lane")
        self._batch_items = self._counter("batch_items", "Inputs run", "model", "lane")
        self._device_seconds = self._counter("device_seconds", "Device time", "model", "lane")
        self._input_tokens = self._counter("input_tokens", "Tokens run", "model", "tenant")
        self._truncated = self._counter("truncated_inputs", "Inputs cut at the limit", "model")
        self._errors = self._counter("job_errors", "Jobs that failed", "model", "code")
        self._cancelled = self._counter("jobs_cancelled", "Jobs whose client hung up", "model")
        self._candidates = self._counter("rerank_candidates", "Documents to be scored", "model", "outcome")
        self._job_device_seconds = self._counter("job_device_seconds", "Jobs' shares of device time", *Account._fields)
        self._job_cost_usd = self._counter("job_cost_usd", "Price of the jobs' device time", *Account._fields)
        self._job_stage_seconds = self._counter("job_stage_seconds", "Jobs' time by stage", *Account._fields, "stage")
        self._load_seconds = self._counter("model_load_seconds", "Time spent loading", "model")
        self._loads = self._counter("model_loads", "Loads, well or not", "model", "outcome")
        self._evictions = self._counter("model_evictions", "Models that left memory", "model", "reason")
        self._decisions = self._counter("admission_decisions", "Admission verdicts", "model", "decision", "reason")

    def watch(self, read: Callable[[], Iterable[Gauge]]) -> None:
        """Report what `read` gives at each scrape."""
        self.registry.register(_Present(read))

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""
        return generate_latest(self.registry)

    def observe_request(self, surface: str, model: str, task: str, status: int, seconds: float, lane: Lane) -> None:
        """One HTTP request answered. `model`: a registry name or `unknown`."""
        self._requests.labels(surface, model, task, str(status)).inc()
        self._request_seconds.labels(surface, model, lane).observe(seconds)

    def observe_request_error(self, surface: str, reason: str) -> None:
        """One HTTP request ended in an error. `reason`: its code."""
        self._request_errors.labels(surface, reason).inc()

    def observe_render(self, model: str, seconds: float) -> None:
        """One answer was written out."""
        self._stage_seconds.labels(model, "render").observe(seconds)

    def observe_job(self, model: str, tenant: str, tokens: int, truncated: int, timings: Timings) -> None:
        """One job done."""
        self._input_tokens.labels(model, tenant).inc(tokens)
        if truncated:
            self._truncated.labels(model).inc(truncated)
        spent = (timings.prepare_ms, timings.queue_ms, timings.device_ms, timings.deliver_ms)
        for stage, milliseconds in zip(STAGES, spent, strict=True):
            self._stage_seconds.labels(model, stage).observe(milliseconds / 1000.0)

    def observe_candidates(self, model: str, outcome: str, documents: int) -> None:
        """Documents that a request wanted scored. `outcome`: `scored`, `truncated` (of these) or `capped`."""
        self._candidates.labels(model, outcome).inc(documents)

    def observe_cost(
        self, account: Account, stages_ms: Mapping[str, float], device_ms: float, cost_usd: float | None
    ) -> None:
        """One request's time by stage, its share of the device's time, and its price where there is one."""
        for stage, milliseconds in stages_ms.items():
            self._job_stage_seconds.labels(*account, stage).inc(milliseconds / 1000.0)
        self._job_device_seconds.labels(*account).inc(device_ms / 1000.0)
        if cost_usd is not None:
            self._job_cost_usd.labels(*account).inc(cost_usd)

    def observe_batch(self, model: str, lane: Lane, items: int, tokens: int, device_ms: float) -> None:
        """One batch run."""
        self._batch_tokens.labels(model, lane).observe(tokens)
        self._batch_items.labels(model, lane).inc(items)
        self._device_seconds.labels(model, lane).inc(device_ms / 1000.0)

    def observe_padding(self, model: str, lane: Lane, tokens: int) -> None:
        """Positions of one batch that were computed for nothing."""
        self._padding.labels(model, lane).inc(tokens)

    def observe_error(self, model: str, code: str) -> None:
        """One job failed."""
        self._errors.labels(model, code).inc()

    def observe_cancel(self, model: str) -> None:
        """One job's client hung up."""
        self._cancelled.labels(model).inc()

    def observe_load(self, model: str, seconds: float, outcome: str) -> None:
        """One load finished. `outcome`: `loaded`, `returned` (after an offload), `failed` or `no_room`."""
        self._load_seconds.labels(model).inc(seconds)
        self._loads.labels(model, outcome).inc()

    def observe_eviction(self, model: str, reason: str) -> None:
        """A model left memory. `reason`: `evicted`, `idle` or `asked`."""
        self._evictions.labels(model, reason).inc()

    def observe_decision(self, model: str, decision: str, reason: str) -> None:
        """One admission verdict."""
        self._decisions.labels(model, decision, reason).inc()

    def _counter(self, name: str, text: str, *labels: str) -> _Family[Counter]:
        return _Family(Counter(f"cotenant_{name}", text, labels, registry=self.registry))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> _Family[Histogram]:
        return _Family(Histogram(f"cotenant_{name}", text, labels, registry=self.registry, buckets=buckets))


class _Family(Generic[M]):
    """One metric's children at hand: the library's own look-up takes longer than what is then counted."""

    def __init__(self, metric: M) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], M] = {}

    def labels(self, *values: str) -> M:
        """The child with these label values."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = self._metric.labels(*values)
        return child


class _Present(Collector):
    """Gauges computed at scrape time."""

    def __init__(self, read: Callable[[], Iterable[Gauge]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """One family for each gauge."""
        for name, text, labels, samples in self._read():
            family = GaugeMetricFamily(f"cotenant_{name}", text, labels=labels)
            for values, value in samples:
                family.add_metric(values, value)
            yield family
