"""The one object that the edge talks to: Job in, Result out. Knows no HTTP.

job -> router -> admission (may it wait?) -> preparation -> the model's queue -> a lane -> rows -> Result
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from runtime.admission import DEFAULT_SHARE_OF_MEMORY, Admission
from runtime.backend import Backend, TorchBackend
from runtime.batch import Batch
from runtime.devices.base import Device
from runtime.errors import CotenantError, Draining, ExecutionError, ModelLoading
from runtime.executor import Executor
from runtime.metering import Gauge, Metering
from runtime.models.base import Vocabulary
from runtime.preparation import Preparation
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.residency import Residency
from runtime.router import Router
from runtime.scheduling import FairShare
from runtime.ticket import Ticket
from runtime.work import Job, Lane, Result, Task
from runtime.worker import ModelStatus, State, Worker

T = TypeVar("T")

log = logging.getLogger(__name__)


class Engine:
    """All models of one process on one device."""

    def __init__(self, config: RuntimeConfig, backend: Backend | None = None) -> None:
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
        self._preparation = Preparation(config.tokenizer_threads)
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load")
        self._policy = FairShare(weights={spec.id: spec.weight for spec in config.models})
        self._executor: Executor | None = None
        self._open: set[Ticket] = set()
        self._idle = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        self.metering.watch(self._gauges)

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
        if self._open:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), self.config.server.drain_timeout_s)
            except TimeoutError:
                log.warning("%d jobs were still in flight when the drain time ran out", len(self._open))
        for ticket in list(self._open):
            ticket.fail(Draining("the server stopped before this request was done"))
        if self._loading is not None:
            self._loading.cancel()
        self._preparation.close()
        self._loader.shutdown(wait=False, cancel_futures=True)
        if self._executor is not None:
            await asyncio.to_thread(self._executor.stop)

    @property
    def ready(self) -> bool:
        """Every required model serves, and the server isn't draining."""
        return not self.retiring and all(
            worker.state is State.READY for worker in self._router.workers if worker.spec.required
        )

    def describe(self) -> list[ModelStatus]:
        """Every model as it is now, in the registry's order."""
        return [worker.status() for worker in self._router.workers]

    # -- work ---------------------------------------------------------------------------------------------------

    def resolve(self, name: str | None, task: Task | None) -> ModelSpec:
        """The model that a client's name means; see Router.resolve."""
        return self._router.resolve(name, task).spec

    async def run(self, job: Job) -> Result:
        """Compute a Job. Cancelling the awaiting task drops what still waits.

        Raises the tree of `runtime.errors`: not ready, draining, queue full, bad dimensions or prompt, a failed model.
        """
        worker = self._router.by_id(job.model)
        ticket = Ticket(job, worker.spec.slo_ms / 1000.0)
        try:
            self._check_open(worker, job)
            self._enter(worker, ticket)
            try:
                await self._prepare_and_queue(worker, ticket)
                await ticket.future
            finally:
                self._leave(worker, ticket)
        except CotenantError as error:
            self.metering.observe_error(worker.spec.name, error.code)
            raise
        except asyncio.CancelledError:
            self.metering.observe_cancel(worker.spec.name)
            raise
        result = replace(ticket.result(), head=worker.model.facts.head if worker.model else None)
        self.metering.observe_job(worker.spec.name, job.tenant, result.tokens, result.truncated_inputs, result.timings)
        return result

    async def consult(self, model_id: str, question: Callable[[Vocabulary], T]) -> T:
        """What a model's tokenizer answers, from the preparation pool. Raises as `run` does before it queues."""
        if self.draining:
            raise Draining("the server is shutting down")
        vocabulary = self._router.by_id(model_id).ready_model(None).vocabulary()
        return await self._preparation.consult(vocabulary, question)

    def _check_open(self, worker: Worker, job: Job) -> None:
        if self.draining or (self.retiring and job.lane is Lane.BULK):
            raise Draining("the server is shutting down")
        worker.ready_model(job.task)
        if self._executor is None or self.admission is None:
            raise ModelLoading("the device is still being opened")
        most_ms = self.config.max_queue_ms if job.lane is Lane.ONLINE else self.config.max_bulk_queue_ms
        wait_ms = self._executor.waiting_ms(job.lane) + self._preparing_ms()
        self.admission.may_wait(worker.spec.name, job.lane, wait_ms, most_ms)

    def _preparing_ms(self) -> float:
        """Predicted device time of what is being tokenized and will queue in a moment."""
        tokens_ms = sum(w.preparing_tokens * w.cost.ms_per_token for w in self._router.workers if w.preparing_tokens)
        return tokens_ms / (self.device.concurrency.lanes if self.device else 1)

    async def _prepare_and_queue(self, worker: Worker, ticket: Ticket) -> None:
        job = ticket.job
        model = worker.ready_model(job.task)
        estimate = sum(model.cost(item) for item in job.inputs)
        worker.preparing_tokens += estimate
        try:
            prepared = await self._preparation.prepare(model, job)
        finally:
            worker.preparing_tokens -= estimate
        assert self._executor is not None
        self._executor.submit(worker, job.lane, ticket.open(prepared))

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

    # -- loading ------------------------------------------------------------------------------------------------

    async def _load_models(self) -> None:
        loop = asyncio.get_running_loop()
        self.device = await loop.run_in_executor(self._loader, self._backend.open_device, self.config)
        memory = self.device.memory()
        limit = self.config.memory_budget_bytes or int(memory.total_bytes * DEFAULT_SHARE_OF_MEMORY)
        lanes = self.device.concurrency.threads
        self.admission = Admission(limit, memory.used_by_us_bytes, lanes, self.metering)
        self._executor = Executor(self.device, self._policy, self._from_lane, self.config.idle_wait_ms)
        self._loop = loop
        self._executor.start()
        residency = Residency(self._backend, self.device, self.admission, self.metering, self._loader)
        await residency.load_all(self._router.workers, self._loaded)

    def _loaded(self, worker: Worker) -> None:
        self._policy.predict_ms[worker.spec.id] = worker.cost

    # -- outcomes -----------------------------------------------------------------------------------------------

    def _from_lane(self, batch: Batch) -> None:
        """In a lane thread: hand a finished batch to the event loop, one hop for all of it."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch)
        except RuntimeError:
            log.warning("a batch of %s finished after the event loop ended", batch.worker.spec.name)

    def _deliver(self, batch: Batch) -> None:
        """On the event loop: give every entry its row or its error, come what may."""
        try:
            self._answer(batch)
        except Exception:
            log.exception("a batch of %s could not be delivered", batch.worker.spec.name)
            for entry in batch.entries:
                entry.owner.fail(ExecutionError("the answer could not be delivered"))

    def _answer(self, batch: Batch) -> None:
        worker, tokens = batch.worker, max(batch.tokens, 1)
        problem: CotenantError | None = None
        for entry, answer in zip(batch.entries, batch.answers, strict=True):
            entry.owner.ran(
                queue_ms=(batch.taken_s - entry.queued_s) * 1000.0,
                device_ms=batch.device_ms,
                share_ms=batch.device_ms * entry.prepared.tokens / tokens,
                landed_s=batch.landed_s,
            )
            if isinstance(answer, CotenantError):
                problem = answer
                entry.owner.fail(answer)
            else:
                entry.owner.land(entry.index, answer)
        worker.note_health(problem.code if problem else None)
        if problem is None:
            worker.note_good_batch()
            worker.cost.learn(tokens, batch.device_ms)
        self.metering.observe_batch(worker.spec.name, batch.lane, len(batch.entries), tokens, batch.device_ms)

    def _gauges(self) -> Iterator[Gauge]:
        """What is true at the moment of a scrape."""
        workers = self._router.workers
        lanes = [(worker, lane) for worker in workers for lane in Lane]
        yield (
            "queue_items",
            "Inputs that wait",
            ("model", "lane"),
            [((w.spec.name, lane), w.queue.items(lane)) for w, lane in lanes],
        )
        yield (
            "queue_tokens",
            "Tokens that wait",
            ("model", "lane"),
            [((w.spec.name, lane), w.queue.tokens(lane)) for w, lane in lanes],
        )
        yield (
            "model_state",
            "1 for the state that a model is in",
            ("model", "state"),
            [((w.spec.name, state), float(w.state is state)) for w in workers for state in State],
        )
        yield (
            "model_memory_bytes",
            "Memory by model",
            ("model", "kind"),
            [
                sample
                for w in workers
                for sample in (
                    ((w.spec.name, "weights"), float(w.footprint.weight_bytes)),
                    ((w.spec.name, "activations"), float(w.footprint.activation_bytes)),
                )
            ],
        )
        if self.admission is not None and self.device is not None:
            memory = self.device.memory()
            kinds = {
                "limit": self.admission.limit_bytes,
                "booked": self.admission.used_bytes(),
                "used": memory.used_by_us_bytes,
                "free": memory.free_bytes,
                "total": memory.total_bytes,
            }
            yield "memory_bytes", "Device memory", ("kind",), [((kind,), float(n)) for kind, n in kinds.items()]
