"""A running engine on doubles, and what its tests say of jobs and rows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from runtime.engine import Engine
from runtime.registry import ModelSpec, RuntimeConfig, ServerSettings
from runtime.work import Job, Lane, Result, Task
from tests.doubles import CountingModel, DoubleBackend, StillDevice, vector


@asynccontextmanager
async def running(
    *ids: str,
    device: StillDevice | None = None,
    max_queue_ms: float = 30_000.0,
    drain_timeout_s: float = 10.0,
    settings: ServerSettings | None = None,
) -> AsyncIterator[tuple[Engine, DoubleBackend]]:
    backend = DoubleBackend(device)
    config = RuntimeConfig(
        models=tuple(ModelSpec(id=name) for name in ids),
        max_queue_ms=max_queue_ms,
        server=settings or ServerSettings(drain_timeout_s=drain_timeout_s),
    )
    engine = Engine(config, backend)
    await engine.start()
    await engine.wait_loaded()
    for model in backend.models.values():
        model.batches.clear()
        model.started = threading.Semaphore(0)
    try:
        yield engine, backend
    finally:
        await engine.stop()


def job(model: str, *texts: str, lane: Lane = Lane.ONLINE) -> Job:
    return Job(id="job", model=model, task=Task.EMBED, inputs=list(texts), lane=lane)


async def started(model: CountingModel, batches: int = 1) -> None:
    for _ in range(batches):
        assert await asyncio.to_thread(model.started.acquire, timeout=10)


def assert_rows(result: Result, texts: Sequence[str]) -> None:
    assert len(result.rows) == len(texts)
    for row, text in zip(result.rows, texts, strict=True):
        np.testing.assert_array_equal(row, vector(text))
