"""What was observed stands in the metrics under bounded labels; gauges tell the moment of the scrape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.metering import STAGES, Account, Gauge, Metering
from runtime.work import Lane, Timings


def samples(metering: Metering) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a scrape, as a Prometheus server reads it."""
    families = text_string_to_metric_families(metering.render().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metering: Metering, name: str, **labels: str) -> float | None:
    return samples(metering).get((f"cotenant_{name}", frozenset(labels.items())))


def test_nothing_is_counted_before_anything_happens() -> None:
    shown = {name for name, _ in samples(Metering())}
    assert {name for name in shown if not name.startswith("process_")} == {"cotenant_build_info"}


def test_the_process_itself_has_the_metrics_of_every_prometheus_client() -> None:
    shown = samples(Metering())
    assert 0 < shown["process_open_fds", frozenset()] < shown["process_max_fds", frozenset()]
    assert shown["process_resident_memory_bytes", frozenset()] > 0


def test_a_request_is_counted_by_its_status_and_timed() -> None:
    metering = Metering()
    metering.observe_request("openai", "m", "embed", 200, 0.004, Lane.ONLINE)
    metering.observe_request("openai", "m", "embed", 200, 0.5, Lane.BULK)
    metering.observe_request("openai", "m", "embed", 429, 0.001, Lane.ONLINE)
    metering.observe_request_error("openai", "queue_full")
    assert value(metering, "requests_total", surface="openai", model="m", task="embed", code="200") == 2
    assert value(metering, "requests_total", surface="openai", model="m", task="embed", code="429") == 1
    assert value(metering, "request_errors_total", surface="openai", reason="queue_full") == 1
    online = {"surface": "openai", "model": "m", "lane": "online"}
    assert value(metering, "request_duration_seconds_count", **online) == 2
    assert value(metering, "request_duration_seconds_bucket", le="0.005", **online) == 2
    assert value(metering, "request_duration_seconds_sum", **{**online, "lane": "bulk"}) == 0.5


def test_a_jobs_stages_are_told_apart_and_in_seconds() -> None:
    metering = Metering()
    timings = Timings(prepare_ms=1.0, queue_ms=20.0, device_ms=300.0, deliver_ms=4.0, total_ms=325.0)
    metering.observe_job("m", "team", tokens=17, truncated=0, timings=timings)
    spent = [value(metering, "stage_duration_seconds_sum", model="m", stage=stage) for stage in STAGES]
    assert spent == pytest.approx([0.001, 0.02, 0.3, 0.004])
    assert value(metering, "input_tokens_total", model="m", tenant="team") == 17


def test_cut_inputs_are_counted_when_there_are_any() -> None:
    metering = Metering()
    metering.observe_job("m", "default", tokens=1, truncated=0, timings=Timings())
    assert value(metering, "truncated_inputs_total", model="m") is None
    metering.observe_job("m", "default", tokens=1, truncated=3, timings=Timings())
    assert value(metering, "truncated_inputs_total", model="m") == 3


def test_batches_are_counted_by_lane_in_inputs_tokens_and_device_seconds() -> None:
    metering = Metering()
    metering.observe_batch("m", Lane.BULK, items=4, tokens=100, device_ms=250.0)
    metering.observe_batch("m", Lane.BULK, items=2, tokens=20, device_ms=50.0)
    metering.observe_batch("m", Lane.ONLINE, items=1, tokens=8, device_ms=10.0)
    metering.observe_padding("m", Lane.BULK, 0)
    metering.observe_padding("m", Lane.BULK, 7)
    assert value(metering, "padding_tokens_total", model="m", lane="bulk") == 7
    assert value(metering, "batch_items_total", model="m", lane="bulk") == 6
    assert value(metering, "batch_tokens_sum", model="m", lane="bulk") == 120
    assert value(metering, "batch_tokens_bucket", model="m", lane="bulk", le="64.0") == 1
    assert value(metering, "device_seconds_total", model="m", lane="bulk") == pytest.approx(0.3)
    assert value(metering, "device_seconds_total", model="m", lane="online") == pytest.approx(0.01)


def test_failures_hang_ups_loads_and_verdicts_have_counters_of_their_own() -> None:
    metering = Metering()
    metering.observe_error("m", "queue_full")
    metering.observe_cancel("m")
    metering.observe_load("m", 1.5, "loaded")
    metering.observe_load("m", 2.0, "failed")
    metering.observe_decision("m", "refused", "over_budget")
    assert value(metering, "job_errors_total", model="m", code="queue_full") == 1
    assert value(metering, "jobs_cancelled_total", model="m") == 1
    assert value(metering, "model_load_seconds_total", model="m") == pytest.approx(3.5)
    assert value(metering, "admission_decisions_total", model="m", decision="refused", reason="over_budget") == 1


def test_gauges_are_read_anew_at_each_scrape() -> None:
    metering, waiting = Metering(), [3.0]

    def present() -> Iterator[Gauge]:
        yield "queue_items", "Inputs that wait", ("model", "lane"), [(("m", Lane.ONLINE), waiting[0])]
        yield "empty", "Nothing yet", ("model",), []

    metering.watch(present)
    assert value(metering, "queue_items", model="m", lane="online") == 3
    waiting[0] = 5.0
    assert value(metering, "queue_items", model="m", lane="online") == 5


def test_two_engines_in_one_process_count_apart() -> None:
    one, other = Metering(), Metering()
    one.observe_cancel("m")
    assert value(one, "jobs_cancelled_total", model="m") == 1
    assert value(other, "jobs_cancelled_total", model="m") is None


def test_a_model_name_with_quotes_and_line_breaks_is_read_back_whole() -> None:
    metering = Metering()
    name = 'my "model"\\ \n v2'
    metering.observe_cancel(name)
    assert value(metering, "jobs_cancelled_total", model=name) == 1


def test_candidates_are_counted_by_what_became_of_them() -> None:
    metering = Metering()
    metering.observe_candidates("m", "scored", 50)
    metering.observe_candidates("m", "scored", 10)
    metering.observe_candidates("m", "capped", 1001)
    assert value(metering, "rerank_candidates_total", model="m", outcome="scored") == 60
    assert value(metering, "rerank_candidates_total", model="m", outcome="capped") == 1001


def test_device_time_is_charged_by_account_and_priced_where_there_is_a_price() -> None:
    metering = Metering()
    team, other = (Account("m", "rerank", "bulk", tenant) for tenant in ("team", "other"))
    metering.observe_cost(team, {"queue": 100.0, "device": 300.0}, device_ms=250.0, cost_usd=None)
    assert value(metering, "job_device_seconds_total", **team._asdict()) == pytest.approx(0.25)
    assert value(metering, "job_stage_seconds_total", stage="device", **team._asdict()) == pytest.approx(0.3)
    assert value(metering, "job_cost_usd_total", **team._asdict()) is None
    metering.observe_cost(team, {"queue": 100.0}, device_ms=250.0, cost_usd=0.5)
    metering.observe_cost(other, {"queue": 7.0}, device_ms=1.0, cost_usd=0.25)
    assert value(metering, "job_device_seconds_total", **team._asdict()) == pytest.approx(0.5)
    assert value(metering, "job_stage_seconds_total", stage="queue", **team._asdict()) == pytest.approx(0.2)
    assert value(metering, "job_cost_usd_total", **team._asdict()) == pytest.approx(0.5)
    assert value(metering, "job_cost_usd_total", **other._asdict()) == pytest.approx(0.25)
