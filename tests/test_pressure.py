"""More than can be done for long, in virtual time: a short queue, as much work done, and nothing left when it ends."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from runtime.devices.base import Concurrency
from runtime.errors import CotenantError, DeadlineExceeded, QueueFull
from runtime.pressure import WINDOW_S, Caller, Pressure
from tests.virtual import Stage, job, play, spec

TWO_LANES = Concurrency(lanes=2, flights=1)
SIZE = 100
"""Tokens of a job: 12 ms alone, 10.4 ms as a part of a full batch."""
CAPACITY_PER_S = 2 * 512 / SIZE / 0.0532
"""Two lanes with full batches: 512 tokens in 53.2 ms."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job that came at `at_s`."""

    at_s: float
    took_ms: float
    error: CotenantError | None


async def ask(stage: Stage, patience_s: float | None, size: int = SIZE) -> Outcome:
    at_s = stage.now_s
    deadline_s = None if patience_s is None else at_s + patience_s
    try:
        await stage.engine.run(job("a", size, deadline_s=deadline_s))
    except CotenantError as error:
        return Outcome(at_s, (stage.now_s - at_s) * 1000, error)
    return Outcome(at_s, (stage.now_s - at_s) * 1000, None)


async def arrivals(
    stage: Stage, times_capacity: float, seconds: float, patience_s: float | None, size: int = SIZE
) -> list[Outcome]:
    """Poisson arrivals for so long, all of them answered."""
    chooser = random.Random(7)
    end_s = stage.now_s + seconds
    asked = []
    while stage.now_s < end_s:
        asked.append(asyncio.create_task(ask(stage, patience_s, size)))
        await asyncio.sleep(chooser.expovariate(times_capacity * CAPACITY_PER_S * SIZE / size))
    return await asyncio.gather(*asked)


def answered(outcomes: list[Outcome]) -> list[Outcome]:
    return [each for each in outcomes if each.error is None]


def since(outcomes: list[Outcome], seconds: float) -> list[Outcome]:
    """Those that came later than so long after the first."""
    return [each for each in outcomes if each.at_s >= outcomes[0].at_s + seconds]


def p99_ms(outcomes: list[Outcome]) -> float:
    took_ms = sorted(each.took_ms for each in answered(outcomes))
    return took_ms[int(0.99 * len(took_ms))]


def test_under_lasting_pressure_whoever_is_let_in_waits_little_and_as_much_is_done() -> None:
    async def act(stage: Stage) -> list[Outcome]:
        return await arrivals(stage, 4.0, 6.0, patience_s=1.0)

    outcomes = play(act, [spec("a")], concurrency=TWO_LANES)
    assert {type(each.error) for each in outcomes} == {type(None), QueueFull}
    later = since(outcomes, 2.5)
    burst = outcomes[: len(outcomes) // 6]
    assert p99_ms(burst) > 500  # the queue takes a burst up
    assert p99_ms(later) < 250
    assert len(answered(later)) / 3.5 == pytest.approx(CAPACITY_PER_S, rel=0.05)


def test_however_short_the_deadlines_enough_waits_for_batches_that_are_worth_their_price() -> None:
    async def act(stage: Stage) -> list[Outcome]:
        return await arrivals(stage, 4.0, 2.0, patience_s=0.06, size=5)

    outcomes = since(play(act, [spec("a")], concurrency=TWO_LANES), 1.5)
    assert len(answered(outcomes)) / 0.5 > 0.8 * CAPACITY_PER_S * SIZE / 5


def test_when_the_pressure_ends_so_does_the_queue() -> None:
    async def act(stage: Stage) -> list[Outcome]:
        await asyncio.wait({asyncio.create_task(arrivals(stage, 4.0, 5.0, patience_s=1.0))}, timeout=5.0)
        afterwards = []
        for _ in range(20):
            afterwards.append(await ask(stage, 1.0))
            await asyncio.sleep(0.02)
        return afterwards

    afterwards = play(act, [spec("a")], concurrency=TWO_LANES)
    quick = [each for each in afterwards if each.error is None and each.took_ms == pytest.approx(12.0, abs=0.1)]
    assert quick[0].at_s - afterwards[0].at_s < 0.2
    assert quick == afterwards[-len(quick) :]


@pytest.mark.parametrize("times_capacity", [0.9, 1.4])
def test_a_little_too_much_may_use_the_time_that_it_has(times_capacity: float) -> None:
    """A short queue would refuse a third of what could be done just so, and whom a deadline allows to wait may wait."""

    async def act(stage: Stage) -> list[Outcome]:
        return await arrivals(stage, times_capacity, 20.0, patience_s=1.0)

    outcomes = play(act, [spec("a")], concurrency=TWO_LANES)
    refused = len(outcomes) - len(answered(outcomes))
    assert refused <= max(0.0, times_capacity - 0.95) / times_capacity * len(outcomes)


def test_the_pressure_is_over_a_second_after_it() -> None:
    async def act(stage: Stage) -> list[Outcome]:
        await arrivals(stage, 4.0, 5.0, patience_s=1.0)
        return await arrivals(stage, 0.95, 20.0, patience_s=1.0)

    outcomes = play(act, [spec("a")], concurrency=TWO_LANES)
    late = since(outcomes, 2 * WINDOW_S)
    assert len(answered(late)) == len(late)


async def patient_client(stage: Stage, until_s: float) -> None:
    """Somebody who sends ten inputs again and again, and waits as long as it takes."""
    while stage.now_s < until_s:
        await stage.engine.run(job("a", *[SIZE] * 10))


def test_what_waits_without_a_deadline_does_not_keep_out_what_has_one() -> None:
    """Two seconds of patient work always stand before them, of the four that they have."""

    async def act(stage: Stage) -> list[Outcome]:
        clients = [asyncio.create_task(patient_client(stage, stage.now_s + 8.0)) for _ in range(40)]
        outcomes = await arrivals(stage, 4.0, 8.0, patience_s=4.0)
        await asyncio.gather(*clients)
        return outcomes

    outcomes = play(act, [spec("a")], concurrency=TWO_LANES)
    assert len(answered(since(outcomes, 4.0))) / 4.0 > 0.25 * CAPACITY_PER_S


def test_one_long_job_does_not_make_a_polite_client_wait_for_a_short_queue() -> None:
    """Its requests are refused only until the queue is as short as their deadlines allow."""

    async def act(stage: Stage) -> list[Outcome]:
        long = asyncio.create_task(stage.engine.run(job("a", *[SIZE] * 1_600, deadline_s=stage.now_s + 60.0)))
        await asyncio.sleep(0.1)
        asked = []
        for _ in range(60):
            asked.append(asyncio.create_task(ask(stage, 5.0)))
            await asyncio.sleep(0.1)
        outcomes = await asyncio.gather(*asked)
        await long
        return outcomes

    outcomes = play(act, [spec("a")], concurrency=TWO_LANES)
    assert isinstance(outcomes[0].error, QueueFull)
    first = answered(outcomes)[0]
    assert first.took_ms > 3_500
    assert answered(outcomes) == since(outcomes, first.at_s - outcomes[0].at_s)


def test_deadlines_that_only_an_idle_device_could_keep_do_not_stop_all_work() -> None:
    async def act(stage: Stage) -> list[Outcome]:
        return await arrivals(stage, 4.0, 4.0, patience_s=0.06, size=500)

    outcomes = play(act, [spec("a")], concurrency=TWO_LANES)
    late = [each for each in outcomes if isinstance(each.error, DeadlineExceeded)]
    assert len(late) < 0.1 * len(answered(outcomes))
    assert len(answered(outcomes)) / 4.0 > 0.4 * CAPACITY_PER_S * SIZE / 500


def test_a_batch_longer_than_anybody_may_wait_does_not_keep_the_door_shut() -> None:
    """What runs is not counted, or every job would be refused that comes while a long batch runs, for ever."""

    async def act(stage: Stage) -> list[Outcome]:
        flood = asyncio.create_task(arrivals(stage, 6.0, 3.0, patience_s=0.3))
        await flood
        outcomes = []
        for _ in range(20):
            long = asyncio.create_task(stage.engine.run(job("b", 1_500)))
            await asyncio.sleep(0.02)
            outcomes.append(await ask(stage, 0.3))
            await long
        return outcomes

    outcomes = play(act, [spec("a"), spec("b", max_batch_tokens=2_048)])
    assert [each.error for each in outcomes] == [None] * 20


CALLER = ("a", "team")


def note_all(
    pressure: Pressure,
    refused: list[bool],
    from_s: float,
    to_s: float,
    work_ms: float = 3 * WINDOW_S * 1000,
    caller: Caller = CALLER,
) -> None:
    """Jobs that come evenly from one moment to another, of so much work together."""
    for index, one in enumerate(refused):
        pressure.note(caller, one, work_ms / len(refused), from_s + index * (to_s - from_s) / len(refused))


@pytest.mark.parametrize(
    ("refused", "high"),
    [([True] * 3, False), ([True] * 4, True), ([True, False] * 10, False), ([True] * 11 + [False] * 9, True)],
)
def test_most_of_what_came_must_have_been_refused_and_it_must_have_been_enough(refused: list[bool], high: bool) -> None:
    pressure = Pressure()
    note_all(pressure, refused, 10.0, 10.9)
    assert not pressure.is_of(CALLER, 10.95)
    assert pressure.is_of(CALLER, 11.1) == high


@pytest.mark.parametrize(("work_ms", "high"), [(1_900.0, False), (2_100.0, True)])
def test_more_than_twice_what_can_be_done_must_have_come(work_ms: float, high: bool) -> None:
    pressure = Pressure()
    note_all(pressure, [True] * 10, 10.0, 10.9, work_ms)
    assert pressure.is_of(CALLER, 11.1) == high


def test_a_window_lasts_a_second_and_a_quiet_one_ends_the_pressure() -> None:
    pressure = Pressure()
    note_all(pressure, [True] * 10, 10.0, 10.9)
    assert [pressure.is_of(CALLER, now_s) for now_s in (11.0, 11.9, 12.1)] == [True, True, False]


def test_after_a_pause_what_was_before_it_says_nothing() -> None:
    pressure = Pressure()
    note_all(pressure, [True] * 10, 10.0, 10.9)
    assert not pressure.is_of(CALLER, 13.0)


def test_who_asks_for_no_more_than_an_equal_share_does_not_pay_for_who_floods() -> None:
    pressure = Pressure()
    little, other = ("a", "little"), ("b", "team")
    note_all(pressure, [True] * 10, 10.0, 10.9)
    for caller in (little, other):
        note_all(pressure, [False] * 30, 10.9, 10.95, work_ms=300.0, caller=caller)
    assert [pressure.is_of(caller, 11.1) for caller in (CALLER, little, other)] == [True, False, False]


def test_many_who_each_ask_for_a_little_too_much_press_together() -> None:
    pressure = Pressure()
    callers = [(f"model-{number}", "team") for number in range(30)]
    for caller in callers:
        note_all(pressure, [True], 10.0, 10.9, work_ms=100.0, caller=caller)
    assert all(pressure.is_of(caller, 11.1) for caller in callers)
