"""Host work before the queue: tokenizing in a thread pool, off the event loop and off the device's threads.

A few short texts take less time than the trip to a thread and back, so they are prepared where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from runtime.errors import Draining, QueueFull
from runtime.models.base import Model, Vocabulary
from runtime.work import Input, Job, Picture, Prepared, characters

INLINE_ITEMS = 4
INLINE_CHARS = 1_000
"""About 0.15 ms of tokenizing at the most."""
MAX_QUESTIONS = 64
"""As many requests may wait to have texts tokenized and nothing else."""

A = TypeVar("A")
T = TypeVar("T")


class Preparation:
    """A pool of threads that tokenizers and image decoders share; both release the GIL."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="prepare")
        self._closed = False
        self._turn = asyncio.Lock()
        self._questions = 0

    async def prepare(self, model: Model, job: Job) -> list[Prepared]:
        """Items of `job`, in order. Raises what `Model.prepare` raises, and Draining when the pool is closed first."""
        if len(job.inputs) <= INLINE_ITEMS and sum(map(_characters, job.inputs)) <= INLINE_CHARS:
            return model.prepare(job)
        return await self._in_pool(model.prepare, job)

    async def consult(self, vocabulary: Vocabulary, question: Callable[[Vocabulary], T]) -> T:
        """What a tokenizer answers when it is asked for its own sake: one question at a time, whoever asks.

        So at most one thread is kept from the models' requests. Raises QueueFull, Draining, and what `question` raises.
        """
        if self._questions >= MAX_QUESTIONS:
            raise QueueFull("too many requests wait for the tokenizers")
        self._questions += 1
        try:
            async with self._turn:
                return await self._in_pool(question, vocabulary)
        finally:
            self._questions -= 1

    async def _in_pool(self, work: Callable[[A], T], subject: A) -> T:
        self._check_open()
        outcome = self._pool.submit(work, subject)
        try:
            return await asyncio.wrap_future(outcome)
        except asyncio.CancelledError:
            # `close` cancels what has not begun, and then it isn't the client who hung up.
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                self._check_open()
            raise

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _check_open(self) -> None:
        if self._closed:
            raise Draining("the server stopped before this request was done")


def _characters(item: Input) -> int:
    """A picture is never prepared inline: decoding one takes milliseconds."""
    return INLINE_CHARS + 1 if isinstance(item, Picture) else characters(item)
