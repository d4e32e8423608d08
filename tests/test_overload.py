"""Deadlines and full queues in virtual time: refused at once, dropped before the device, and well again right after."""

from __future__ import annotations

import asyncio

import pytest

from runtime.devices.base import Concurrency
from runtime.errors import DeadlineExceeded, DoesNotFit, QueueFull
from runtime.work import Lane, Result
from tests.virtual import Stage, job, outcome, play, spec

LONG = 5_000
"""Tokens of an input that takes half a second."""


async def behind_a_long_batch(stage: Stage) -> asyncio.Task[Result]:
    """The device is busy for 500 ms, and it is not known that it is: the cost line is far too low."""
    stage.engine._router.by_id("a").cost.ms_per_token = 1e-6
    stage.engine._router.by_id("a").cost.fixed_ms = 0.0
    running = asyncio.create_task(stage.engine.run(job("a", LONG)))
    await asyncio.sleep(0.001)
    return running


def test_what_expires_in_the_queue_is_answered_at_its_deadline_and_never_run() -> None:
    async def act(stage: Stage) -> None:
        running = await behind_a_long_batch(stage)
        answer, took_ms = await outcome(stage, job("a", 10, 20, deadline_s=stage.now_s + 0.1))
        assert isinstance(answer, DeadlineExceeded)
        assert took_ms == pytest.approx(100.0)
        status = stage.engine.describe()[0]
        assert (status.queue_items[Lane.ONLINE], status.queue_tokens[Lane.ONLINE]) == (0, 0)
        await running
        await asyncio.sleep(10)
        assert stage.device.tokens == LONG

    play(act, [spec("a")])


def test_a_deadline_that_has_passed_is_refused_before_anything_is_prepared() -> None:
    async def act(stage: Stage) -> None:
        answer, took_ms = await outcome(stage, job("a", 10, deadline_s=stage.now_s))
        assert isinstance(answer, DeadlineExceeded)
        assert took_ms == 0.0
        assert stage.device.tokens == 0

    play(act, [spec("a")])


def test_a_predicted_wait_beyond_the_deadline_is_refused_at_once_with_the_wait() -> None:
    async def act(stage: Stage) -> None:
        running = asyncio.create_task(stage.engine.run(job("a", LONG)))
        await asyncio.sleep(0.001)
        answer, took_ms = await outcome(stage, job("a", 10, deadline_s=stage.now_s + 0.1))
        assert isinstance(answer, QueueFull)
        assert answer.retry_after_s is not None
        assert "0.5 s" in answer.message
        assert took_ms == 0.0
        in_time, _ = await outcome(stage, job("a", 10, deadline_s=stage.now_s + 1.0))
        assert isinstance(in_time, Result)
        await running

    play(act, [spec("a")])


def test_beside_other_work_a_job_s_own_work_counts_against_its_deadline() -> None:
    async def act(stage: Stage) -> None:
        running = asyncio.create_task(stage.engine.run(job("a", LONG)))
        await asyncio.sleep(0.001)
        large, took_ms = await outcome(stage, job("a", *[500] * 5, deadline_s=stage.now_s + 0.7))
        assert isinstance(large, QueueFull)
        assert took_ms == 0.0
        small, took_ms = await outcome(stage, job("a", 10, deadline_s=stage.now_s + 0.7))
        assert isinstance(small, Result)
        assert took_ms == pytest.approx(500, abs=10)
        await running

    play(act, [spec("a")])


def test_what_is_longer_than_its_deadline_by_itself_is_tried_on_an_idle_device_alone() -> None:
    """Come back later, it would be no better off: beside work it is told so at once, and nothing of it runs."""

    async def act(stage: Stage) -> None:
        answer, took_ms = await outcome(stage, job("a", *[500] * 80, deadline_s=stage.now_s + 0.7))
        assert isinstance(answer, DeadlineExceeded)
        assert took_ms == pytest.approx(700, abs=10)
        await asyncio.sleep(1.0)
        tokens = stage.device.tokens
        running = asyncio.create_task(stage.engine.run(job("a", 10)))
        await asyncio.sleep(0.001)
        answer, took_ms = await outcome(stage, job("a", *[500] * 80, deadline_s=stage.now_s + 0.7))
        assert isinstance(answer, DeadlineExceeded)
        assert "4000 ms" in answer.message
        assert took_ms == 0.0
        await running
        await asyncio.sleep(1.0)
        assert stage.device.tokens == tokens + 10

    play(act, [spec("a")])


def test_what_would_only_be_in_time_on_an_idle_device_waits_for_one_elsewhere() -> None:
    """Behind others it would be a batch for nobody, and so would the next: a server full of 504."""

    async def act(stage: Stage) -> None:
        running = asyncio.create_task(stage.engine.run(job("a", 10)))
        await asyncio.sleep(0.001)
        refused, took_ms = await outcome(stage, job("a", 500, deadline_s=stage.now_s + 0.06))
        assert isinstance(refused, QueueFull)
        assert took_ms == 0.0
        await running
        answer, _ = await outcome(stage, job("a", 500, deadline_s=stage.now_s + 0.06))
        assert isinstance(answer, Result)

    play(act, [spec("a")])


def test_a_query_that_waits_for_queries_only_is_not_refused_for_what_waits_beside_them() -> None:
    async def act(stage: Stage) -> None:
        flood = [asyncio.create_task(stage.engine.run(job("a", *[500] * 10))) for _ in range(2)]
        await asyncio.sleep(0.001)
        queries = []
        for _ in range(2):  # the first runs, the second waits
            queries.append(asyncio.create_task(stage.engine.run(job("a", 10))))
            await asyncio.sleep(0.001)
        answer, took_ms = await outcome(stage, job("a", 10, deadline_s=stage.now_s + 0.03))
        assert isinstance(answer, Result)
        assert took_ms < 30
        await asyncio.gather(*flood, *queries)

    play(act, [spec("a")], concurrency=Concurrency(lanes=1, flights=1, spare_lanes=1, small_tokens=32))


def test_an_idle_device_tries_even_what_it_believes_it_cannot_do_in_time() -> None:
    """A cost line that went wrong would otherwise never be put right."""

    async def act(stage: Stage) -> None:
        stage.engine._router.by_id("a").cost.ms_per_token = 1_000.0
        answer, _ = await outcome(stage, job("a", 100, deadline_s=stage.now_s + 1.0))
        assert isinstance(answer, Result)

    play(act, [spec("a")])


@pytest.mark.parametrize("sizes", [(10,), (10, 10, 10)])
@pytest.mark.parametrize(("max_queue_ms", "max_queue_tokens"), [(100.0, 100_000), (60_000.0, 5_000)])
def test_a_full_queue_refuses_one_and_many_alike_and_takes_them_the_moment_it_is_empty(
    sizes: tuple[int, ...], max_queue_ms: float, max_queue_tokens: int
) -> None:
    async def act(stage: Stage) -> None:
        flood = asyncio.create_task(stage.engine.run(job("a", *[500] * 11)))
        await asyncio.sleep(0.001)
        answer, took_ms = await outcome(stage, job("a", *sizes))
        assert isinstance(answer, QueueFull)
        assert took_ms == 0.0
        await flood
        answer, took_ms = await outcome(stage, job("a", *sizes))
        assert isinstance(answer, Result)
        assert took_ms == pytest.approx(2.0 + 0.1 * sum(sizes))

    play(act, [spec("a", max_queue_tokens=max_queue_tokens)], max_queue_ms=max_queue_ms)


def test_tokens_of_one_model_or_lane_do_not_close_the_door_of_another() -> None:
    async def act(stage: Stage) -> None:
        flood = asyncio.create_task(stage.engine.run(job("a", *[500] * 20, lane=Lane.BULK)))
        await asyncio.sleep(0.001)
        refused, _ = await outcome(stage, job("a", 10, lane=Lane.BULK))
        assert isinstance(refused, QueueFull)
        for one in (job("a", 10), job("b", 10, lane=Lane.BULK)):
            answer, _ = await outcome(stage, one)
            assert isinstance(answer, Result)
        await flood

    play(act, [spec("a", max_queue_tokens=1_000), spec("b", max_queue_tokens=1_000)])


def test_an_input_larger_than_the_ledger_can_ever_hold_is_refused_with_both_numbers() -> None:
    async def act(stage: Stage) -> None:
        stage.engine._overload.most_tokens_ever = lambda worker: 1_000
        answer, _ = await outcome(stage, job("a", 10, 1_001))
        assert isinstance(answer, DoesNotFit)
        assert "input 1 has 1001 tokens" in answer.message
        assert "1000" in answer.message
        assert stage.device.tokens == 0
        fits, _ = await outcome(stage, job("a", 1_000))
        assert isinstance(fits, Result)

    play(act, [spec("a")])


def test_hung_up_clients_work_never_reaches_the_device() -> None:
    async def act(stage: Stage) -> None:
        running = await behind_a_long_batch(stage)
        leavers = [asyncio.create_task(stage.engine.run(job("a", 10))) for _ in range(200)]
        await asyncio.sleep(0.05)
        for leaver in leavers:
            leaver.cancel()
        await asyncio.gather(*leavers, return_exceptions=True)
        await running
        await asyncio.sleep(10)
        assert stage.device.tokens == LONG
        assert b'cotenant_jobs_cancelled_total{model="a"} 200.0' in stage.engine.metering.render()

    play(act, [spec("a")])


def test_a_small_request_is_not_refused_for_large_ones_that_it_need_not_wait_for() -> None:
    """Where there is a spare lane, only other small requests are ahead of it."""

    async def act(stage: Stage) -> None:
        backlog = [asyncio.create_task(stage.engine.run(job("b", LONG))) for _ in range(6)]
        await asyncio.sleep(0.001)
        answer, took_ms = await outcome(stage, job("a", 10))
        assert isinstance(answer, Result)
        assert took_ms < 500.0
        large, _ = await outcome(stage, job("a", LONG))
        assert isinstance(large, QueueFull)
        await asyncio.gather(*backlog, return_exceptions=True)

    spare = Concurrency(lanes=1, flights=1, spare_lanes=1, small_tokens=32)
    play(act, [spec("a"), spec("b")], concurrency=spare, max_queue_ms=1_000.0)
