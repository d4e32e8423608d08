"""The engine's wheels without threads: lanes as events of a virtual loop, over the same dispatch and execution."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from runtime.batch import Batch
from runtime.clock import VirtualClock
from runtime.devices.base import Device
from runtime.dispatch import Ahead, Dispatch
from runtime.entry import Entry
from runtime.eviction import Replacement, by_value
from runtime.execution import Execution
from runtime.executor import Deliver
from runtime.machinery import Lanes, Machinery
from runtime.models.base import Model
from runtime.models.simulated import SimulatedFlight
from runtime.preparation import Preparation
from runtime.registry import ModelSpec
from runtime.scheduling import FairShare, Policy
from runtime.work import Job, Lane, Prepared
from runtime.worker import Worker


@dataclass(slots=True, eq=False)
class _LaneThread:
    """Where one lane's thread would stand."""

    spare: bool
    flying: deque[Batch] = field(default_factory=deque)
    is_landing: bool = False
    """It waits for its oldest batch, and takes nothing until that is here."""
    free_s: float = 0.0


class SimulatedLanes:
    """See Executor; called on the virtual loop only."""

    def __init__(
        self,
        device: Device,
        policy: Policy,
        deliver: Deliver,
        idle_wait_ms: float,
        clock: VirtualClock,
        observe: Callable[[Batch], None],
    ) -> None:
        """`observe` is told of each batch as it lands."""
        self.execution = Execution(device)
        self._clock = clock
        self._deliver = deliver
        self._observe = observe
        self._dispatch = Dispatch(device.concurrency, policy, idle_wait_ms)
        self._flights = device.concurrency.flights
        self._lanes = [_LaneThread(index >= device.concurrency.lanes) for index in range(device.concurrency.threads)]
        self._loop = asyncio.get_running_loop()
        self._is_due = False

    def start(self) -> None:
        """Nothing to start."""

    def submit(self, worker: Worker, lane: Lane, entries: Sequence[Entry]) -> None:
        """See Executor.submit."""
        self._dispatch.submit(worker, lane, entries)
        self._wake()

    def drop(self, worker: Worker, lane: Lane, entries: Sequence[Entry]) -> int:
        """See Executor.drop."""
        return self._dispatch.drop(worker, lane, entries)

    def holds(self, worker: Worker) -> bool:
        """See Executor.holds."""
        return self._dispatch.holds(worker)

    def ahead(self, worker: Worker, job: Job, tokens: int, small: bool = False) -> Ahead:
        """See Executor.ahead."""
        return self._dispatch.ahead(worker, job, tokens, self._clock.now_s(), small)

    def stop(self) -> None:
        """Nothing to end."""

    def _wake(self) -> None:
        """Let every lane look for work once all that happens at this moment has happened."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        for lane in self._lanes:
            if not lane.is_landing:
                self._advance(lane)

    def _advance(self, lane: _LaneThread) -> None:
        """What a lane's thread does between two waits."""
        while len(lane.flying) < self._flights:
            batch, patience_s = self._dispatch.form(lane.spare, self._clock.now_s())
            if batch is None:
                if not lane.flying and patience_s is not None:
                    self._loop.call_later(patience_s, self._wake)
                break
            self.execution.launch(batch)
            lane.flying.append(batch)
        if lane.flying:
            lane.is_landing = True
            flight = lane.flying[0].flight
            ready_s = flight.ready_s if isinstance(flight, SimulatedFlight) else self._clock.now_s()
            self._loop.call_at(ready_s, self._land, lane)

    def _land(self, lane: _LaneThread) -> None:
        """Land in the lane's own time: the rescue of a failed batch lasts, and other lanes go on beside it."""
        batch = lane.flying.popleft()
        now_s = self._clock.now_s()
        self.execution.land(batch, lane.free_s)
        self._clock.set(now_s)
        self._loop.call_at(batch.landed_s, self._landed, lane, batch)

    def _landed(self, lane: _LaneThread, batch: Batch) -> None:
        lane.free_s, lane.is_landing = batch.landed_s, False
        self._dispatch.landed(batch)
        self._observe(batch)
        self._deliver(batch)
        self._wake()


class InPlace(Preparation):
    """Prepares on the loop: simulated inputs take no time, and there are no threads."""

    async def prepare(self, model: Model, job: Job) -> list[Prepared]:
        """See Preparation.prepare."""
        return model.prepare(job)


def virtual_machinery(
    clock: VirtualClock,
    observe: Callable[[Batch], None],
    policy: Callable[[Iterable[ModelSpec]], Policy] = FairShare.of,
    replacement: Replacement = by_value,
) -> Machinery:
    """For an engine on a VirtualLoop of the same clock. `observe` is told of each batch as it lands."""

    def lanes(device: Device, policy: Policy, deliver: Deliver, idle_wait_ms: float) -> Lanes:
        return SimulatedLanes(device, policy, deliver, idle_wait_ms, clock, observe)

    return Machinery(clock=clock, lanes=lanes, preparation=InPlace, policy=policy, replacement=replacement)
