"""The only threads that run models.

Threads and who does what:
- the event loop pushes entries and is told outcomes, one hop for a whole batch;
- each lane thread waits until there is work, asks the policy who is next and forms the batch then, so that batches
  grow by themselves while the device works;
- spare lane threads (on CPU) wait for small online inputs while large work holds the lanes;
- with two flights (a GPU) a lane launches batch n+1 before it lands batch n.

Which batch is next is `dispatch.py`'s, how it runs `execution.py`'s. No model error ends a thread. One lock guards all
queues. Nothing sleeps or polls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from runtime.batch import Batch
from runtime.devices.base import Device
from runtime.dispatch import Ahead, Dispatch
from runtime.entry import Entry
from runtime.execution import Execution
from runtime.scheduling import Policy
from runtime.work import Job, Lane
from runtime.worker import Worker

Deliver = Callable[[Batch], None]


class Executor:
    """Lane threads over all workers' queues."""

    def __init__(self, device: Device, policy: Policy, deliver: Deliver, idle_wait_ms: float = 0.0) -> None:
        """`deliver` is called from a lane thread with each finished batch; it must not block."""
        self.execution = Execution(device)
        self._device = device
        self._deliver = deliver
        self._dispatch = Dispatch(device.concurrency, policy, idle_wait_ms)
        self._now_s = device.clock.now_s
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Lane threads wait here."""
        self._small_work = threading.Condition(self._lock)
        """Spare lane threads wait here."""
        self._stopping = False
        self._threads = [
            threading.Thread(
                target=self._serve, args=(index >= device.concurrency.lanes,), name=f"lane-{index}", daemon=True
            )
            for index in range(device.concurrency.threads)
        ]

    def start(self) -> None:
        """Start the lane threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, worker: Worker, lane: Lane, entries: Sequence[Entry]) -> None:
        """Queue all of a Job's entries. Never blocks for long."""
        with self._lock:
            self._dispatch.submit(worker, lane, entries)
            self._wake()

    def drop(self, worker: Worker, lane: Lane, entries: Iterable[Entry]) -> int:
        """Forget entries that still wait; returns how many."""
        with self._lock:
            return self._dispatch.drop(worker, lane, entries)

    def holds(self, worker: Worker) -> bool:
        """Whether inputs of `worker` wait or run."""
        with self._lock:
            return self._dispatch.holds(worker)

    def ahead(self, worker: Worker, job: Job, tokens: int, small: bool = False) -> Ahead:
        """See Dispatch.ahead."""
        with self._lock:
            return self._dispatch.ahead(worker, job, tokens, self._now_s(), small)

    def stop(self) -> None:
        """End the threads after the batches in flight; what still waits is never run. Blocks."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
            self._small_work.notify_all()
        for thread in self._threads:
            thread.join()

    # -- a lane thread ------------------------------------------------------------------------------------------

    def _serve(self, spare: bool) -> None:
        self._device.enter_lane(spare)
        flying: deque[Batch] = deque()
        free_s = 0.0
        while True:
            batch = self._next(spare, wait=not flying)
            if batch is None and not flying:
                return
            if batch is not None:
                self.execution.launch(batch)
                flying.append(batch)
                if len(flying) < self._device.concurrency.flights:
                    continue
            landing = flying.popleft()
            self.execution.land(landing, free_s)
            free_s = landing.landed_s
            with self._lock:
                self._dispatch.landed(landing)
                self._wake()
            self._deliver(landing)

    def _wake(self) -> None:
        """Wake whoever could take more work now."""
        (self._work if self._dispatch.lanes_are_free() else self._small_work).notify()

    def _next(self, spare: bool, wait: bool) -> Batch | None:
        """Form the next batch. None: the executor stops, or nothing may start now and `wait` is False."""
        with self._lock:
            while not self._stopping:
                batch, patience_s = self._dispatch.form(spare, self._now_s())
                if batch is not None and self._dispatch.work_waits():
                    self._wake()
                if batch is not None or not wait:
                    return batch
                (self._small_work if spare else self._work).wait(patience_s)
            return None
