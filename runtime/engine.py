"""The one object that the edge talks to: Job in, Result out. Knows no HTTP.

job -> router -> admission (may it wait?) -> preparation -> the model's queue -> a lane -> rows -> Result
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from runtime.administration import Administration
from runtime.admission import Admission
from runtime.backend import Backend, TorchBackend
from runtime.delivery import BatchWatcher, Delivery
from runtime.departure import Neighbours
from runtime.devices.base import Device
from runtime.errors import ConfigurationError, CotenantError, Draining, ModelLoading
from runtime.gauges import gauges
from runtime.loader import Loader
from runtime.machinery import Lanes, Machinery
from runtime.memory_limit import memory_limit_bytes
from runtime.metering import Metering
from runtime.models.base import Vocabulary
from runtime.overload import Overload, tokens_of
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.residency import Residency
from runtime.router import Router
from runtime.ticket import Ticket, finished
from runtime.work import MAXSIM_ID, Job, Lane, Result, Task
from runtime.worker import ModelStatus, Worker, builtin

T = TypeVar("T")

log = logging.getLogger(__name__)

REAL_MACHINERY = Machinery()


class Engine:
    """All models of one process on one device."""

    def __init__(
        self, config: RuntimeConfig, backend: Backend | None = None, machinery: Machinery = REAL_MACHINERY
    ) -> None:
        """`backend`: where devices and models come from; torch by default.

        Raises ConfigurationError when two models answer to one name. Loads nothing.
        """
        self.config = config
        self._backend = backend or TorchBackend()
        self.metering = Metering()
        self.retiring = False
        self.draining = False
        self.device: Device | None = None
        self.admission: Admission | None = None
        self._router = Router(Worker(spec) for spec in config.models)
        self._machinery = machinery
        self._preparation = machinery.preparation(config.tokenizer_threads)
        self._maxsim = builtin(MAXSIM_ID, Task.MAXSIM)
        if self._router.knows(MAXSIM_ID):
            raise ConfigurationError(f"{MAXSIM_ID} is the name of what is built in: call the model something else")
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load")
        self._policy = machinery.policy(config.models)
        self._overload = Overload(config, machinery.clock)
        self._delivery = Delivery(self.metering)
        self._executor: Lanes | None = None
        self._residency: Residency | None = None
        self._open: set[Ticket] = set()
        self._preparing_us: dict[tuple[str, Lane, str], int] = {}
        """Predicted device time, by line, of what is tokenized and will queue in a moment; whole: ends at zero."""
        self._idle = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        self.metering.watch(lambda: gauges(self._workers, self.admission, self.device))

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load every model; returns at once. Call on the event loop."""
        self._loading = asyncio.create_task(self._load_models())

    async def wait_loaded(self) -> None:
        """Until every model is ready or failed. Raises ConfigurationError when the device can't be opened."""
        if self._loading is not None:
            await asyncio.shield(self._loading)

    def begin_retire(self) -> None:
        """Turn `ready` red and refuse bulk work; online jobs are still taken."""
        self.retiring = True

    def begin_drain(self) -> None:
        """Refuse new jobs and turn `ready` red; jobs in flight go on."""
        self.retiring = self.draining = True

    async def stop(self) -> None:
        """Wait for the jobs in flight, complete every future, end the threads."""
        self.begin_drain()
        if self._loading is not None:
            self._loading.cancel()
        if self._residency is not None:
            await self._residency.stop()
        if self._open:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), self.config.server.drain_timeout_s)
            except TimeoutError:
                log.warning("%d jobs were still in flight when the drain time ran out", len(self._open))
        for ticket in list(self._open):
            ticket.fail(Draining("the server stopped before this request was done"))
        self._preparation.close()
        self._loader.shutdown(wait=False, cancel_futures=True)
        if self._executor is not None:
            await asyncio.to_thread(self._executor.stop)

    @property
    def ready(self) -> bool:
        """Every required model serves or is loaded when asked for, and the server isn't about to end."""
        return not self.retiring and all(worker.is_ready for worker in self._router.workers if worker.spec.required)

    def describe(self) -> list[ModelStatus]:
        """Every model as it is now, in the registry's order."""
        return [worker.status() for worker in self._router.workers]

    def watch_batches(self, watcher: BatchWatcher) -> None:
        """Tell `watcher` of every batch that was answered."""
        self._delivery.watcher = watcher

    # -- the operator -------------------------------------------------------------------------------------------

    @property
    def admin(self) -> Administration:
        """What an operator may see and change. Raises ModelLoading until the device is open."""
        if self._residency is None or self.admission is None or self.device is None:
            raise ModelLoading("the device is still being opened")
        return Administration(self._router, self._residency, self.admission, self.device)

    async def reconfigure(self, config: RuntimeConfig) -> None:
        """Serve the models of `config` from now on, and no others; the other settings stay as they are.

        A model whose settings allow it stays loaded; one that must be loaded anew answers what it has queued first.
        Raises ModelLoading until the device is open.
        """
        administration = self.admin
        self._router = administration.succession(config.models)
        self.config = self.config.model_copy(update={"models": config.models})
        for spec in config.models:
            self._policy.know(spec)
        await administration.residency.adopt(self._workers)

    @property
    def _workers(self) -> list[Worker]:
        """Those of the registry, behind what is built in."""
        return [self._maxsim, *self._router.workers]

    # -- work ---------------------------------------------------------------------------------------------------

    def resolve(self, name: str | None, task: Task | None) -> ModelSpec:
        """The model that a client's name means; see Router.resolve."""
        return self._router.resolve(name, task).spec

    async def run(self, job: Job) -> Result:
        """Compute a Job. Cancelling the awaiting task drops what still waits.

        Raises the tree of `runtime.errors`: not ready, draining, queue full, its deadline passed, bad dimensions or
        prompt, a failed model.
        """
        worker = self._maxsim if job.model == MAXSIM_ID else self._router.by_id(job.model)
        arrived_s = self._machinery.clock.now_s()
        try:
            await self._until_loaded(worker, job)
            job, tokens = self._let_in(worker, job)
            ticket = Ticket(job, worker.spec.slo_ms / 1000.0, self._machinery.clock, arrived_s)
            self._enter(worker, ticket)
            try:
                await self._overload.in_time(job.deadline_s, self._answered(worker, ticket, tokens))
            finally:
                self._leave(worker, ticket)
        except CotenantError as error:
            self.metering.observe_error(worker.spec.name, error.code)
            raise
        except asyncio.CancelledError:
            self.metering.observe_cancel(worker.spec.name)
            raise
        result = finished(ticket, worker.model)
        self.metering.observe_job(worker.spec.name, job.tenant, result.tokens, result.truncated_inputs, result.timings)
        return result

    async def consult(self, model_id: str, question: Callable[[Vocabulary], T], deadline_s: float | None = None) -> T:
        """What a model's tokenizer answers, from the preparation pool. Raises as `run` does."""
        if self.draining:
            raise Draining("the server is shutting down")
        worker = self._router.by_id(model_id)
        await self._loaded(worker, deadline_s)
        vocabulary = worker.ready_model(None).vocabulary()
        return await self._overload.in_time(deadline_s, self._preparation.consult(vocabulary, question))

    async def _until_loaded(self, worker: Worker, job: Job) -> None:
        self._check_takes(job)
        worker.check_can(job.task)
        await self._loaded(worker, job.deadline_s)

    async def _loaded(self, worker: Worker, deadline_s: float | None) -> None:
        self._overload.check_not_late(deadline_s)
        if self._residency is None:
            raise ModelLoading("the device is still being opened")
        loaded = self._residency.until_ready(worker, self.config.load_wait_s, deadline_s)
        await self._overload.in_time(deadline_s, loaded)

    def _check_takes(self, job: Job) -> None:
        if self.draining or (self.retiring and job.lane is Lane.BULK):
            raise Draining("the server is shutting down")

    def _let_in(self, worker: Worker, job: Job) -> tuple[Job, int]:
        """`job` in the lane in which it will run, and about how many tokens it has."""
        self._check_takes(job)
        tokens = tokens_of(worker, job)
        if self._executor is None or self.admission is None or self.device is None:
            raise ModelLoading("the device is still being opened")
        work_ms, concurrency = tokens * worker.cost.ms_per_token, self.device.concurrency
        job = self._overload.in_its_lane(job, work_ms / concurrency.lanes)
        small = job.lane is Lane.ONLINE and concurrency.is_small(job.inputs)
        ahead = self._executor.ahead(worker, job, tokens, small)
        if self._preparing_us and not small:
            ahead = ahead.behind(self._preparing_us.get(job.line, 0) / 1000.0 / concurrency.lanes)
        self._overload.check(worker, job, tokens, ahead, small, self.admission)
        return job, tokens

    async def _answered(self, worker: Worker, ticket: Ticket, tokens: int) -> None:
        """Prepare and queue a Job of about so many tokens, then wait for its rows."""
        job = ticket.job
        line, estimate_us = job.line, round(tokens * worker.cost.ms_per_token * 1000.0)
        self._preparing_us[line] = self._preparing_us.get(line, 0) + estimate_us
        try:
            prepared = await self._preparation.prepare(worker.ready_model(job.task), job)
        finally:
            if left_us := self._preparing_us.pop(line, 0) - estimate_us:
                self._preparing_us[line] = left_us
        self._overload.check_sizes(worker, prepared)
        assert self._executor is not None
        self._executor.submit(worker, job.lane, ticket.open(prepared))
        await ticket.future

    def _enter(self, worker: Worker, ticket: Ticket) -> None:
        self._open.add(ticket)
        worker.results_pending += 1

    def _leave(self, worker: Worker, ticket: Ticket) -> None:
        """The Job is over, well or not: what still waits of it is dropped before the device sees it."""
        self._open.discard(ticket)
        worker.results_pending -= 1
        if self._executor is not None and not ticket.answered:
            self._executor.drop(worker, ticket.job.lane, ticket.entries)
        if not self._open:
            self._idle.set()
        if self._residency is not None:
            self._residency.departures.note_work_done(worker)

    # -- loading ------------------------------------------------------------------------------------------------

    async def _load_models(self) -> None:
        loop = asyncio.get_running_loop()
        self.device = await loop.run_in_executor(self._loader, self._backend.open_device, self.config)
        limit = memory_limit_bytes(self.config.memory_budget_bytes, self.device.memory())
        lanes = self.device.concurrency.threads
        self.admission = Admission(limit, self.device.base_bytes(), lanes, self.metering)
        self._delivery.open(loop)
        self._executor = self._machinery.lanes(
            self.device, self._policy, self._delivery.from_lane, self.config.idle_wait_ms
        )
        self._executor.start()
        self._residency = self._make_residency(self.device, self.admission, self._executor)
        self._delivery.work_done = self._residency.departures.note_work_done
        await self._residency.start(self._workers)

    def _make_residency(self, device: Device, admission: Admission, executor: Lanes) -> Residency:
        """Residency, known to those whom it can help when memory runs out."""
        residency = Residency(
            Loader(self._backend, device, self._loader),
            device,
            admission,
            self.metering,
            Neighbours(holds=executor.holds, loaded=self._note_loaded),
            self._machinery.rules(self.config.min_residence_s),
        )
        executor.execution.make_room = residency.make_room
        self._overload.most_tokens_ever = lambda worker: admission.most_tokens_ever(worker.spec.id)
        return residency

    def _note_loaded(self, worker: Worker) -> None:
        self._policy.predict_ms[worker.spec.id] = worker.cost
