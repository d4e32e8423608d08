"""The engine from Job to Result on doubles: order, isolation, cancelling, draining, refusing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from runtime.engine import Engine
from runtime.errors import (
    CotenantError,
    Draining,
    ExecutionError,
    ForwardFailed,
    ModelFailed,
    ModelNotFound,
    ModelRequired,
    OutOfMemory,
    QueueFull,
)
from runtime.registry import ModelSpec, RuntimeConfig, ServerSettings
from runtime.ticket import Ticket
from runtime.work import Job, Lane, Result, Task
from tests.doubles import CountingModel, DoubleBackend, StillDevice, vector

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(
    *ids: str, device: StillDevice | None = None, max_queue_ms: float = 30_000.0, drain_timeout_s: float = 10.0
) -> AsyncIterator[tuple[Engine, DoubleBackend]]:
    backend = DoubleBackend(device)
    config = RuntimeConfig(
        models=tuple(ModelSpec(id=name) for name in ids),
        max_queue_ms=max_queue_ms,
        server=ServerSettings(drain_timeout_s=drain_timeout_s),
    )
    engine = Engine(config, backend)
    await engine.start()
    await engine.wait_loaded()
    for model in backend.models.values():
        model.batches.clear()
        model.started = threading.Semaphore(0)
    try:
        yield engine, backend
    finally:
        await engine.stop()


def job(model: str, *texts: str, lane: Lane = Lane.ONLINE) -> Job:
    return Job(id="job", model=model, task=Task.EMBED, inputs=list(texts), lane=lane)


async def started(model: CountingModel, batches: int = 1) -> None:
    for _ in range(batches):
        assert await asyncio.to_thread(model.started.acquire, timeout=10)


def assert_rows(result: Result, texts: Sequence[str]) -> None:
    assert len(result.rows) == len(texts)
    for row, text in zip(result.rows, texts, strict=True):
        np.testing.assert_array_equal(row, vector(text))


async def test_rows_come_back_in_the_order_of_the_inputs_across_many_batches() -> None:
    texts = [chr(97 + i % 26) * (1 + i % 13) for i in range(200)]
    async with running("a") as (engine, backend):
        result = await engine.run(job("a", *texts))
        assert_rows(result, texts)
        assert result.tokens == sum(map(len, texts))
        assert len(backend.models["a"].batches) > 10


async def test_concurrent_jobs_of_two_models_get_their_own_rows() -> None:
    async with running("a", "b", device=StillDevice(lanes=2, spare_lanes=1)) as (engine, _):
        jobs = [job("ab"[i % 2], *[f"{i}-{k}" for k in range(i % 7 + 1)]) for i in range(100)]
        results = await asyncio.gather(*map(engine.run, jobs))
        for each, result in zip(jobs, results, strict=True):
            assert_rows(result, [str(text) for text in each.inputs])


async def test_no_batch_is_larger_than_the_budget_unless_it_is_one_input() -> None:
    texts = ["x" * length for length in (5, 40, 30, 2, 2, 33, 31, 1)]
    async with running("a") as (engine, backend):
        await engine.run(job("a", *texts))
        for batch in backend.models["a"].batches:
            assert sum(map(len, batch)) <= 32 or len(batch) == 1


async def test_a_batch_forms_while_the_device_works() -> None:
    async with running("a") as (engine, backend):
        model = backend.models["a"]
        model.gate = threading.Event()
        first = asyncio.create_task(engine.run(job("a", "first")))
        await started(model)
        rest = [asyncio.create_task(engine.run(job("a", f"q{i}"))) for i in range(10)]
        await asyncio.sleep(0.05)
        model.gate.set()
        await asyncio.gather(first, *rest)
        assert model.batches == [["first"], [f"q{i}" for i in range(10)]]


async def test_only_the_poisoned_input_fails_and_the_error_names_its_index() -> None:
    async with running("a") as (engine, backend):
        model = backend.models["a"]
        model.fail_on = lambda texts: ValueError("boom") if "poison" in texts else None
        model.gate = threading.Event()
        blocker = asyncio.create_task(engine.run(job("a", "z")))
        await started(model)
        good = [asyncio.create_task(engine.run(job("a", f"g{i}"))) for i in range(5)]
        bad = asyncio.create_task(engine.run(job("a", "ok", "poison")))
        await asyncio.sleep(0.05)
        model.gate.set()
        await asyncio.gather(blocker, *good)
        with pytest.raises(ForwardFailed, match=r"input 1 \(ValueError\)"):
            await bad
        assert engine.describe()[0].state == "unwell"
        await engine.run(job("a", "fine"))
        assert engine.describe()[0].state == "ready"


async def test_a_model_that_always_raises_fails_fast_and_its_neighbour_serves_on() -> None:
    async with running("bad", "good") as (engine, backend):
        backend.models["bad"].fail_on = lambda texts: RuntimeError("always")
        answers = await asyncio.gather(
            *[engine.run(job("bad", *["t"] * 20)) for _ in range(20)],
            *[engine.run(job("good", "t")) for _ in range(20)],
            return_exceptions=True,
        )
        assert all(isinstance(answer, ForwardFailed) for answer in answers[:20])
        assert all(isinstance(answer, Result) for answer in answers[20:])
        assert [status.state for status in engine.describe()] == ["unwell", "ready"]
        assert not engine.ready


async def test_out_of_memory_splits_the_batch_and_lowers_the_ceiling() -> None:
    device = StillDevice()
    async with running("a", device=device) as (engine, backend):
        model = backend.models["a"]
        model.fail_on = lambda texts: MemoryError() if sum(map(len, texts)) > 12 else None
        texts = ["abcd"] * 8
        assert_rows(await engine.run(job("a", *texts)), texts)
        assert device.released > 0
        assert engine.describe()[0].max_batch_tokens == int(32 * 0.7**3)
        with pytest.raises(OutOfMemory):
            await engine.run(job("a", "x" * 20))


async def test_a_hung_up_client_costs_the_device_nothing_more() -> None:
    async with running("a") as (engine, backend):
        model = backend.models["a"]
        model.gate = threading.Event()
        first = asyncio.create_task(engine.run(job("a", "first")))
        await started(model)
        leavers = [asyncio.create_task(engine.run(job("a", f"leaver{i}"))) for i in range(50)]
        await asyncio.sleep(0.05)
        assert engine.describe()[0].queue_items[Lane.ONLINE] == 50
        for leaver in leavers:
            leaver.cancel()
        await asyncio.gather(*leavers, return_exceptions=True)
        assert engine.describe()[0].queue_items[Lane.ONLINE] == 0
        assert engine.describe()[0].queue_tokens[Lane.ONLINE] == 0
        model.gate.set()
        await first
        assert_rows(await engine.run(job("a", "next")), ["next"])
        assert model.batches == [["first"], ["next"]]
        assert b'cotenant_jobs_cancelled_total{model="a"} 50.0' in engine.metering.render()


async def test_a_full_queue_refuses_with_the_predicted_wait_and_recovers() -> None:
    async with running("a", max_queue_ms=50.0) as (engine, backend):
        model = backend.models["a"]
        model.gate = threading.Event()
        worker = engine._router.by_id("a")
        worker.cost.ms_per_token = 1.0
        first = asyncio.create_task(engine.run(job("a", "first")))
        await started(model)
        long_job = asyncio.create_task(engine.run(job("a", *["x" * 20] * 5)))
        await asyncio.sleep(0.05)
        for inputs in (["x"], ["x", "y"]):
            with pytest.raises(QueueFull) as refusal:
                await engine.run(job("a", *inputs))
            assert refusal.value.retry_after_s is not None
        model.gate.set()
        await asyncio.gather(first, long_job)
        assert_rows(await engine.run(job("a", "later")), ["later"])


async def test_draining_finishes_what_is_in_flight_and_refuses_the_rest() -> None:
    async with running("a") as (engine, backend):
        model = backend.models["a"]
        model.gate = threading.Event()
        jobs = [asyncio.create_task(engine.run(job("a", f"t{i}"))) for i in range(16)]
        await started(model)
        before = engine.ready
        engine.begin_drain()
        assert (before, engine.ready) == (True, False)
        with pytest.raises(Draining):
            await engine.run(job("a", "late"))
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0.05)
        model.gate.set()
        await stopping
        for index, result in enumerate(await asyncio.gather(*jobs)):
            assert_rows(result, [f"t{index}"])


async def test_every_future_completes_when_the_drain_time_runs_out() -> None:
    async with running("a", drain_timeout_s=0.1) as (engine, backend):
        model = backend.models["a"]
        model.gate = threading.Event()
        jobs = [asyncio.create_task(engine.run(job("a", f"t{i}"))) for i in range(4)]
        await started(model)
        stopping = asyncio.create_task(engine.stop())
        answers = await asyncio.gather(*jobs, return_exceptions=True)
        assert all(isinstance(answer, Draining) for answer in answers)
        model.gate.set()
        await stopping


async def test_bulk_work_never_takes_the_lane_that_is_kept_for_people() -> None:
    async with running("a", device=StillDevice(lanes=1, spare_lanes=1)) as (engine, backend):
        model = backend.models["a"]
        model.gate = threading.Event()
        bulk = [asyncio.create_task(engine.run(job("a", "b" * 32, lane=Lane.BULK))) for _ in range(3)]
        await started(model)
        query = asyncio.create_task(engine.run(job("a", "query")))
        await started(model)
        assert model.batches == [["b" * 32], ["query"]]
        model.gate.set()
        await asyncio.gather(*bulk, query)


async def test_two_flights_launch_the_next_batch_before_the_first_has_landed() -> None:
    async with running("a", device=StillDevice(flights=2)) as (engine, backend):
        texts = ["x" * 32 for _ in range(6)]
        assert_rows(await engine.run(job("a", *texts)), texts)
        assert len(backend.models["a"].batches) == 6


async def test_a_model_that_cannot_load_fails_alone_and_says_why() -> None:
    async with running("broken", "good") as (engine, _):
        with pytest.raises(ModelFailed, match="could not be loaded"):
            await engine.run(job("broken", "t"))
        assert_rows(await engine.run(job("good", "t")), ["t"])
        assert not engine.ready


async def test_a_model_beyond_the_memory_budget_is_refused_with_the_bytes() -> None:
    async with running("small", "huge") as (engine, _):
        status = engine.describe()[1]
        assert status.state == "failed"
        assert status.detail is not None
        assert "needs 2,000," in status.detail
        assert "bytes are free" in status.detail
        assert_rows(await engine.run(job("small", "t")), ["t"])
        assert engine.admission is not None
        assert [decision.verdict for decision in engine.admission.decisions] == ["admitted", "refused"]


async def test_names_resolve_to_exactly_one_model_or_to_an_error_that_lists_them() -> None:
    async with running("org/a", "b") as (engine, _):
        assert engine.resolve("A", Task.EMBED).id == "org/a"
        with pytest.raises(ModelNotFound, match="org/a, b"):
            engine.resolve("nope", Task.EMBED)
        with pytest.raises(ModelRequired, match="org/a, b"):
            engine.resolve(None, Task.EMBED)


async def test_metrics_show_both_queues_and_every_state() -> None:
    async with running("a", "broken") as (engine, _):
        await engine.run(job("a", "text"))
        text = engine.metering.render().decode()
        for line in (
            'cotenant_queue_tokens{lane="online",model="a"} 0.0',
            'cotenant_queue_tokens{lane="bulk",model="broken"} 0.0',
            'cotenant_model_state{model="broken",state="failed"} 1.0',
            'cotenant_input_tokens_total{model="a",tenant="default"} 4.0',
        ):
            assert line in text


async def test_errors_are_counted_by_code() -> None:
    async with running("a") as (engine, backend):
        backend.models["a"].fail_on = lambda texts: ValueError("x")
        for _ in range(3):
            with pytest.raises(CotenantError):
                await engine.run(job("a", "t"))
        assert b'cotenant_job_errors_total{code="forward_failed",model="a"} 3.0' in engine.metering.render()


async def test_a_batch_of_no_tokens_at_all_is_answered_too() -> None:
    async with running("a") as (engine, _):
        assert_rows(await asyncio.wait_for(engine.run(job("a", "")), 10), [""])


async def test_a_job_whose_batch_cannot_be_delivered_fails_and_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("a") as (engine, _):
        with monkeypatch.context() as staged:
            staged.setattr(Ticket, "ran", None)
            with pytest.raises(ExecutionError, match="delivered"):
                await asyncio.wait_for(engine.run(job("a", "x", "y")), 10)
        assert_rows(await engine.run(job("a", "x")), ["x"])
