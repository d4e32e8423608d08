"""The only threads that run models.

Threads and who does what:
- the event loop pushes entries and is told outcomes, one hop for a whole batch;
- each lane thread waits until there is work, asks the policy who is next and forms the batch then, so that batches
  grow by themselves while the device works;
- spare lane threads (on CPU) wait for small online inputs while large work holds the lanes;
- with two flights (a GPU) a lane launches batch n+1 before it lands batch n.

No model error ends a thread: a batch that fails is split until the guilty inputs are alone, and only they fail.
One lock guards all queues. Nothing sleeps or polls.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from runtime.batch import Batch
from runtime.batch_queue import Entry
from runtime.devices.base import Device
from runtime.models.base import Flight
from runtime.salvage import Answer, Salvage, as_error, checked
from runtime.scheduling import Policy
from runtime.work import Choice, Lane, Waiting
from runtime.worker import Worker

log = logging.getLogger(__name__)

BUSY_WAIT_S = 0.003
"""Longest that a small batch waits for company beside another one."""
LEAST_SHARE_TOKENS = 128
"""Work is not split among idle lanes below this: a batch's fixed cost would be paid twice for nothing."""


class Executor:
    """Lane threads over all workers' queues."""

    def __init__(
        self, device: Device, policy: Policy, deliver: Callable[[Batch], None], idle_wait_ms: float = 0.0
    ) -> None:
        """`deliver` is called from a lane thread with each finished batch; it must not block."""
        self._device = device
        self._policy = policy
        self._deliver = deliver
        self._idle_wait_s = idle_wait_ms / 1000.0
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Lane threads wait here."""
        self._small_work = threading.Condition(self._lock)
        """Spare lane threads wait here."""
        self._active: dict[tuple[str, Lane], Worker] = {}
        self._running: list[Batch] = []
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
            worker.queue.push(lane, entries)
            self._active[worker.spec.id, lane] = worker
            self._wake()

    def drop(self, worker: Worker, lane: Lane, entries: Iterable[Entry]) -> int:
        """Forget entries that still wait; returns how many."""
        with self._lock:
            return worker.queue.drop(lane, entries)

    def holds(self, worker: Worker) -> bool:
        """Whether inputs of `worker` wait or run."""
        with self._lock:
            running = any(batch.worker is worker for batch in self._running)
            return running or any(worker.queue.items(lane) for lane in Lane)

    def waiting_ms(self, lane: Lane) -> float:
        """Predicted time until everything has run that would run before a new entry of `lane`, over all lanes."""
        with self._lock:
            ahead = [
                worker.cost.ms_per_token * worker.queue.tokens(each)
                for (_, each), worker in self._active.items()
                if each is lane or each is Lane.ONLINE
            ]
        return sum(ahead) / self._device.concurrency.lanes

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
        while True:
            batch = self._next(spare, wait=not flying)
            if batch is None and not flying:
                return
            if batch is not None:
                self._launch(batch)
                flying.append(batch)
                if len(flying) < self._device.concurrency.flights:
                    continue
            self._land(flying.popleft())

    def _wake(self) -> None:
        """Wake whoever could take more work now."""
        (self._work if self._lanes_are_free() else self._small_work).notify()

    def _next(self, spare: bool, wait: bool) -> Batch | None:
        """Form the next batch. None: the executor stops, or nothing may start now and `wait` is False."""
        with self._lock:
            while not self._stopping:
                batch, patience_s = self._form(spare)
                if batch is not None or not wait:
                    return batch
                (self._small_work if spare else self._work).wait(patience_s)
            return None

    def _form(self, spare: bool) -> tuple[Batch | None, float | None]:
        """A batch, or how long to wait at most before looking again (None: until something changes)."""
        now = time.perf_counter()
        waiting = self._waiting()
        choice = self._policy.choose(self._allowed(waiting, spare), now)
        if choice is None:
            return None, None
        worker = self._active[choice.model, choice.lane]
        patience_s = self._patience_s(worker, choice, now)
        if patience_s > 0:
            return None, patience_s
        entries = worker.queue.take(choice.lane, self._most_tokens(choice, waiting, spare), choice.small)
        left = any(w.queue.items(lane) for (_, lane), w in self._active.items())
        batch = Batch(
            worker=worker,
            lane=choice.lane,
            entries=entries,
            small=choice.small,
            spare=spare,
            alone=not left and not self._running,
            contended=len({queue.lane for queue in waiting}) == len(Lane),
            taken_s=now,
        )
        self._running.append(batch)
        if left:
            self._wake()
        return batch, None

    def _in_lanes(self) -> int:
        """Batches that run, those in spare lanes not counted."""
        return sum(not batch.spare for batch in self._running)

    def _lanes_are_free(self) -> bool:
        return self._in_lanes() < self._device.concurrency.lanes * self._device.concurrency.flights

    def _most_tokens(self, choice: Choice, waiting: list[Waiting], spare: bool) -> int:
        """The largest batch now: what the policy allows, but no more than a free lane's share of what waits."""
        concurrency = self._device.concurrency
        if spare:
            return min(choice.max_tokens, concurrency.spare_batch_tokens)
        free_lanes = max(concurrency.lanes - self._in_lanes(), 1)
        share = -(-sum(queue.tokens for queue in waiting) // free_lanes)
        return min(choice.max_tokens, max(share, LEAST_SHARE_TOKENS))

    def _allowed(self, waiting: list[Waiting], spare: bool) -> list[Waiting]:
        """What may start now: anything in a free lane, small inputs in a spare lane while large work holds the lanes.

        Where small work runs already, the next small input has only that to wait for, and more threads than cores
        would slow both down.
        """
        if spare != (not self._lanes_are_free()):
            return []
        if not spare:
            return waiting
        if any(batch.small for batch in self._running):
            return []
        return [queue for queue in waiting if queue.small]

    def _waiting(self) -> list[Waiting]:
        """What the policy may see; queues that ran empty leave the active set here."""
        seen = []
        for (model, lane), worker in list(self._active.items()):
            fronts = [(small, worker.queue.front(lane, small)) for small in (True, False)]
            if all(front is None for _, front in fronts):
                del self._active[model, lane]
            seen += [_as_waiting(worker, lane, small, front) for small, front in fronts if front is not None]
        return seen

    def _patience_s(self, worker: Worker, choice: Choice, now: float) -> float:
        """How much longer a small batch waits for company; 0: not at all.

        On an idle device only with --idle-wait-ms. While small work runs in another lane its clients are about to come
        back, and a batch of one would cost nearly as much as one of four.
        """
        if choice.lane is not Lane.ONLINE or (self._running and not any(batch.small for batch in self._running)):
            return 0.0
        wait_s, enough = (BUSY_WAIT_S, LEAST_SHARE_TOKENS) if self._running else (self._idle_wait_s, choice.max_tokens)
        front = worker.queue.front(choice.lane, choice.small)
        if front is None or worker.queue.tokens(choice.lane, choice.small) >= enough:
            return 0.0
        return front.queued_s + wait_s - now

    def _launch(self, batch: Batch) -> None:
        try:
            batch.flight = self._start(batch.worker, batch.entries, batch.alone)
        except BaseException as error:
            batch.error = error

    def _start(self, worker: Worker, entries: Sequence[Entry], alone: bool) -> Flight:
        model = worker.model
        if model is None:
            raise RuntimeError("the model left while its batch was formed")
        with self._device.working(alone):
            return model.launch([entry.prepared for entry in entries])

    def _land(self, batch: Batch) -> None:
        """Wait for the rows, split what failed, tell the loop. Never raises."""
        try:
            batch.answers = self._rows(batch)
        except BaseException as error:
            log.exception("a batch of %s could not be landed", batch.worker.spec.name)
            batch.answers = [as_error(error, entry) for entry in batch.entries]
        batch.flight = None
        batch.landed_s = time.perf_counter()
        batch.device_ms = (batch.landed_s - batch.taken_s) * 1000.0
        with self._lock:
            self._running.remove(batch)
            self._policy.charge(batch.worker.spec.id, batch.lane, batch.device_ms, batch.contended)
            self._wake()
        self._deliver(batch)

    def _rows(self, batch: Batch) -> list[Answer]:
        error = batch.error
        if batch.flight is not None:
            try:
                return checked(batch.flight.land(), batch.entries)
            except BaseException as raised:
                error = raised
        # Outside every except block: its traceback would keep the failed batch's tensors alive.
        assert error is not None
        batch.error = error.with_traceback(None)
        log.error("a batch of %s failed: %r", batch.worker.spec.name, type(error).__name__)
        self._make_room(batch.worker, batch.error)
        return Salvage(partial(self._rerun, batch.worker), self._device.is_out_of_memory).answers(
            batch.entries, batch.error
        )

    def _rerun(self, worker: Worker, entries: Sequence[Entry]) -> list[Answer]:
        """Part of a failed batch once more, in this thread."""
        try:
            return checked(self._start(worker, entries, alone=False).land(), entries)
        except BaseException as error:
            self._make_room(worker, error)
            raise

    def _make_room(self, worker: Worker, error: BaseException) -> None:
        """After an out-of-memory: smaller batches of this model, and the cache back to the driver."""
        if self._device.is_out_of_memory(error):
            worker.cut_ceiling()
            self._device.release_cache()


def _as_waiting(worker: Worker, lane: Lane, small: bool, front: Entry) -> Waiting:
    return Waiting(
        model=worker.spec.id,
        lane=lane,
        items=worker.queue.items(lane, small),
        tokens=worker.queue.tokens(lane, small),
        first_tokens=front.prepared.tokens,
        due_s=front.due_s,
        budget_tokens=worker.batch_tokens,
        small=small,
    )
