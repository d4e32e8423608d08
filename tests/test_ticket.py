"""A ticket completes its future once: when the last row is here, or at the first error."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from runtime.errors import ForwardFailed, OutOfMemory
from runtime.ticket import Ticket
from runtime.work import Job, Prepared, Task

pytestmark = pytest.mark.anyio


def ticket(*texts: str) -> Ticket:
    return Ticket(Job(id="job", model="m", task=Task.EMBED, inputs=texts), slo_s=0.5)


def prepared(*tokens: int, truncated: bool = False) -> list[Prepared]:
    return [Prepared(token_ids=np.zeros(count, dtype=np.int32), truncated=truncated) for count in tokens]


async def test_rows_may_land_in_any_order_and_come_back_in_that_of_the_inputs() -> None:
    waiting = ticket("a", "b", "c")
    waiting.open(prepared(1, 2, 3))
    for index in (2, 0, 1):
        assert not waiting.future.done()
        waiting.land(index, np.array([index]))
    await waiting.future
    result = waiting.result()
    assert [int(row[0]) for row in result.rows] == [0, 1, 2]
    assert result.tokens == 6
    assert waiting.answered


async def test_the_first_error_counts_and_later_rows_change_nothing() -> None:
    waiting = ticket("a", "b", "c")
    waiting.open(prepared(1, 1, 1))
    waiting.fail(OutOfMemory("first"))
    waiting.fail(ForwardFailed("second"))
    for index in range(3):
        waiting.land(index, np.zeros(1))
    with pytest.raises(OutOfMemory, match="first"):
        await waiting.future


async def test_a_job_without_inputs_is_done_at_once() -> None:
    waiting = ticket()
    assert waiting.open([]) == []
    await asyncio.wait_for(waiting.future, timeout=10)
    assert waiting.result().rows == []


async def test_entries_carry_the_place_of_their_input_and_the_jobs_due_time() -> None:
    waiting = ticket("a", "b")
    entries = waiting.open(prepared(4, 5))
    assert [(entry.index, entry.prepared.tokens) for entry in entries] == [(0, 4), (1, 5)]
    assert all(entry.due_s == pytest.approx(waiting.started_s + 0.5) for entry in entries)
    assert all(entry.owner is waiting for entry in entries)


async def test_stages_that_batches_shared_are_the_longest_and_the_charge_is_the_sum() -> None:
    waiting = ticket("a", "b")
    waiting.open(prepared(4, 5))
    waiting.ran(queue_ms=1.0, device_ms=30.0, share_ms=3.0, landed_s=waiting.started_s)
    waiting.ran(queue_ms=7.0, device_ms=20.0, share_ms=2.0, landed_s=waiting.started_s)
    waiting.ran(queue_ms=2.0, device_ms=25.0, share_ms=0.5, landed_s=waiting.started_s)
    for index in range(2):
        waiting.land(index, np.zeros(1))
    timings = waiting.result().timings
    assert (timings.queue_ms, timings.device_ms, timings.device_share_ms) == (7.0, 30.0, 5.5)
    assert timings.total_ms >= timings.deliver_ms >= 0.0


async def test_cut_inputs_are_counted() -> None:
    waiting = ticket("a", "b", "c")
    waiting.open(prepared(4) + prepared(5, 6, truncated=True))
    for index in range(3):
        waiting.land(index, np.zeros(1))
    assert waiting.result().truncated_inputs == 2
