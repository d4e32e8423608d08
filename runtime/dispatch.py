"""What waits for the lanes of a device, what runs in them, and which batch a free lane takes next.

Knows no thread and no model's code: threads in service and events in a simulation drive it alike. Not thread-safe:
the executor's lock guards it. Times are seconds of the clock that the executor lives by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.backlog import Backlog
from runtime.batch import Batch
from runtime.devices.base import Concurrency
from runtime.entry import Entry
from runtime.scheduling import Policy
from runtime.work import Choice, Job, Lane
from runtime.worker import Worker

BUSY_WAIT_S = 0.003
"""Longest that a small batch waits for company beside another one."""
LITTLE_MS = 25.0
"""Less than this of other models' work is not worth the question how much of it would come first."""
LEAST_SHARE_TOKENS = 128
"""Work is not split among idle lanes below this: a batch's fixed cost would be paid twice for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Predicted time until what would run before a new entry has run, over all lanes."""

    waiting_ms: float
    running_ms: float = 0.0
    patient_ms: float = 0.0
    """Of what waits, that without a deadline."""
    lanes: int = 1
    """That share it."""

    @property
    def ms(self) -> float:
        """All of it."""
        return self.waiting_ms + self.running_ms

    def behind(self, waiting_ms: float) -> Ahead:
        """The same, behind so much more that will queue in a moment."""
        return Ahead(
            waiting_ms=self.waiting_ms + waiting_ms,
            running_ms=self.running_ms,
            patient_ms=self.patient_ms,
            lanes=self.lanes,
        )


class Dispatch:
    """The queues of all workers in front of one device's lanes."""

    def __init__(self, concurrency: Concurrency, policy: Policy, idle_wait_ms: float = 0.0) -> None:
        self._concurrency = concurrency
        self._policy = policy
        self._idle_wait_s = idle_wait_ms / 1000.0
        self._backlog = Backlog()
        self._running: list[Batch] = []
        self._in_lanes = 0
        """Batches that run, those in spare lanes not counted."""
        policy.adapt(concurrency)

    def submit(self, worker: Worker, lane: Lane, entries: Sequence[Entry]) -> None:
        """Queue all of a Job's entries."""
        self._backlog.push(worker, lane, entries)

    def drop(self, worker: Worker, lane: Lane, entries: Iterable[Entry]) -> int:
        """Forget entries that still wait; returns how many."""
        return self._backlog.drop(worker, lane, entries)

    def holds(self, worker: Worker) -> bool:
        """Whether inputs of `worker` wait or run."""
        running = any(batch.worker is worker for batch in self._running)
        return running or any(worker.queue.items(lane) for lane in Lane)

    def ahead(self, worker: Worker, job: Job, tokens: int, now_s: float, small: bool = False) -> Ahead:
        """What would run before a new Job for `worker`, of about so many tokens, has run.

        Where there is a spare lane, a small input waits for other small ones only.
        """
        lane, lanes = job.lane, self._concurrency.lanes
        patient_ms = self._backlog.patient_ms(lane) / lanes
        if small and self._concurrency.spare_lanes:
            return Ahead(waiting_ms=self._backlog.small_ms(lane), patient_ms=patient_ms, lanes=lanes)
        waiting_ms = self._before_ms(worker, job, tokens, now_s)
        if lane is Lane.BULK:
            waiting_ms += self._backlog.drain_ms(Lane.ONLINE)
        begun_ms = sum(max(batch.predicted_ms - (now_s - batch.taken_s) * 1000.0, 0.0) for batch in self._running)
        return Ahead(waiting_ms=waiting_ms / lanes, running_ms=begun_ms / lanes, patient_ms=patient_ms, lanes=lanes)

    def _before_ms(self, worker: Worker, job: Job, tokens: int, now_s: float) -> float:
        """Of what waits in the job's lane that which other tenants and models have the right to first."""
        own_ms, others_ms = self._backlog.before_ms(job.lane, worker, job.tenant, tokens)
        if others_ms > LITTLE_MS:
            until_ms, others = own_ms + tokens * worker.cost.ms_per_token, self._backlog.others(job.lane, worker)
            others_ms = min(others_ms, self._policy.beside_ms(worker.spec.id, job.lane, until_ms, others, now_s))
        return own_ms + others_ms

    def form(self, spare: bool, now_s: float) -> tuple[Batch | None, float | None]:
        """A batch for a free lane, or how long to wait at most before looking again (None: until something changes).

        The batch counts as running from here until `landed`.
        """
        choice = self._choose(spare, now_s)
        if choice is None:
            return None, None
        worker = self._backlog.worker(choice)
        patience_s = self._patience_s(worker, choice, now_s)
        if patience_s > 0:
            return None, patience_s
        most_tokens = min(self._most_tokens(choice, spare), worker.batch_tokens)
        longest_ms = worker.cost.predict_ms(min(most_tokens, worker.queue.tokens(choice.lane, choice.small)))
        contended = self._backlog.is_contended
        entries = self._backlog.take(choice, most_tokens, now_s + longest_ms / 1000.0)
        batch = Batch(
            worker=worker,
            lane=choice.lane,
            entries=entries,
            small=choice.small,
            spare=spare,
            alone=not self._running and self._backlog.is_empty,
            contended=contended,
            taken_s=now_s,
        )
        batch.alone &= batch.tokens >= worker.spread_from_tokens
        batch.predicted_ms = worker.cost.predict_ms(batch.tokens)
        self._running.append(batch)
        self._in_lanes += not spare
        return batch, None

    def landed(self, batch: Batch) -> None:
        """The batch is over, well or not: its lane is free, its model pays, its answers' delay is known."""
        self._running.remove(batch)
        self._in_lanes -= not batch.spare
        model = batch.worker.spec.id
        self._policy.charge(model, batch.lane, batch.device_ms, batch.contended)
        if batch.lane is Lane.ONLINE:
            # Of each Job the first input alone: how late the last one is depends on the Job's own size.
            for entry in batch.entries:
                if entry.index == 0:
                    self._policy.replied(model, (batch.landed_s - entry.queued_s) * 1000.0)

    def work_waits(self) -> bool:
        """Whether anything waits in any queue."""
        return not self._backlog.is_empty

    def lanes_are_free(self) -> bool:
        """Whether a lane that is no spare one could take a batch."""
        return self._in_lanes < self._concurrency.lanes * self._concurrency.flights

    def _choose(self, spare: bool, now_s: float) -> Choice | None:
        """The policy's choice of what may start now: anything in a free lane, small inputs in a spare lane.

        The latter only while large work holds the lanes. Where small work runs already, the next small input has only
        that to wait for, and more threads than cores would slow both down.
        """
        if spare is self.lanes_are_free() or (spare and any(batch.small for batch in self._running)):
            return None
        waiting = self._backlog.waiting(now_s)
        return self._policy.choose([queue for queue in waiting if queue.small] if spare else waiting, now_s)

    def _most_tokens(self, choice: Choice, spare: bool) -> int:
        """The largest batch now: what the policy allows, but no more than a free lane's share of what waits."""
        if spare:
            return min(choice.max_tokens, self._concurrency.spare_batch_tokens)
        free_lanes = max(self._concurrency.lanes - self._in_lanes, 1)
        share = -(-self._backlog.tokens // free_lanes)
        return min(choice.max_tokens, max(share, LEAST_SHARE_TOKENS))

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
