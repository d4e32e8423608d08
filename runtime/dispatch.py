"""What waits for the lanes of a device, what runs in them, and which batch a free lane takes next.

Knows no thread and no model's code: threads in service and events in a simulation drive it alike. Not thread-safe:
the executor's lock guards it. Times are seconds of the clock that the executor lives by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from runtime.batch import Batch
from runtime.batch_queue import Entry
from runtime.devices.base import Concurrency
from runtime.scheduling import Policy
from runtime.work import Choice, Lane, Waiting
from runtime.worker import Worker

BUSY_WAIT_S = 0.003
"""Longest that a small batch waits for company beside another one."""
LEAST_SHARE_TOKENS = 128
"""Work is not split among idle lanes below this: a batch's fixed cost would be paid twice for nothing."""


class Dispatch:
    """The queues of all workers in front of one device's lanes."""

    def __init__(self, concurrency: Concurrency, policy: Policy, idle_wait_ms: float = 0.0) -> None:
        self._concurrency = concurrency
        self._policy = policy
        self._idle_wait_s = idle_wait_ms / 1000.0
        self._active: dict[tuple[str, Lane], Worker] = {}
        self._views: dict[tuple[str, Lane], _View] = {}
        self._running: list[Batch] = []
        policy.adapt(concurrency)

    def submit(self, worker: Worker, lane: Lane, entries: Sequence[Entry]) -> None:
        """Queue all of a Job's entries."""
        worker.queue.push(lane, entries)
        self._active[worker.spec.id, lane] = worker

    def drop(self, worker: Worker, lane: Lane, entries: Iterable[Entry]) -> int:
        """Forget entries that still wait; returns how many."""
        return worker.queue.drop(lane, entries)

    def holds(self, worker: Worker) -> bool:
        """Whether inputs of `worker` wait or run."""
        running = any(batch.worker is worker for batch in self._running)
        return running or any(worker.queue.items(lane) for lane in Lane)

    def waiting_ms(self, lane: Lane, now_s: float, small: bool = False) -> float:
        """Predicted time until everything has run that would run before a new entry of `lane`, over all lanes.

        Where there is a spare lane, a small input waits for other small ones only.
        """
        if small and self._concurrency.spare_lanes:
            queues = [worker for (_, each), worker in self._active.items() if each is lane]
            return sum(worker.cost.ms_per_token * worker.queue.tokens(lane, small) for worker in queues)
        ahead = [
            worker.cost.drain_ms(worker.queue.tokens(each), worker.batch_tokens)
            for (_, each), worker in self._active.items()
            if each is lane or each is Lane.ONLINE
        ]
        begun = [max(batch.predicted_ms - (now_s - batch.taken_s) * 1000.0, 0.0) for batch in self._running]
        return (sum(ahead) + sum(begun)) / self._concurrency.lanes

    def form(self, spare: bool, now_s: float) -> tuple[Batch | None, float | None]:
        """A batch for a free lane, or how long to wait at most before looking again (None: until something changes).

        The batch counts as running from here until `landed`.
        """
        waiting = self._waiting(now_s)
        choice = self._policy.choose(self._allowed(waiting, spare), now_s)
        if choice is None:
            return None, None
        worker = self._active[choice.model, choice.lane]
        patience_s = self._patience_s(worker, choice, now_s)
        if patience_s > 0:
            return None, patience_s
        most_tokens = self._most_tokens(choice, waiting, spare)
        longest_ms = worker.cost.predict_ms(min(most_tokens, worker.queue.tokens(choice.lane, choice.small)))
        entries = worker.queue.take(choice.lane, most_tokens, choice.small, now_s + longest_ms / 1000.0)
        batch = Batch(
            worker=worker,
            lane=choice.lane,
            entries=entries,
            small=choice.small,
            spare=spare,
            alone=not self._running and not self.work_waits(),
            contended=len({queue.lane for queue in waiting}) == len(Lane),
            taken_s=now_s,
        )
        batch.predicted_ms = worker.cost.predict_ms(batch.tokens)
        self._running.append(batch)
        return batch, None

    def landed(self, batch: Batch) -> None:
        """The batch is over, well or not: its lane is free, its model pays, its answers' delay is known."""
        self._running.remove(batch)
        model = batch.worker.spec.id
        self._policy.charge(model, batch.lane, batch.device_ms, batch.contended)
        if batch.lane is Lane.ONLINE:
            # Of each Job the first input alone: how late the last one is depends on the Job's own size.
            for entry in batch.entries:
                if entry.index == 0:
                    self._policy.replied(model, (batch.landed_s - entry.queued_s) * 1000.0)

    def work_waits(self) -> bool:
        """Whether anything waits in any queue."""
        return any(worker.queue.items(lane) for (_, lane), worker in self._active.items())

    def lanes_are_free(self) -> bool:
        """Whether a lane that is no spare one could take a batch."""
        return self._in_lanes() < self._concurrency.lanes * self._concurrency.flights

    def _in_lanes(self) -> int:
        """Batches that run, those in spare lanes not counted."""
        return sum(not batch.spare for batch in self._running)

    def _most_tokens(self, choice: Choice, waiting: list[Waiting], spare: bool) -> int:
        """The largest batch now: what the policy allows, but no more than a free lane's share of what waits."""
        if spare:
            return min(choice.max_tokens, self._concurrency.spare_batch_tokens)
        free_lanes = max(self._concurrency.lanes - self._in_lanes(), 1)
        share = -(-sum(queue.tokens for queue in waiting) // free_lanes)
        return min(choice.max_tokens, max(share, LEAST_SHARE_TOKENS))

    def _allowed(self, waiting: list[Waiting], spare: bool) -> list[Waiting]:
        """What may start now: anything in a free lane, small inputs in a spare lane while large work holds the lanes.

        Where small work runs already, the next small input has only that to wait for, and more threads than cores
        would slow both down.
        """
        if spare != (not self.lanes_are_free()):
            return []
        if not spare:
            return waiting
        if any(batch.small for batch in self._running):
            return []
        return [queue for queue in waiting if queue.small]

    def _waiting(self, now_s: float) -> list[Waiting]:
        """What the policy may see; queues that ran empty leave the active set here."""
        seen: list[Waiting] = []
        for key, worker in list(self._active.items()):
            view = self._views.get(key)
            if view is None or not view.is_of(worker, now_s):
                view = self._views[key] = _View(worker, key[1], now_s)
            if not view.lines:
                del self._active[key], self._views[key]
            seen += view.lines
        return seen

    def _patience_s(self, worker: Worker, choice: Choice, now_s: float) -> float:
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
        return front.queued_s + wait_s - now_s


class _View:
    """What the policy sees of one queue lane, kept until the queue changes: with many models most don't in between."""

    __slots__ = ("_budget_tokens", "_changes", "_expires_s", "_queue", "lines")

    def __init__(self, worker: Worker, lane: Lane, now_s: float) -> None:
        fronts = [(small, worker.queue.front(lane, small, now_s)) for small in (True, False)]
        self.lines = [_as_waiting(worker, lane, small, front) for small, front in fronts if front is not None]
        self._expires_s = min((front.deadline_s for _, front in fronts if front is not None), default=math.inf)
        self._queue, self._changes = worker.queue, worker.queue.changes
        self._budget_tokens = worker.batch_tokens

    def is_of(self, worker: Worker, now_s: float) -> bool:
        """Whether it is still true."""
        return (
            self._changes == worker.queue.changes
            and now_s < self._expires_s
            and self._budget_tokens == worker.batch_tokens
            and self._queue is worker.queue
        )


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
        queued_s=front.queued_s,
    )
