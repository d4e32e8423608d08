"""Out of memory by script, at every size: the guilty input alone fails, and only when nobody can leave for it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.devices.simulated import Fault
from runtime.errors import CotenantError, OutOfMemory
from runtime.work import Result
from runtime.worker import Worker
from tests.virtual import Stage, job, play, spec


async def ask_all(stage: Stage, sizes: list[int]) -> list[Result | BaseException]:
    """Each input as a job of its own, all of them in one batch behind another."""
    first = asyncio.create_task(stage.engine.run(job("a", 1)))
    await asyncio.sleep(0.001)
    answers = await asyncio.gather(*(stage.engine.run(job("a", size)) for size in sizes), return_exceptions=True)
    await asyncio.gather(first, return_exceptions=True)
    return answers


@pytest.mark.parametrize("place", [0, 1, 15, 30, 31])
def test_of_a_batch_of_32_with_one_that_is_too_large_31_are_answered(place: int) -> None:
    sizes = [10] * 32
    sizes[place] = 150

    async def act(stage: Stage) -> None:
        worker = stage.engine._router.by_id("a")
        answers = await ask_all(stage, sizes)
        for index, (size, answer) in enumerate(zip(sizes, answers, strict=True)):
            if index == place:
                assert isinstance(answer, OutOfMemory)
            else:
                assert isinstance(answer, Result)
                assert int(answer.rows[0][0]) == size
        assert [len(batch.entries) for batch in stage.batches] == [1, 32]
        assert worker.batch_tokens == int(512 * 0.7)
        neighbour = await stage.engine.run(job("b", 20))
        assert int(neighbour.rows[0][0]) == 20
        for _ in range(1_600):
            await stage.engine.run(job("a", 1))
        assert worker.batch_tokens == 512

    fault = Fault(kind="out_of_memory", model="a", from_tokens=150, of_one_input=True)
    play(act, [spec("a", slo_ms=1_000), spec("b")], faults=[fault])


@settings(max_examples=15)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 400))
def test_whatever_the_size_that_fails_everyone_who_fits_alone_is_answered(sizes: list[int], from_tokens: int) -> None:
    async def act(stage: Stage) -> list[Result | BaseException]:
        return await ask_all(stage, sizes)

    fault = Fault(kind="out_of_memory", from_tokens=from_tokens)
    answers = play(act, [spec("a", slo_ms=1_000)], faults=[fault])
    for size, answer in zip(sizes, answers, strict=True):
        if size >= from_tokens:
            assert isinstance(answer, OutOfMemory)
        else:
            assert isinstance(answer, Result)
            assert int(answer.rows[0][0]) == size


def test_fifty_batches_that_each_run_out_of_memory_are_all_answered_and_the_neighbour_is_as_fast() -> None:
    async def act(stage: Stage) -> tuple[int, list[float]]:
        async def neighbour() -> list[float]:
            delays_ms = []
            for turn in range(200):
                await asyncio.sleep(0.003 + 0.002 * (turn % 7))
                begun_s = stage.now_s
                await stage.engine.run(job("b", 10))
                delays_ms.append((stage.now_s - begun_s) * 1000)
            return delays_ms

        beside = asyncio.create_task(neighbour())
        results = [await stage.engine.run(job("a", *[40] * 12)) for _ in range(50)]
        assert all([int(row[0]) for row in result.rows] == [40] * 12 for result in results)
        return stage.engine._router.by_id("a").batch_tokens, sorted(await beside)

    specs = [spec("a", slo_ms=1_000), spec("b", slo_ms=1_000)]
    whole_tokens, undisturbed_ms = play(act, specs)
    # From 41 tokens on no two inputs fit together: every batch fails until the ceiling lets only one through.
    for from_tokens, slower in ((200, 1.1), (41, 2.0)):
        fault = Fault(kind="out_of_memory", model="a", from_tokens=from_tokens)
        ceiling_tokens, delays_ms = play(act, specs, faults=[fault])
        assert ceiling_tokens < whole_tokens == 512
        assert delays_ms[190] <= slower * undisturbed_ms[190]


def test_an_input_too_large_alone_is_tried_once_more_when_somebody_left_for_it() -> None:
    asked: list[tuple[str, int]] = []

    async def act(stage: Stage) -> Result | BaseException:
        def make_room(worker: Worker, tokens: int) -> bool:
            asked.append((worker.spec.id, tokens))
            stage.device.faults = ()
            return True

        assert stage.engine._executor is not None
        stage.engine._executor.execution.make_room = make_room
        (answer,) = await ask_all(stage, [300])
        return answer

    fault = Fault(kind="out_of_memory", from_tokens=300)
    answer = play(act, [spec("a", slo_ms=1_000)], faults=[fault])
    assert isinstance(answer, Result)
    assert asked == [("a", 300)]


@pytest.mark.parametrize("somebody_left", [True, False])
def test_room_is_asked_for_once_a_batch_and_what_still_fails_is_told_so(somebody_left: bool) -> None:
    asked: list[int] = []

    async def act(stage: Stage) -> list[Result | BaseException]:
        def make_room(worker: Worker, tokens: int) -> bool:
            asked.append(tokens)
            return somebody_left

        assert stage.engine._executor is not None
        stage.engine._executor.execution.make_room = make_room
        return await ask_all(stage, [100, 5, 100, 5])

    fault = Fault(kind="out_of_memory", from_tokens=100, of_one_input=True)
    answers = play(act, [spec("a", slo_ms=1_000)], faults=[fault])
    assert [type(answer) for answer in answers] == [OutOfMemory, Result, OutOfMemory, Result]
    assert asked == [100]


@pytest.mark.parametrize("kind", ["error", "slow"])
def test_other_faults_cost_their_own_batch_only(kind: str) -> None:
    async def act(stage: Stage) -> list[bool]:
        outcomes = []
        for size in (10, 20, 30):
            try:
                outcomes.append(int((await stage.engine.run(job("a", size))).rows[0][0]) == size)
            except CotenantError as error:
                outcomes.append(error.code != "forward_failed")
        return outcomes

    fault = Fault(kind="error" if kind == "error" else "slow", after=1, times=1)
    assert play(act, [spec("a")], faults=[fault]) == [True, kind == "slow", True]


def test_a_load_that_is_stuck_keeps_nobody_else_waiting() -> None:
    """It takes ten times as long by script; the models that are ready serve meanwhile."""

    async def act(stage: Stage) -> float:
        return stage.now_s

    assert play(act, [spec("a"), spec("b")]) == pytest.approx(2.0, abs=0.5)
