"""How models leave memory: drained, then offloaded or let go; by themselves after their idle time.

Lives on the event loop; the loader thread does the slow part.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Literal

from runtime.admission import DEVICE_FULL_RETRY_S, Admission
from runtime.devices.base import Device
from runtime.eviction import Candidate, Standing, victims, wait_for_room_s
from runtime.loader import Loader
from runtime.machinery import Rules
from runtime.metering import Metering
from runtime.worker import State, Worker

log = logging.getLogger(__name__)

EVICTION_PATIENCE_S = 60.0
"""How long a lane thread waits for idle models to leave."""

Reason = Literal["evicted", "idle", "asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What residency asks of those who run models, and tells them."""

    holds: Callable[[Worker], bool]
    """Whether inputs of a worker wait or run."""
    loaded: Callable[[Worker], None]
    """A worker has come into memory, with a new cost line."""


class Departures:
    """Takes workers out of memory, never with work queued or in flight."""

    def __init__(
        self,
        loader: Loader,
        admission: Admission,
        metering: Metering,
        neighbours: Neighbours,
        left: Callable[[], None],
    ) -> None:
        """`left` is called after each departure."""
        self._loader = loader
        self._admission = admission
        self._metering = metering
        self._neighbours = neighbours
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._tasks: dict[Worker, asyncio.Task[None]] = {}
        self._work_done: dict[Worker, asyncio.Event] = {}
        self._idle_timers: dict[Worker, asyncio.TimerHandle] = {}

    async def stop(self) -> None:
        """Cancel what is under way."""
        for timer in self._idle_timers.values():
            timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_needed(self, worker: Worker) -> bool:
        """Whether it has work, or somebody waits for it."""
        return worker.waiting > 0 or self._has_work(worker)

    def candidates(self, workers: Iterable[Worker], newcomer: Worker, rules: Rules) -> list[Candidate]:
        """Those of `workers` that are in memory and not pinned, as eviction judges them beside `newcomer`."""
        now_s = rules.now_s()
        wanted = _standing(newcomer, now_s)
        found: list[Candidate] = []
        for worker in workers:
            if worker.model is not None and not worker.pinned and worker is not newcomer:
                claim = rules.replacement(_standing(worker, now_s), wanted, rules.min_residence_s)
                busy = not worker.serves or self.is_needed(worker)
                found.append(Candidate(model=worker.spec.id, value=claim.value, busy=busy, stays_s=claim.stays_s))
        return found

    def pinned(self, workers: Iterable[Worker], newcomer: Worker) -> dict[str, str]:
        """The names, by id, of those of `workers` that are in memory and stay."""
        there = [each for each in workers if each.model is not None and each is not newcomer]
        return {each.spec.id: each.spec.name for each in there if each.pinned}

    async def find_room(
        self, worker: Worker, workers: Collection[Worker], evict: bool, device: Device, rules: Rules
    ) -> float:
        """Before `worker` is loaded: where the books say that it fits and the device does not, sweep, then evict.

        The books don't know of what other processes take, nor of what a C library keeps. Those of `workers` leave that
        may leave now, if that will do. Returns after how many seconds to ask again if it won't.
        """
        model = worker.spec.id
        if self._admission.bytes_short(model, device.memory()):
            await self._loader.run(self._loader.sweep)
        await self._let_go_while_short(worker, workers, device)
        short = self._admission.bytes_short(model, device.memory())
        by_id = {each.spec.id: each for each in workers if each.model is not None and evict}

        def fits(gone: frozenset[str]) -> bool:
            return sum(by_id[name].footprint.resident_bytes for name in gone) >= short

        candidates = self.candidates(by_id.values(), worker, rules)
        leaving = victims(candidates, fits)
        if leaving:
            self._admission.note_device_full(model, short, leaving)
            await asyncio.gather(*[self.depart(by_id[name], "evicted") for name in leaving])
            await self._let_go_while_short(worker, workers, device)
        wait_s = wait_for_room_s(candidates, fits) if leaving is None else None
        return DEVICE_FULL_RETRY_S if wait_s is None else wait_s

    async def _let_go_while_short(self, newcomer: Worker, workers: Iterable[Worker], device: Device) -> None:
        """Those that are offloaded keep what the process holds for them no longer than there is room."""
        for worker in workers:
            if not self._admission.bytes_short(newcomer.spec.id, device.memory()):
                break
            if worker is not newcomer and worker.parked is not None and worker.footprint.host_bytes:
                await self.let_go_parked(worker)

    async def clear_offloaded(self, workers: Iterable[Worker]) -> None:
        """Let those offloaded ones go whose remains have no room beside what is booked."""
        crowding = set(self._admission.crowding())
        for worker in workers:
            if worker.spec.id in crowding and worker.parked is not None:
                await self.let_go_parked(worker)

    async def let_go_parked(self, worker: Worker) -> None:
        """Nothing stays of `worker` where it is offloaded."""
        parked, worker.parked = worker.parked, None
        if worker.state is State.OFFLOADED:
            worker.state = State.UNLOADED
        if parked is not None:
            await self._loader.run(self._loader.let_go, parked)
            del parked
            self._admission.note_let_go(worker.spec.id)
        await self._loader.run(self._loader.sweep)

    async def over(self, worker: Worker) -> None:
        """Until `worker` has left, if it is about to."""
        if worker in self._tasks:
            await asyncio.wait({self._tasks[worker]})

    async def depart(self, worker: Worker, reason: Reason) -> None:
        """Drain `worker`, then offload it; let it go where it can't be offloaded or an administrator asked."""
        await asyncio.wait({self._tasks.get(worker) or self._begin(worker, reason)})

    def make_room(self, others: Sequence[Worker], worker: Worker, tokens: int) -> bool:
        """Evict those of `others` that are idle, for one more try of an input; whether any left. In a lane thread.

        Nobody leaves where a simulation's lane is the event loop itself: that may not wait.
        """
        if threading.get_ident() == self._thread:
            return False
        evicting = asyncio.run_coroutine_threadsafe(self._evict_idle(others, worker, tokens), self._loop)
        try:
            return evicting.result(EVICTION_PATIENCE_S)
        except (TimeoutError, CancelledError):
            evicting.cancel()
            return False

    async def _evict_idle(self, others: Sequence[Worker], worker: Worker, tokens: int) -> bool:
        idle = [each for each in others if each.serves and not each.pinned and not self.is_needed(each)]
        self._admission.note_out_of_memory(worker.spec.id, tokens, [each.spec.id for each in idle])
        await asyncio.gather(*[self.depart(each, "evicted") for each in idle])
        return bool(idle)

    def note_use(self, worker: Worker) -> None:
        """Somebody asked for `worker`: its idle time ends."""
        timer = self._idle_timers.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def note_work_done(self, worker: Worker) -> None:
        """Work of `worker` is over: whoever waits for its idleness looks again, and its idle time may begin."""
        if worker in self._work_done and not self._has_work(worker):
            self._work_done[worker].set()
        ttl_s = worker.spec.idle_ttl_s
        if ttl_s is not None and worker.serves and not self.is_needed(worker):
            self.note_use(worker)
            self._idle_timers[worker] = asyncio.get_running_loop().call_later(ttl_s, self._leave_idle, worker)

    def _leave_idle(self, worker: Worker) -> None:
        del self._idle_timers[worker]
        if worker.serves and not worker.pinned and not self.is_needed(worker) and worker not in self._tasks:
            self._begin(worker, "idle")

    def _begin(self, worker: Worker, reason: Reason) -> asyncio.Task[None]:
        task = self._tasks[worker] = asyncio.create_task(self._drain_and_leave(worker, reason))
        task.add_done_callback(lambda _: self._tasks.pop(worker, None))
        return task

    async def _drain_and_leave(self, worker: Worker, reason: Reason) -> None:
        worker.state = State.DRAINING
        while self._has_work(worker):
            done = self._work_done[worker] = asyncio.Event()
            await done.wait()
        self._work_done.pop(worker, None)
        model, worker.model = worker.model, None
        assert model is not None
        id, footprint = worker.spec.id, worker.footprint
        may_stay = reason != "asked" and self._admission.has_room_offloaded(id, footprint)
        if may_stay and await self._loader.run(self._loader.park, model):
            worker.parked, worker.state = model, State.OFFLOADED
            self._admission.note_offloaded(id, footprint)
        else:
            await self._loader.run(self._loader.let_go, model)
            del model
            await self._loader.run(self._loader.sweep)
            worker.state = State.UNLOADED
            self._admission.note_let_go(id)
        worker.evictions += reason == "evicted"
        self._admission.forget(id)
        self._left()
        self._metering.observe_eviction(worker.spec.name, reason)
        log.info("%s is %s (%s)", worker.spec.name, worker.state, reason)

    def _has_work(self, worker: Worker) -> bool:
        return worker.results_pending > 0 or self._neighbours.holds(worker)


def _standing(worker: Worker, now_s: float) -> Standing:
    return Standing(
        requests_per_s=worker.demand.per_s(now_s),
        reload_s=worker.reload_s,
        resident_bytes=worker.footprint.resident_bytes,
        idle_s=now_s - worker.demand.latest_s,
        resident_s=now_s - worker.resident_since_s,
        refused_s=0.0 if worker.refused_since_s is None else now_s - worker.refused_since_s,
        timed=worker.is_timed,
    )
