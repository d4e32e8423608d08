"""Others' work, in virtual time: what is long, in bulk or another team's neither delays nor refuses anybody."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from runtime.devices.base import Concurrency
from runtime.errors import QueueFull
from runtime.models.base import Model
from runtime.simulation.lanes import InPlace
from runtime.work import Job, Lane, Prepared, Result
from tests.virtual import Stage, job, outcome, play, spec


@pytest.mark.parametrize(
    ("one", "lanes", "most_ms", "expected"),
    [
        (job("a", *[400] * 30), 1, 1_000.0, Lane.BULK),
        (job("a", *[400] * 30), 2, 1_000.0, Lane.ONLINE),
        (job("a", *[400] * 20), 1, 1_000.0, Lane.ONLINE),
        (job("a", *[400] * 30, deadline_s=math.inf), 1, 1_000.0, Lane.ONLINE),
        (job("a", *[400] * 30), 1, None, Lane.ONLINE),
    ],
    ids=["1.2 s alone", "shared by two lanes", "0.8 s", "with a deadline", "no limit"],
)
def test_online_work_that_named_no_lane_and_is_too_long_to_be_waited_for_runs_in_bulk(
    one: Job, lanes: int, most_ms: float | None, expected: Lane
) -> None:
    async def act(stage: Stage) -> None:
        assert (await stage.engine.run(one)).lane is Lane.ONLINE
        assert (await stage.engine.run(replace(one, may_go_bulk=True))).lane is expected

    play(act, [spec("a")], concurrency=Concurrency(lanes=lanes, flights=1), max_online_ms=most_ms)


def test_nobody_waits_for_a_job_of_a_minute_but_who_sent_it() -> None:
    async def act(stage: Stage) -> None:
        long_one = replace(job("a", *[400] * 1_500), may_go_bulk=True)
        long_run = asyncio.create_task(stage.engine.run(long_one))
        await asyncio.sleep(5.0)
        for model in ("a", "b"):
            answer, took_ms = await outcome(stage, job(model, 400, 400))
            assert isinstance(answer, Result)
            assert took_ms < 250.0  # its own 80 ms, behind a batch in flight
        assert len((await long_run).rows) == 1_500

    play(act, [spec("a"), spec("b")])


def test_a_team_that_floods_a_model_neither_delays_nor_refuses_another_team_of_the_same_model() -> None:
    async def act(stage: Stage) -> None:
        flood = [asyncio.create_task(stage.engine.run(job("a", *[400] * 20, tenant="flood"))) for _ in range(30)]
        await asyncio.sleep(1.0)
        for deadline_s in (None, 1.0):
            due_s = None if deadline_s is None else stage.now_s + deadline_s
            answer, took_ms = await outcome(stage, job("a", 400, 400, deadline_s=due_s, tenant="little"))
            assert isinstance(answer, Result)
            assert took_ms < 350.0  # its own 80 ms, as much of the flood's, and a batch in flight
        refused, _ = await outcome(stage, job("a", 400, 400, deadline_s=stage.now_s + 1.0, tenant="flood"))
        assert isinstance(refused, QueueFull)
        await asyncio.gather(*flood, return_exceptions=True)

    play(act, [spec("a")])


@pytest.mark.parametrize("changes", [{"lane": Lane.BULK}, {"tenant": "flood"}])
def test_what_is_prepared_for_bulk_or_for_another_tenant_closes_nobody_s_door(changes: dict[str, Any]) -> None:
    async def act(stage: Stage) -> None:
        large = replace(job("a", *[400] * 1_000), **changes)  # 40 s of work
        prepared = asyncio.Event()

        class Slow(InPlace):
            async def prepare(self, model: Model, job: Job) -> list[Prepared]:
                if job is large:
                    await prepared.wait()
                return await super().prepare(model, job)

        stage.engine._preparation = Slow(threads=1)
        running = asyncio.create_task(stage.engine.run(large))
        await asyncio.sleep(0.001)
        for deadline_s in (None, stage.now_s + 1.0):
            answer, _ = await outcome(stage, job("a", 400, deadline_s=deadline_s))
            assert isinstance(answer, Result)
        prepared.set()
        await running

    play(act, [spec("a")], max_queue_ms=30_000.0, max_bulk_queue_ms=30_000.0)
