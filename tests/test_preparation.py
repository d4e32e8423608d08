"""Tokenizing happens where it is cheapest, in order, off the event loop, and ends with a clear word at shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from runtime.errors import Draining, InputTooLong, QueueFull
from runtime.models.base import Vocabulary
from runtime.preparation import INLINE_CHARS, INLINE_ITEMS, MAX_QUESTIONS, Preparation
from runtime.work import Job, Prepared, Task, characters
from tests.doubles import CountingModel
from tests.fakes import FakeVocabulary

pytestmark = pytest.mark.anyio


class Tokenizing(CountingModel):
    """Notes who tokenizes, and can be told to wait at a gate and to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []
        self.gate = None
        self.error: Exception | None = None
        self.begun = threading.Semaphore(0)

    def prepare(self, job: Job) -> list[Prepared]:
        self.threads.append(threading.current_thread())
        self.begun.release()
        if self.gate is not None:
            assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return [Prepared(token_ids=np.full(characters(text), index, np.int32)) for index, text in enumerate(job.inputs)]


def job(texts: Sequence[str]) -> Job:
    return Job(id="job", model="m", task=Task.EMBED, inputs=texts)


MANY = job(["text"] * (INLINE_ITEMS + 1))


@asynccontextmanager
async def pool(threads: int = 2) -> AsyncIterator[tuple[Preparation, Tokenizing]]:
    preparation, model = Preparation(threads), Tokenizing()
    try:
        yield preparation, model
    finally:
        if model.gate is not None:
            model.gate.set()
        preparation.close()


async def begun(model: Tokenizing, count: int = 1) -> None:
    for _ in range(count):
        assert await asyncio.to_thread(model.begun.acquire, timeout=10)


@pytest.mark.parametrize("texts", [["a"], ["a"] * INLINE_ITEMS, ["x" * INLINE_CHARS]])
async def test_a_few_short_texts_are_prepared_where_they_are(texts: list[str]) -> None:
    async with pool() as (preparation, model):
        await preparation.prepare(model, job(texts))
        assert model.threads == [threading.current_thread()]


@pytest.mark.parametrize("texts", [["a"] * (INLINE_ITEMS + 1), ["x" * (INLINE_CHARS + 1)]])
async def test_more_or_longer_texts_leave_the_event_loop(texts: list[str]) -> None:
    async with pool() as (preparation, model):
        await preparation.prepare(model, job(texts))
        assert [thread.name.startswith("prepare") for thread in model.threads] == [True]


@pytest.mark.parametrize("count", [3, 50])
async def test_items_come_in_the_order_of_the_texts(count: int) -> None:
    async with pool() as (preparation, model):
        items = await preparation.prepare(model, job(["x" * (1 + index % 5) for index in range(count)]))
        assert [item.token_ids.tolist() for item in items] == [[index] * (1 + index % 5) for index in range(count)]


@pytest.mark.parametrize("count", [1, 50])
async def test_a_refusal_reaches_the_caller_from_either_place(count: int) -> None:
    async with pool() as (preparation, model):
        model.error = InputTooLong("input 0 has too many tokens")
        with pytest.raises(InputTooLong):
            await preparation.prepare(model, job(["text"] * count))


async def test_the_event_loop_is_free_while_long_texts_are_prepared() -> None:
    async with pool() as (preparation, model):
        model.gate = threading.Event()
        long = asyncio.create_task(preparation.prepare(model, MANY))
        await begun(model)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not long.done()
        model.gate.set()
        assert len(await long) == len(MANY.inputs)


async def test_no_more_jobs_are_prepared_at_once_than_there_are_threads() -> None:
    async with pool(threads=2) as (preparation, model):
        model.gate = threading.Event()
        jobs = [asyncio.create_task(preparation.prepare(model, MANY)) for _ in range(6)]
        await begun(model, 2)
        assert len(model.threads) == 2
        model.gate.set()
        await asyncio.gather(*jobs)
        assert len(model.threads) == 6
        assert len(set(model.threads)) == 2


async def test_a_client_who_hangs_up_takes_his_place_in_the_line_with_him() -> None:
    async with pool(threads=1) as (preparation, model):
        model.gate = threading.Event()
        first = asyncio.create_task(preparation.prepare(model, MANY))
        await begun(model)
        leaver = asyncio.create_task(preparation.prepare(model, MANY))
        await asyncio.sleep(0)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        model.gate.set()
        await first
        await preparation.prepare(model, MANY)
        assert len(model.threads) == 2


async def test_jobs_that_had_not_begun_when_the_pool_closes_are_told_so() -> None:
    async with pool(threads=1) as (preparation, model):
        model.gate = threading.Event()
        first = asyncio.create_task(preparation.prepare(model, MANY))
        await begun(model)
        late = asyncio.create_task(preparation.prepare(model, MANY))
        await asyncio.sleep(0)
        preparation.close()
        with pytest.raises(Draining):
            await late
        model.gate.set()
        assert len(await first) == len(MANY.inputs)


async def test_who_hangs_up_after_the_pool_closed_is_still_one_who_hung_up() -> None:
    async with pool(threads=1) as (preparation, model):
        model.gate = threading.Event()
        first = asyncio.create_task(preparation.prepare(model, MANY))
        await begun(model)
        preparation.close()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_closed_pool_takes_nothing_more() -> None:
    async with pool() as (preparation, model):
        preparation.close()
        with pytest.raises(Draining):
            await preparation.prepare(model, MANY)
        assert model.threads == []


async def test_a_question_is_answered_off_the_event_loop_and_its_refusal_reaches_who_asked() -> None:
    def refuse(vocabulary: Vocabulary) -> None:
        raise InputTooLong("too long")

    async with pool() as (preparation, _):
        asked = await preparation.consult(
            FakeVocabulary(), lambda vocabulary: (vocabulary.tokenize("a").ids, threading.current_thread().name)
        )
        assert asked[0] == [0, 97]
        assert asked[1].startswith("prepare")
        with pytest.raises(InputTooLong):
            await preparation.consult(FakeVocabulary(), refuse)


async def test_questions_are_answered_one_at_a_time_and_keep_no_job_waiting() -> None:
    gate, asking = threading.Event(), threading.Semaphore(0)

    def wait(vocabulary: Vocabulary) -> int:
        asking.release()
        assert gate.wait(30)
        return 1

    async with pool(threads=2) as (preparation, model):
        questions = [asyncio.create_task(preparation.consult(FakeVocabulary(), wait)) for _ in range(MAX_QUESTIONS)]
        assert await asyncio.to_thread(asking.acquire, timeout=10)
        assert len(await preparation.prepare(model, MANY)) == len(MANY.inputs)
        assert not asking.acquire(blocking=False)
        with pytest.raises(QueueFull):
            await preparation.consult(FakeVocabulary(), wait)
        gate.set()
        assert sum(await asyncio.gather(*questions)) == MAX_QUESTIONS
        assert await preparation.consult(FakeVocabulary(), wait) == 1


async def test_who_stops_waiting_for_an_answer_leaves_the_line() -> None:
    gate = threading.Event()
    async with pool(threads=1) as (preparation, _):
        first = asyncio.create_task(preparation.consult(FakeVocabulary(), lambda vocabulary: gate.wait(30)))
        leaver = asyncio.create_task(preparation.consult(FakeVocabulary(), lambda vocabulary: None))
        await asyncio.sleep(0)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        gate.set()
        assert await first
        assert await preparation.consult(FakeVocabulary(), lambda vocabulary: 7) == 7


async def test_a_closed_pool_answers_no_question() -> None:
    async with pool() as (preparation, _):
        preparation.close()
        with pytest.raises(Draining):
            await preparation.consult(FakeVocabulary(), lambda vocabulary: None)
