"""Residency on doubles: on demand, waiting for a load, eviction by value, hysteresis, drains, failures."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref

import pytest

from runtime.errors import DoesNotFit, Draining, ModelFailed, ModelLoading, NoRoomNow, PinnedOut
from runtime.work import Lane
from tests.engines import assert_rows, job
from tests.residents import LOAD_S, residents, states

pytestmark = pytest.mark.anyio

MB = 2**20
ON_DEMAND = {"resident": "on_demand"}


async def test_a_model_on_demand_is_loaded_by_the_first_request_and_stays() -> None:
    async with residents({"a": MB}, keys=ON_DEMAND) as (engine, backend, _):
        assert states(engine) == {"a": "unloaded"}
        assert engine.ready
        assert_rows(await engine.run(job("a", "x")), ["x"])
        assert_rows(await engine.run(job("a", "y")), ["y"])
        assert backend.loads == ["a"]
        assert states(engine) == {"a": "ready"}


async def test_fifty_requests_for_one_model_on_its_way_cost_one_load() -> None:
    async with residents({"a": MB, "b": MB}, keys=ON_DEMAND) as (engine, backend, _):
        backend.gate = threading.Event()
        jobs = [asyncio.create_task(engine.run(job("a", f"t{i}"))) for i in range(50)]
        assert await asyncio.to_thread(backend.load_begun.acquire, timeout=10)
        assert engine.describe()[0].waiting_for_load == 50
        backend.gate.set()
        for index, result in enumerate(await asyncio.gather(*jobs)):
            assert_rows(result, [f"t{index}"])
        assert backend.loads == ["a"]
        assert engine.describe()[0].waiting_for_load == 0


async def test_a_ready_model_serves_while_another_loads() -> None:
    async with residents({"a": MB, "b": MB}, keys=ON_DEMAND) as (engine, backend, _):
        await engine.run(job("a", "x"))
        backend.gate = threading.Event()
        waiting = asyncio.create_task(engine.run(job("b", "y")))
        await asyncio.sleep(0)
        for _ in range(10):
            assert_rows(await engine.run(job("a", "z")), ["z"])
        assert not waiting.done()
        backend.gate.set()
        assert_rows(await waiting, ["y"])


async def test_one_load_at_a_time_in_the_order_of_asking() -> None:
    async with residents({"a": MB, "b": MB, "c": MB}, keys=ON_DEMAND) as (engine, backend, _):
        backend.gate = threading.Event()
        jobs = [asyncio.create_task(engine.run(job(name, "x"))) for name in "cab"]
        assert await asyncio.to_thread(backend.load_begun.acquire, timeout=10)
        assert backend.loads == ["c"]
        backend.gate.set()
        await asyncio.gather(*jobs)
        assert backend.loads == ["c", "a", "b"]


async def test_who_would_wait_too_long_is_told_when_to_come_back_and_the_load_goes_on() -> None:
    async with residents({"a": MB}, keys=ON_DEMAND, load_wait_s=0.5) as (engine, backend, _):
        with pytest.raises(ModelLoading) as refusal:
            await engine.run(job("a", "x"))
        assert refusal.value.retry_after_s == pytest.approx(5.0, abs=0.5)
        while states(engine)["a"] != "ready":
            await asyncio.sleep(0.01)
        assert_rows(await engine.run(job("a", "x")), ["x"])
        assert backend.loads == ["a"]


async def test_the_expected_time_counts_the_loads_ahead() -> None:
    async with residents({"a": MB, "b": MB}, keys=ON_DEMAND, load_wait_s=7.0) as (engine, backend, _):
        backend.gate = threading.Event()
        first = asyncio.create_task(engine.run(job("a", "x")))
        assert await asyncio.to_thread(backend.load_begun.acquire, timeout=10)
        with pytest.raises(ModelLoading) as refusal:
            await engine.run(job("b", "x"))
        assert refusal.value.retry_after_s == pytest.approx(10.0, abs=0.5)
        backend.gate.set()
        await first


async def test_models_that_fit_together_are_loaded_once_each_whatever_the_traffic() -> None:
    async with residents({"a": MB, "b": MB}, keys=ON_DEMAND, min_residence_s=0) as (engine, backend, clock):
        for index in range(100):
            clock.pass_by(1_000)
            assert_rows(await engine.run(job("ab"[index % 2], "x")), ["x"])
        assert backend.loads == ["a", "b"]


async def test_with_room_for_one_alternating_requests_swap_once_for_each_residence() -> None:
    budget = int(1.5 * MB)
    async with residents({"a": MB, "b": MB}, budget_bytes=budget, keys=ON_DEMAND) as (engine, backend, clock):
        residence_s = 20 * LOAD_S
        began_s = clock.now_s()
        answered = 0
        waits_s: list[float] = []
        for index in range(400):
            clock.pass_by(0.5)
            try:
                assert_rows(await engine.run(job("ab"[index % 2], "x")), ["x"])
                answered += 1
            except NoRoomNow as error:
                waits_s.append(error.retry_after_s or 0.0)
        assert answered >= 200
        assert waits_s
        assert min(waits_s) >= 1.0
        assert max(waits_s) <= residence_s
        assert len(backend.loads) <= 1 + (clock.now_s() - began_s) / residence_s


async def test_the_least_worth_a_byte_leaves_first_and_a_pinned_one_never() -> None:
    sizes = {"dear": MB, "cheap": MB, "pinned": MB, "new": MB}
    budget = int(3.5 * MB)
    async with residents(sizes, budget_bytes=budget, keys=ON_DEMAND, min_residence_s=0) as (engine, backend, clock):
        engine.admin.pin("pinned", True)
        for name, requests in {"pinned": 1, "dear": 30, "cheap": 3}.items():
            for _ in range(requests):
                await engine.run(job(name, "x"))
        clock.pass_by(1_000)
        await engine.run(job("new", "x"))
        assert states(engine) == {"dear": "ready", "cheap": "unloaded", "pinned": "ready", "new": "ready"}
        assert backend.resident["cheap"].closed
        decision = next(each for each in engine.admin.decisions(10) if each.question == "load")
        assert (decision.model, decision.verdict, decision.evicted) == ("new", "admitted", ("cheap",))
        assert [status.evictions for status in engine.describe()] == [0, 1, 0, 0]


async def test_a_model_in_use_is_kept_from_a_lesser_one_unless_an_operator_wants_that() -> None:
    budget = int(1.5 * MB)
    async with residents({"a": MB, "b": MB}, budget_bytes=budget, keys=ON_DEMAND) as (engine, backend, clock):
        for _ in range(20):
            await engine.run(job("a", "x"))
            clock.pass_by(5.0)
        for _ in range(3):
            with pytest.raises(NoRoomNow) as refusal:
                await engine.run(job("b", "x"))
            assert 0 < (refusal.value.retry_after_s or 0.0) <= 20 * LOAD_S
        assert_rows(await engine.run(job("a", "x")), ["x"])
        assert backend.loads == ["a"]
        assert (await engine.admin.load("b")).state == "ready"
        assert backend.loads == ["a", "b"]
        assert states(engine) == {"a": "unloaded", "b": "ready"}


async def test_a_model_whose_one_input_takes_too_long_is_named_when_it_is_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "runtime.residency")
    async with residents({"a": MB, "slow": MB}, keys={**ON_DEMAND, "slo_ms": 50.0}) as (engine, backend, _):
        await engine.run(job("a", "x"))
        assert "endangers" not in caplog.text
        backend.batch_s = 0.08
        await engine.run(job("slow", "x"))
    assert "slow: one input takes 80.0 ms" in caplog.text
    assert "the objective of a (50 ms)" in caplog.text


async def test_a_model_with_work_in_flight_is_never_evicted() -> None:
    budget = int(1.5 * MB)
    async with residents({"a": MB, "b": MB}, budget_bytes=budget, keys=ON_DEMAND) as (engine, backend, clock):
        await engine.run(job("a", "x"))
        model = backend.resident["a"]
        model.gate = threading.Event()
        running = asyncio.create_task(engine.run(job("a", "long", lane=Lane.BULK)))
        await asyncio.sleep(0.05)
        clock.pass_by(1_000)
        with pytest.raises(NoRoomNow):
            await engine.run(job("b", "x"))
        assert not model.closed
        model.gate.set()
        assert_rows(await running, ["long"])
        assert_rows(await engine.run(job("b", "x")), ["x"])
        assert model.closed


async def test_budgets_shrink_before_anybody_leaves_and_grow_back() -> None:
    budget = 100 + 2 * 1_000 + 20
    async with residents({"a": 1_000, "b": 1_000}, budget_bytes=2**20, keys=ON_DEMAND) as (engine, _, _):
        assert engine.admission is not None
        ledger = engine.admission.ledger
        engine.admission.ledger = type(ledger)(limit_bytes=budget, base_bytes=ledger.base_bytes, lanes=ledger.lanes)
        await engine.run(job("a", "x"))
        assert engine.describe()[0].max_batch_tokens == 32
        await engine.run(job("b", "x"))
        shrunk = [status.max_batch_tokens for status in engine.describe()]
        assert shrunk == [17, 17]
        assert states(engine) == {"a": "ready", "b": "ready"}
        assert engine.admission.used_bytes() <= budget
        await engine.admin.unload("b")
        assert engine.describe()[0].max_batch_tokens == 32
        verdicts = [(each.model, each.verdict) for each in engine.admin.decisions(10) if each.question == "batch"]
        assert verdicts[0] == ("a", "grown")
        assert ("a", "shrunk") in verdicts


async def test_a_model_that_can_never_fit_is_refused_with_both_figures_and_disturbs_nobody() -> None:
    async with residents({"a": MB, "huge": 9 * MB}, budget_bytes=3 * MB, keys=ON_DEMAND) as (engine, backend, clock):
        await engine.run(job("a", "x"))
        clock.pass_by(1_000)
        for _ in range(2):
            with pytest.raises(DoesNotFit, match=r"needs 9,[\d,]+ bytes .*; 3,[\d,]+ bytes are free"):
                await engine.run(job("huge", "x"))
        assert_rows(await engine.run(job("a", "x")), ["x"])
        assert backend.loads == ["a"]


@pytest.mark.parametrize("way", ["unpin", "unload", "reconfigure"])
async def test_beside_a_pinned_one_a_model_waits_for_an_operator(way: str) -> None:
    async with residents({"a": MB, "b": MB}, budget_bytes=int(1.5 * MB), keys=ON_DEMAND) as (engine, backend, clock):
        engine.admin.pin("a", True)
        await engine.run(job("a", "x"))
        clock.pass_by(1_000)
        for _ in range(2):
            with pytest.raises(PinnedOut, match=r"needs 1,[\d,]+ bytes .*; 52\d,[\d]+ bytes are free .* pinned: a$"):
                await engine.run(job("b", "x"))
        assert states(engine) == {"a": "ready", "b": "unloaded"}
        assert engine.ready
        if way == "unpin":
            engine.admin.pin("a", False)
        elif way == "unload":
            await engine.admin.unload("a")
        else:
            await engine.reconfigure(engine.config.model_copy(update={"models": engine.config.models[1:]}))
        assert_rows(await engine.run(job("b", "x")), ["x"])
        assert backend.loads == ["a", "b"]


async def test_at_the_start_nobody_is_evicted_and_the_one_without_room_comes_on_demand() -> None:
    async with residents({"a": MB, "b": MB}, budget_bytes=int(1.5 * MB)) as (engine, _, clock):
        assert states(engine) == {"a": "ready", "b": "unloaded"}
        assert engine.ready
        clock.pass_by(1_000)
        assert_rows(await engine.run(job("b", "x")), ["x"])
        assert states(engine) == {"a": "unloaded", "b": "ready"}


async def test_a_failed_load_leaves_nothing_behind_and_can_be_tried_again() -> None:
    async with residents({"a": MB, "b": MB}, keys=ON_DEMAND) as (engine, backend, _):
        assert engine.admission is not None
        await engine.run(job("b", "x"))
        before = engine.admission.used_bytes()
        backend.failure = ValueError("torn")
        with pytest.raises(ModelFailed):
            await engine.run(job("a", "x"))
        assert engine.admission.used_bytes() == before
        assert engine.describe()[0].last_error == "ValueError: torn"
        backend.failure = None
        with pytest.raises(ModelFailed):
            await engine.run(job("a", "x"))
        assert (await engine.admin.load("a")).state == "ready"
        assert_rows(await engine.run(job("a", "x")), ["x"])


async def test_a_model_whose_warm_up_fails_is_closed_and_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async with residents({"a": MB}, keys=ON_DEMAND) as (engine, backend, _):
        caplog.set_level(logging.CRITICAL, "runtime.residency")  # a captured record would keep the traceback
        backend.warm_up_failure = ValueError("warm-up")
        with pytest.raises(ModelFailed):
            await engine.run(job("a", "x"))
        model = backend.resident.pop("a")
        assert model.closed
        gone = [weakref.ref(model)]
        del model
        backend.warm_up_failure = None
        gc.collect()
        assert [each() for each in gone] == [None]


async def test_what_the_driver_says_is_free_counts_beside_the_books() -> None:
    async with residents({"a": MB}, keys=ON_DEMAND) as (engine, backend, _):
        backend.room.free_bytes = 1_000
        with pytest.raises(NoRoomNow, match="the device has 1,000 bytes free"):
            await engine.run(job("a", "x"))
        assert engine.admin.decisions(1)[0].reason == "device_full"
        backend.room.free_bytes = 10 * MB
        assert_rows(await engine.run(job("a", "x")), ["x"])


async def test_whoever_waits_for_a_load_is_told_when_the_server_stops() -> None:
    async with residents({"a": MB}, keys=ON_DEMAND) as (engine, backend, _):
        backend.gate = threading.Event()
        waiting = asyncio.create_task(engine.run(job("a", "x")))
        assert await asyncio.to_thread(backend.load_begun.acquire, timeout=10)
        await engine.stop()
        with pytest.raises(Draining):
            await waiting
