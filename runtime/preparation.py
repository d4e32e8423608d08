"""Host work before the queue: tokenizing in a thread pool, off the event loop and off the device's threads.

A few short texts take less time than the trip to a thread and back, so they are prepared where they are.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from runtime.models.base import Model
from runtime.work import Job, Prepared

INLINE_ITEMS = 4
INLINE_CHARS = 1_000
"""About 0.15 ms of tokenizing at the most."""


class Preparation:
    """A pool of threads that tokenizers and image decoders share; both release the GIL."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="prepare")

    async def prepare(self, model: Model, job: Job) -> list[Prepared]:
        """Items of `job`, in order. Raises what `Model.prepare` raises."""
        if len(job.inputs) <= INLINE_ITEMS and sum(map(len, job.inputs)) <= INLINE_CHARS:
            return model.prepare(job)
        return await asyncio.get_running_loop().run_in_executor(self._pool, model.prepare, job)

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
