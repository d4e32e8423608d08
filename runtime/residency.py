"""Which models are in memory: loads when asked, makes room, drains, offloads, lets go. Serving never stops for it.

Every decision is taken on the event loop from what is true at that moment; the loader thread does the slow work, one
load at a time. Requests for a model that is on its way wait for the one load that is under way.

    unloaded | offloaded --load--> loading --> ready <--> unwell --drain--> draining --> unloaded | offloaded
                                   loading --> failed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable

from runtime.admission import Admission
from runtime.batch_queue import BatchQueue
from runtime.chunk_limit import slow_unit, slow_unit_warning
from runtime.departure import Departures, Neighbours
from runtime.devices.base import Device
from runtime.errors import CapacityError, CotenantError, Draining, ModelLoading
from runtime.footprint import Footprint
from runtime.load_times import Coming
from runtime.loader import Loaded, Loader, as_problem
from runtime.machinery import Rules
from runtime.metering import Metering
from runtime.work import MAXSIM_ID
from runtime.worker import AWAY, State, Worker

log = logging.getLogger(__name__)

LEAST_ETA_S = 1.0


class Residency:
    """Moves workers between their states. Lives on the event loop."""

    def __init__(
        self,
        loader: Loader,
        device: Device,
        admission: Admission,
        metering: Metering,
        neighbours: Neighbours,
        rules: Rules,
    ) -> None:
        self._loader = loader
        self._device = device
        self._admission = admission
        self._metering = metering
        self._neighbours = neighbours
        self.departures = Departures(loader, admission, metering, neighbours, self._apply_budgets)
        self._rules = rules
        self._workers: list[Worker] = []
        self._turn = asyncio.Lock()
        """Held by the one load that is under way."""
        self._line: list[Worker] = []
        self._loads: dict[Worker, asyncio.Task[CotenantError | None]] = {}
        self._loading_since_s = 0.0
        self._closed = False

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self, workers: Iterable[Worker]) -> None:
        """Load those that are always resident, in turn; one that has no room beside the others is left for later."""
        self._workers = list(workers)
        for worker in self._workers:
            await self._look_up_task(worker)
        for worker in self._workers:
            if not worker.started:
                await self._start_one(worker)

    async def adopt(self, workers: Iterable[Worker]) -> None:
        """Serve these from now on: those that aren't among them leave, new ones are loaded as at the start."""
        workers = list(workers)
        gone = [worker for worker in self._workers if worker not in workers]
        self._workers = [*workers, *gone]
        await asyncio.gather(*[self.unload(worker) for worker in gone])
        await self.start(workers)

    async def stop(self) -> None:
        """Cancel what is under way: whoever waits for a load is told that the server ends."""
        self._closed = True
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await self.departures.stop()

    async def _start_one(self, worker: Worker) -> None:
        if worker.spec.resident == "always" and not worker.serves:
            await asyncio.wait({self._begin(worker, evict=False)})
        worker.started = True

    async def _look_up_task(self, worker: Worker) -> None:
        """Learn what a model does before its turn to load comes, so that requests of other kinds are told early."""
        if worker.task is None:
            with contextlib.suppress(Exception):  # the load itself will say what is wrong
                worker.task = await self._loader.run(self._loader.task_of, worker.spec)

    # -- requests -----------------------------------------------------------------------------------------------

    async def until_ready(self, worker: Worker, patience_s: float, deadline_s: float | None = None) -> None:
        """Until `worker` serves; loads it if need be. Waits at most `patience_s`, and not at all if that won't do.

        Nor does it wait where `deadline_s`, by the clock, is sure to pass; that it passes is the caller's to notice.
        Raises ModelLoading with the expected time, NoRoomNow with the time at which others may leave, PinnedOut,
        ModelFailed, DoesNotFit, Draining.
        """
        self._note_use(worker)
        until_s = self._rules.now_s() + patience_s
        while not worker.serves:
            worker.check_not_failed()
            load = self._begin(worker)
            eta_s = self.eta_s(worker)
            now_s = self._rules.now_s()
            left_s = until_s - now_s
            if eta_s > left_s or (deadline_s is not None and now_s + eta_s > deadline_s):
                raise ModelLoading(f"the model is ready in about {eta_s:.0f} s", retry_after_s=eta_s)
            problem = await self._wait(worker, load, left_s)
            if isinstance(problem, CapacityError):
                raise type(problem)(problem.message, retry_after_s=problem.retry_after_s)

    def eta_s(self, worker: Worker) -> float:
        """Predicted seconds until `worker` serves, loads that are ahead of it included."""
        ahead = self._line[: self._line.index(worker)] if worker in self._line else self._line
        total_s = sum(each.load_s for each in ahead) + worker.load_s
        if self._line:
            total_s -= self._rules.now_s() - self._loading_since_s
        return max(total_s, LEAST_ETA_S)

    async def _wait(
        self, worker: Worker, load: asyncio.Task[CotenantError | None], patience_s: float
    ) -> CotenantError | None:
        worker.waiting += 1
        try:
            done, _ = await asyncio.wait({load}, timeout=patience_s)
        finally:
            worker.waiting -= 1
        if not done:
            raise ModelLoading("the model is still loading", retry_after_s=self.eta_s(worker))
        if load.cancelled():
            raise Draining("the server is shutting down")
        return load.result()

    def _note_use(self, worker: Worker) -> None:
        worker.note_use(self._rules.now_s())
        self.departures.note_use(worker)

    # -- loading ------------------------------------------------------------------------------------------------

    async def load(self, worker: Worker) -> None:
        """Load `worker` now, also one that failed before. Raises what kept it from loading."""
        if worker.state is State.FAILED:
            worker.state, worker.failure = State.UNLOADED, None
        worker.refused_since_s = -math.inf
        while not worker.serves:
            problem = await asyncio.shield(self._begin(worker))
            if problem is not None:
                raise problem

    def _begin(self, worker: Worker, evict: bool = True) -> asyncio.Task[CotenantError | None]:
        """The load of `worker` that is under way, or else a new one."""
        if self._closed:
            raise Draining("the server is shutting down")
        task = self._loads.get(worker)
        if task is None:
            task = self._loads[worker] = asyncio.create_task(self._bring(worker, evict))
            if not self._line:
                self._loading_since_s = self._rules.now_s()
            self._line.append(worker)
            task.add_done_callback(lambda _: self._end_of_load(worker))
        return task

    def _end_of_load(self, worker: Worker) -> None:
        self._loads.pop(worker, None)
        self._line.remove(worker)
        self._loading_since_s = self._rules.now_s()

    async def _bring(self, worker: Worker, evict: bool) -> CotenantError | None:
        """Load `worker` when its turn comes; what kept it from loading."""
        await self._make_way_for(worker)
        async with self._turn:
            self._loading_since_s = self._rules.now_s()
            came_from, worker.state, worker.detail = worker.state, State.LOADING, None
            try:
                outcome = await self._load(worker, evict)
            except Exception as error:
                problem = as_problem(error)
                unexpected = None if isinstance(error, CotenantError) else error
                level = logging.INFO if isinstance(problem, CapacityError) else logging.ERROR
                log.log(level, "%s is not loaded: %s", worker.spec.name, problem.message, exc_info=unexpected)
            else:
                self._count(worker, outcome)
                return None
            # Outside the except block: its traceback would keep the half-loaded model alive.
            await self._give_up(worker, problem, came_from)
            return problem

    async def _make_way_for(self, worker: Worker) -> None:
        """Until a former self of `worker` has left: its own, or that of another entry of the registry with its id."""
        await self.departures.over(worker)
        for other in self._workers:
            if other is not worker and other.spec.id == worker.spec.id:
                await self.unload(other)

    async def _load(self, worker: Worker, evict: bool) -> Coming:
        spec, loader = worker.spec, self._loader
        if not worker.footprint.resident_bytes:
            worker.footprint = await loader.run(loader.predict, spec)
        candidates = self.departures.candidates(self._workers, worker, self._rules)
        pinned = self.departures.pinned(self._workers, worker)
        leaving = self._admission.reserve(spec.id, worker.footprint, candidates, pinned, evict)
        self._apply_budgets()
        await self.departures.clear_offloaded(self._workers)
        await asyncio.gather(*[self.departures.depart(self._by_id(model), "evicted") for model in leaving])
        wait_s = await self.departures.find_room(worker, self._workers, evict, self._device, self._rules)
        self._admission.verify(spec.id, self._device.memory(), wait_s)
        if worker.parked is not None:
            await loader.run(loader.unpark, worker.parked)
            worker.model, worker.parked = worker.parked, None
            return "returned"
        budget = self._admission.budgets().get(spec.id) or loader.wanted_tokens(spec)
        self._install(worker, await loader.run(loader.load, spec, worker.task, budget))
        return "loaded"

    def _install(self, worker: Worker, loaded: Loaded) -> None:
        worker.task, worker.footprint, worker.cost = loaded.task, loaded.footprint, loaded.cost
        worker.spread_from_tokens = loaded.spread_from_tokens
        worker.queue = BatchQueue(self._device.concurrency.small_tokens)
        worker.device_name = self._device.name
        worker.budget_tokens = self._loader.wanted_tokens(worker.spec)
        worker.model = loaded.model
        self._admission.settle(worker.spec.id, loaded.footprint)
        slos_ms = {each.spec.name: each.spec.slo_ms for each in self._workers if each.spec.id != MAXSIM_ID}
        slow = slow_unit(loaded.unit_ms, slos_ms)
        if slow is not None:
            log.warning("%s", slow_unit_warning(worker.spec.name, loaded.unit_ms, *slow))

    def _count(self, worker: Worker, outcome: Coming) -> None:
        now_s = self._rules.now_s()
        worker.state, worker.failure, worker.started = State.READY, None, True
        took_s = now_s - self._loading_since_s
        worker.load_times.note(outcome, took_s)
        worker.resident_since_s, worker.refused_since_s = now_s, None
        worker.loads += 1
        self._neighbours.loaded(worker)
        self._apply_budgets()
        self.departures.note_work_done(worker)
        self._metering.observe_load(worker.spec.name, took_s, outcome)
        assert worker.model is not None
        log.info("%s is %s after %.1f s: %s", worker.spec.name, outcome, took_s, worker.model.facts.execution_reason)

    async def _give_up(self, worker: Worker, problem: CotenantError, came_from: State) -> None:
        """After a failed load: nothing of it stays."""
        self._admission.forget(worker.spec.id)
        self._apply_budgets()
        later = isinstance(problem, CapacityError)
        worker.state = (came_from if came_from in AWAY else State.UNLOADED) if later else State.FAILED
        worker.detail = worker.last_error = problem.message
        worker.failure = problem
        if not later:
            worker.footprint = Footprint()
            await self.departures.let_go_parked(worker)
        outcome = "no_room" if later else "failed"
        self._metering.observe_load(worker.spec.name, self._rules.now_s() - self._loading_since_s, outcome)

    # -- leaving ------------------------------------------------------------------------------------------------

    async def unload(self, worker: Worker) -> None:
        """Take `worker` out of memory once what it has queued is answered; nothing of it stays."""
        load = self._loads.get(worker)
        if load is not None:
            await asyncio.wait({load})
        if worker.model is not None:
            await self.departures.depart(worker, "asked")
        if worker.parked is not None:
            await self.departures.let_go_parked(worker)

    # -- what is true now ---------------------------------------------------------------------------------------

    def make_room(self, worker: Worker, tokens: int) -> bool:
        """After an out-of-memory on one input: whether idle models left. Blocks; call from a lane thread."""
        return self.departures.make_room([each for each in self._workers if each is not worker], worker, tokens)

    def _by_id(self, model: str) -> Worker:
        return next(worker for worker in self._workers if worker.spec.id == model and worker.model is not None)

    def _apply_budgets(self) -> None:
        budgets = self._admission.budgets()
        for worker in self._workers:
            worker.budget_tokens = budgets.get(worker.spec.id, worker.budget_tokens)
