"""Deadlines of requests whose model is not in memory: told at once, or when they pass; the load goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import pytest

from runtime.errors import DeadlineExceeded, ModelLoading
from tests.engines import assert_rows, job
from tests.residents import residents

pytestmark = pytest.mark.anyio

MB = 2**20
ON_DEMAND = {"resident": "on_demand"}


async def test_a_deadline_that_passes_while_the_model_loads_is_told_as_such_and_the_load_goes_on() -> None:
    async with residents({"a": MB}, keys=ON_DEMAND) as (engine, backend, clock):
        backend.gate = threading.Event()
        engine._router.by_id("a").load_times.note("loaded", 0.1)  # as long as a load is expected to take
        late = dataclasses.replace(job("a", "x"), deadline_s=clock.now_s() + 1.05)
        patient = asyncio.create_task(engine.run(job("a", "y")))
        with pytest.raises(DeadlineExceeded):
            await engine.run(late)
        assert engine.describe()[0].waiting_for_load == 1
        backend.gate.set()
        assert_rows(await patient, ["y"])
        assert backend.loads == ["a"]
        assert [model.batches[-1] for model in backend.resident.values()] == [["y"]]


async def test_a_deadline_that_the_load_is_sure_to_miss_is_refused_at_once_with_the_time_it_takes() -> None:
    async with residents({"a": MB}, keys=ON_DEMAND) as (engine, backend, clock):
        backend.gate = threading.Event()
        with pytest.raises(ModelLoading) as refusal:
            await engine.run(dataclasses.replace(job("a", "x"), deadline_s=clock.now_s() + 2.0))
        assert refusal.value.retry_after_s == pytest.approx(5.0, abs=0.5)
        with pytest.raises(DeadlineExceeded):
            await engine.run(dataclasses.replace(job("a", "x"), deadline_s=clock.now_s() - 0.1))
