"""The engine from Job to Result on doubles: order, batches, lanes, names, metrics."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from runtime.errors import (
    DeadlineExceeded,
    Draining,
    ModelFailed,
    ModelNotFound,
    ModelRequired,
    UnsupportedCapability,
)
from runtime.work import Lane, Task
from tests.doubles import StillDevice
from tests.engines import assert_rows, job, running, started
from tests.fakes import FakeVocabulary

pytestmark = pytest.mark.anyio


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


async def test_about_to_drain_bulk_is_refused_and_online_is_not() -> None:
    async with running("a") as (engine, _):
        engine.begin_retire()
        assert not engine.ready
        assert_rows(await engine.run(job("a", "one")), ["one"])
        with pytest.raises(Draining):
            await engine.run(job("a", "two", lane=Lane.BULK))
        engine.begin_drain()
        with pytest.raises(Draining):
            await engine.run(job("a", "three"))


async def test_how_long_a_model_has_been_idle_is_known_after_its_first_batch() -> None:
    async with running("a", "b") as (engine, _):
        await engine.run(job("a", "one"))
        used, unused = engine.describe()
        assert used.idle_s is not None
        assert used.idle_s >= 0
        assert unused.idle_s is None


async def test_a_model_s_tokenizer_can_be_asked_until_the_server_drains() -> None:
    async with running("a", "b") as (engine, backend):
        backend.models["b"].words = FakeVocabulary()
        assert await engine.consult("b", lambda vocabulary: vocabulary.detokenize([104, 105])) == "hi"
        with pytest.raises(UnsupportedCapability):
            await engine.consult("a", lambda vocabulary: None)
        assert engine.describe()[0].queue_items[Lane.ONLINE] == 0
        engine.begin_drain()
        with pytest.raises(Draining):
            await engine.consult("b", lambda vocabulary: None)


async def test_a_tokenizer_s_answer_comes_by_the_deadline_or_not_at_all() -> None:
    async with running("a") as (engine, backend):
        backend.models["a"].words = FakeVocabulary()
        now_s = time.perf_counter()
        assert await engine.consult("a", lambda vocabulary: vocabulary.detokenize([104]), now_s + 60.0) == "h"
        with pytest.raises(DeadlineExceeded):
            await engine.consult("a", lambda vocabulary: None, now_s)
        released = threading.Event()
        with pytest.raises(DeadlineExceeded):
            await engine.consult("a", lambda vocabulary: released.wait(30), time.perf_counter() + 0.01)
        released.set()
        assert await engine.consult("a", lambda vocabulary: vocabulary.detokenize([105])) == "i"


async def test_a_model_that_could_not_be_loaded_has_no_tokenizer_to_ask() -> None:
    async with running("a", "broken") as (engine, _):
        with pytest.raises(ModelFailed):
            await engine.consult("broken", lambda vocabulary: None)
