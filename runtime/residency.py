"""Loads models one at a time in a thread of their own, warms them up and measures them. Serving never stops for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from runtime.admission import Admission
from runtime.backend import Backend
from runtime.batch_queue import BatchQueue
from runtime.devices.base import Device
from runtime.errors import CotenantError
from runtime.metering import Metering
from runtime.models.base import EXAMPLE_TEXT, Model
from runtime.registry import ModelSpec
from runtime.scheduling import CostLine
from runtime.work import Footprint, Job, Pair, Prepared, Task
from runtime.worker import State, Worker

log = logging.getLogger(__name__)

WARM_UP_SHARES = (0.05, 0.5, 1.0)
"""Parts of the batch budget at which a fresh model is timed."""
REPEATS = 2
"""The first run of a size also pays for memory and kernels; the best counts."""


class Residency:
    """Brings workers to READY or FAILED, one after another."""

    def __init__(
        self, backend: Backend, device: Device, admission: Admission, metering: Metering, loader: ThreadPoolExecutor
    ) -> None:
        """`loader`: a pool of one thread, so that one load runs at a time."""
        self._backend = backend
        self._admission = admission
        self._metering = metering
        self._device = device
        self._loader = loader

    async def load_all(self, workers: Iterable[Worker], loaded: Callable[[Worker], None]) -> None:
        """Load each worker in turn; `loaded` is called on the loop after each, whether it went well or not."""
        workers = list(workers)
        for worker in workers:
            await self._look_up_task(worker)
        for worker in workers:
            await self.load(worker)
            loaded(worker)

    async def _look_up_task(self, worker: Worker) -> None:
        """Learn what a model does before its turn to load comes, so that requests of other kinds are told early."""
        if worker.task is None:
            loop = asyncio.get_running_loop()
            with contextlib.suppress(Exception):  # the load itself will say what is wrong
                worker.task = await loop.run_in_executor(self._loader, self._backend.task_of, worker.spec)

    async def load(self, worker: Worker) -> None:
        """Load one worker. A failure is its state, never an exception."""
        worker.state, worker.detail = State.LOADING, None
        started_s = time.perf_counter()
        try:
            loop = asyncio.get_running_loop()
            worker.task, model, footprint, cost = await loop.run_in_executor(
                self._loader, self._load, worker.spec, worker.task
            )
        except Exception as error:
            self._admission.forget(worker.spec.id)
            worker.state, worker.detail = State.FAILED, _reason(error)
            log.error("%s failed to load: %s", worker.spec.name, worker.detail, exc_info=_unexpected(error))
        else:
            worker.budget_tokens = worker.spec.max_batch_tokens or self._device.default_batch_tokens
            worker.queue = BatchQueue(self._device.concurrency.small_tokens)
            worker.device_name = self._device.name
            worker.footprint, worker.cost, worker.model = footprint, cost, model
            worker.state = State.READY
        worker.loaded_s = time.perf_counter() - started_s
        self._metering.observe_load(worker.spec.name, worker.loaded_s)
        if worker.model is not None:
            log.info(
                "%s is ready after %.1f s: %s", worker.spec.name, worker.loaded_s, worker.model.facts.execution_reason
            )

    # -- in the loader thread -----------------------------------------------------------------------------------

    def _load(self, spec: ModelSpec, task: Task | None) -> tuple[Task, Model, Footprint, CostLine]:
        task = task or self._backend.task_of(spec)
        budget = spec.max_batch_tokens or self._device.default_batch_tokens
        self._admission.reserve(spec.id, self._backend.predict(spec, self._device, budget))
        model = self._backend.load(spec, task, self._device)
        footprint = Footprint(
            weight_bytes=model.facts.weight_bytes + model.facts.graph_bytes,
            activation_bytes=model.facts.activation_bytes_per_token * budget,
            measured=True,
        )
        self._admission.settle(spec.id, footprint)
        return task, model, footprint, self._warm_up(model, spec, task, budget)

    def _warm_up(self, model: Model, spec: ModelSpec, task: Task, budget: int) -> CostLine:
        """Run a few sizes and fit the cost line that scheduling and admission start from."""
        probe_input = Pair(EXAMPLE_TEXT, EXAMPLE_TEXT) if task is Task.RERANK else model.example()
        probe = model.prepare(Job(id="warm-up", model=spec.id, task=task, inputs=[probe_input]))[0]
        points = []
        for share in WARM_UP_SHARES:
            items = [probe] * max(1, int(budget * share) // probe.tokens)
            points.append((len(items) * probe.tokens, min(self._time_ms(model, items) for _ in range(REPEATS))))
        return CostLine.fit(points)

    def _time_ms(self, model: Model, items: list[Prepared]) -> float:
        now_s = self._device.clock.now_s
        started_s = now_s()
        with self._device.working(alone=False):
            model.launch(items).land()
        return (now_s() - started_s) * 1000.0


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, CotenantError) else f"{type(error).__name__}: {str(error)[:300]}"


def _unexpected(error: Exception) -> Exception | None:
    return None if isinstance(error, CotenantError) else error
