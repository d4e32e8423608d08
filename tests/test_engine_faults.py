"""The engine when something goes wrong, on doubles: isolation, cancelling, draining, refusing; nothing hangs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from runtime.errors import (
    CotenantError,
    Draining,
    ExecutionError,
    ForwardFailed,
    ModelFailed,
    OutOfMemory,
    QueueFull,
)
from runtime.ticket import Ticket
from runtime.work import Lane, Result
from runtime.worker import in_short
from tests.doubles import StillDevice
from tests.engines import assert_rows, job, running, started

pytestmark = pytest.mark.anyio


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
        assert engine.describe()[0].max_batch_tokens == int(32 * 0.7)
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


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("the checkpoint is damaged", "the checkpoint is damaged"),
        ("no weights under /srv/models/a b", "no weights under … b"),
        ("can't open '/srv/models/x.bin': gone", "can't open '…': gone"),
        ("~/.cache/cotenant holds no folder 'x'", "… holds no folder 'x'"),
        ("C:\\models\\x is gone", "… is gone"),
        ("owner/name is not on this machine", "owner/name is not on this machine"),
        ("one line\nand /another", "one line"),
        ("x" * 1000, "x" * 200),
        ("", ""),
    ],
)
def test_a_reason_is_told_in_short_and_without_this_machine_s_paths(reason: str, told: str) -> None:
    assert in_short(reason) == told


async def test_a_model_that_cannot_load_fails_alone_and_says_why() -> None:
    async with running("broken", "good") as (engine, _):
        with pytest.raises(
            ModelFailed, match=r"^the model could not be loaded: ValueError: the files are torn; the server's log"
        ):
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
        assert [decision.verdict for decision in engine.admission.decisions] == ["admitted", "admitted", "refused"]


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
