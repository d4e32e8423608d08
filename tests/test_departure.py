"""How models leave: drained first, by themselves after their idle time, offloaded where they can be; no trace stays."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from runtime.devices.base import Memory
from runtime.errors import NoRoomNow
from runtime.eviction import RELOADS_OF_RESIDENCE
from runtime.load_times import BYTES_PER_S
from tests.engines import assert_rows, job
from tests.residents import LOAD_S, residents, states

pytestmark = pytest.mark.anyio

MB = 2**20
ON_DEMAND = {"resident": "on_demand"}


async def test_unloading_answers_what_is_queued_first_and_the_next_request_loads_again() -> None:
    async with residents({"a": MB}) as (engine, backend, _):
        model = backend.resident["a"]
        model.gate = threading.Event()
        jobs = [asyncio.create_task(engine.run(job("a", f"t{i}"))) for i in range(5)]
        await asyncio.sleep(0.05)
        unloading = asyncio.create_task(engine.admin.unload("a"))
        await asyncio.sleep(0.05)
        assert states(engine) == {"a": "draining"}
        late = asyncio.create_task(engine.run(job("a", "late")))
        await asyncio.sleep(0.05)
        before = (unloading.done(), model.closed)
        model.gate.set()
        for index, result in enumerate(await asyncio.gather(*jobs)):
            assert_rows(result, [f"t{index}"])
        await unloading
        assert (before, model.closed) == ((False, False), True)
        assert_rows(await late, ["late"])
        assert backend.loads == ["a", "a"]


async def test_twenty_cycles_leave_the_books_as_they_were_and_no_model_behind() -> None:
    async with residents({"a": MB, "b": MB}) as (engine, backend, _):
        assert engine.admission is not None
        await engine.admin.unload("b")
        before = engine.admission.used_bytes()
        gone: list[weakref.ref[object]] = []
        for _ in range(20):
            await engine.admin.load("b")
            await engine.run(job("b", "x"))
            gone.append(weakref.ref(backend.resident["b"]))
            await engine.admin.unload("b")
            assert backend.resident.pop("b").closed
            assert engine.admission.used_bytes() == before
            assert_rows(await engine.run(job("a", "y")), ["y"])
        await asyncio.sleep(0)
        gc.collect()
        assert [each() for each in gone] == [None] * 20
        assert engine.describe()[1].loads == 21


async def test_an_idle_model_leaves_after_its_time_and_a_pinned_one_does_not() -> None:
    keys = {"idle_ttl_s": 0.05}
    async with residents({"a": MB, "b": MB}, keys=keys) as (engine, _, _):
        engine.admin.pin("b", True)
        while states(engine)["a"] != "unloaded":
            await asyncio.sleep(0.01)
        assert states(engine)["b"] == "ready"
        assert engine.ready
        assert_rows(await engine.run(job("a", "x")), ["x"])


async def test_an_evicted_model_that_can_be_offloaded_returns_without_a_load() -> None:
    async with residents({"a": MB, "b": MB}, budget_bytes=int(1.5 * MB), keys=ON_DEMAND) as (engine, backend, clock):
        backend.parkable = True
        for name in ("a", "b", "a"):
            assert_rows(await engine.run(job(name, "x")), ["x"])
            clock.pass_by(1_000)
        assert states(engine) == {"a": "ready", "b": "offloaded"}
        assert backend.loads == ["a", "b"]
        assert not backend.resident["a"].parked
        await engine.admin.unload("b")
        assert states(engine) == {"a": "ready", "b": "unloaded"}
        assert backend.resident["b"].closed


async def test_the_next_coming_is_timed_by_its_kind() -> None:
    async with residents({"a": MB, "b": MB}, budget_bytes=int(1.5 * MB), keys=ON_DEMAND) as (engine, backend, clock):
        backend.parkable = True
        worker = engine._router.by_id("a")
        for name in ("a", "b"):
            await engine.run(job(name, "x"))
            clock.pass_by(1_000)
        assert worker.load_s == MB / BYTES_PER_S, "it never returned: a guess"
        await engine.run(job("a", "x"))
        assert worker.load_times.latest_s == 0.0  # the clock stands still while a model returns
        await engine.admin.unload("a")
        assert worker.load_s == LOAD_S
        await engine.run(job("a", "x"))
        clock.pass_by(1_000)
        await engine.run(job("b", "x"))
        assert states(engine)["a"] == "offloaded"
        assert worker.load_s == 0.0


async def test_what_offloaded_models_keep_is_booked_and_gives_way() -> None:
    sizes, budget = {"a": MB, "b": MB, "large": int(1.2 * MB)}, int(1.5 * MB)
    async with residents(sizes, budget_bytes=budget, keys=ON_DEMAND) as (engine, backend, clock):
        backend.parkable, backend.host_bytes = True, MB // 5
        for name in ("a", "b", "a"):
            assert_rows(await engine.run(job(name, "x")), ["x"])
            clock.pass_by(1_000)
        assert states(engine) == {"a": "ready", "b": "offloaded", "large": "unloaded"}
        assert backend.loads == ["a", "b"]
        memory = engine.admin.memory()
        assert (memory.by_kind["host"], memory.by_model["b"]["host"]) == (2 * (MB // 5), MB // 5)
        assert memory.by_kind["booked"] <= budget
        await engine.run(job("large", "x"))
        assert states(engine) == {"a": "unloaded", "b": "unloaded", "large": "ready"}
        assert all(backend.resident[name].closed for name in "ab")
        assert engine.admin.memory().by_kind["host"] == MB // 5


async def test_a_model_is_let_go_whole_where_there_is_no_room_for_what_it_would_keep() -> None:
    async with residents({"a": MB, "b": MB}, budget_bytes=int(1.5 * MB), keys=ON_DEMAND) as (engine, backend, clock):
        backend.parkable, backend.host_bytes = True, MB // 3
        for name in ("a", "b"):
            assert_rows(await engine.run(job(name, "x")), ["x"])
            clock.pass_by(1_000)
        assert states(engine) == {"a": "unloaded", "b": "ready"}
        assert engine.admin.memory().by_kind["host"] == MB // 3


async def test_offloaded_models_are_let_go_where_the_device_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    async with residents({"a": MB, "b": MB, "c": MB}, keys=ON_DEMAND) as (engine, backend, clock):
        backend.parkable, backend.host_bytes = True, 1_000
        await engine.run(job("a", "x"))
        clock.pass_by(1_000)
        monkeypatch.setattr(backend.room, "memory", lambda: half_full(not backend.resident["a"].parked))
        await engine.run(job("b", "x"))
        assert states(engine)["a"] == "offloaded"
        short = Memory(total_bytes=10 * MB, free_bytes=MB, used_by_us_bytes=0)  # lacks what a keeps
        free = Memory(total_bytes=10 * MB, free_bytes=2 * MB, used_by_us_bytes=0)
        monkeypatch.setattr(backend.room, "memory", lambda: free if backend.resident["a"].closed else short)
        await engine.run(job("c", "x"))
        assert states(engine) == {"a": "unloaded", "b": "ready", "c": "ready"}


async def test_after_an_out_of_memory_idle_models_leave_and_busy_and_pinned_ones_stay() -> None:
    async with residents({"a": MB, "b": MB, "c": MB, "d": MB}) as (engine, backend, _):
        engine.admin.pin("c", True)
        backend.resident["d"].gate = threading.Event()
        running = asyncio.create_task(engine.run(job("d", "x")))
        await asyncio.sleep(0.05)
        residency = engine.admin.residency
        worker = engine._router.by_id("a")
        assert await asyncio.to_thread(residency.make_room, worker, 100)
        assert states(engine) == {"a": "ready", "b": "unloaded", "c": "ready", "d": "ready"}
        assert not await asyncio.to_thread(residency.make_room, worker, 100)
        assert [each.reason for each in engine.admin.decisions(2)] == ["nobody_idle", "evicting"]
        backend.resident["d"].gate.set()
        assert_rows(await running, ["x"])


async def test_an_idle_model_leaves_where_the_books_have_room_and_the_device_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with residents({"a": MB, "b": MB}, keys={"resident": "on_demand"}) as (engine, backend, clock):
        await engine.run(job("a", "x"))
        monkeypatch.setattr(backend.room, "memory", lambda: half_full(not backend.resident["a"].closed))
        with pytest.raises(NoRoomNow, match="the device has") as refusal:
            await engine.run(job("b", "x"))
        assert states(engine) == {"a": "ready", "b": "unloaded"}, "it has just come"
        assert refusal.value.retry_after_s == RELOADS_OF_RESIDENCE * LOAD_S
        clock.pass_by(1_000)
        assert_rows(await engine.run(job("b", "x")), ["x"])
        assert states(engine) == {"a": "unloaded", "b": "ready"}
        decisions = [each for each in engine.admin.decisions(10) if each.evicted]
        assert [(each.model, each.reason, each.evicted) for each in decisions] == [("b", "evicting", ("a",))]


def half_full(with_a: bool) -> Memory:
    """Free is what one model needs, less what the first one holds."""
    return Memory(total_bytes=10 * MB, free_bytes=2 * MB - MB * with_a - 1_000, used_by_us_bytes=0)
