"""What a job is told when there is more work than time: wait, come back later, or that its deadline has passed.

Decided before the job is prepared, from what is ahead of it. Its own size counts only where it has a deadline, so one
input and a list of one are treated alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TypeVar

from runtime.admission import Admission
from runtime.clock import Clock
from runtime.dispatch import Ahead
from runtime.errors import DeadlineExceeded, DoesNotFit
from runtime.pressure import Pressure
from runtime.registry import RuntimeConfig
from runtime.work import Job, Lane, Prepared
from runtime.worker import Worker

T = TypeVar("T")

SHARE_OF_DEADLINE = 0.8
"""What is predicted to take longer than this part of the time left is refused. Under overload the queue grows until the
prediction says no; were all of the time allowed, each prediction a little short would be a batch for nothing."""
SHARE_UNDER_PRESSURE = 0.1
"""Of the time that a job may wait, what may stand waiting before it while more comes than can be done. A shorter queue
answers as many, sooner, and is over the moment that the pressure is."""
BATCHES_OF_FIXED_MS = 10.0
"""So many times a batch's fixed time may always wait: with less, batches would be too small to be worth their price."""
NOT_IN_TIME = "the request alone would take the device about {:.0f} ms, which is more than its deadline leaves"
DEADLINE_PASSED = "the deadline passed before the answer was there"


def any_size(worker: Worker) -> int | None:
    """No input is known to be too large."""
    return None


def tokens_of(worker: Worker, job: Job) -> int:
    """About what `job` will cost, before it is prepared. Raises as Worker.ready_model does."""
    model = worker.ready_model(job.task)
    return sum(model.cost(item) for item in job.inputs)


def own_ms(worker: Worker, lane: Lane, tokens: int, small: bool) -> float:
    """Predicted time from the start of the first batch with inputs of a Job of `tokens` to the end of its last one.

    More than what it would take of one lane if its batches had no fixed time and no company.
    """
    shared = min(worker.queue.tokens(lane, small or None) + tokens, worker.batch_tokens)
    return worker.cost.drain_ms(max(shared, tokens), worker.batch_tokens)


class Overload:
    """The limits of waiting."""

    def __init__(self, config: RuntimeConfig, clock: Clock) -> None:
        self._clock = clock
        self._pressure = Pressure()
        """Of online jobs with a deadline."""
        self._most_ms = {Lane.ONLINE: config.max_queue_ms, Lane.BULK: config.max_bulk_queue_ms}
        self._most_online_ms = config.max_online_ms
        self.most_tokens_ever: Callable[[Worker], int | None] = any_size
        """The largest input of a model that could ever run, were the device its own; None: not known."""

    def in_its_lane(self, job: Job, alone_ms: float) -> Job:
        """`job`, in bulk where it came online unasked and is predicted to keep the whole device for too long.

        Nobody waits for so much, and everybody would wait behind it. A deadline says that somebody does.
        """
        most_ms = self._most_online_ms
        if most_ms is None or job.lane is Lane.BULK or not job.may_go_bulk or job.deadline_s is not None:
            return job
        return replace(job, lane=Lane.BULK) if alone_ms > most_ms else job

    def check(self, worker: Worker, job: Job, tokens: int, ahead: Ahead, small: bool, admission: Admission) -> None:
        """Let `job`, of about so many tokens, wait behind what is `ahead`. `small`: behind small inputs only.

        Raises QueueFull, with the predicted wait, beyond the lane's limit, the model's tokens or the job's deadline;
        DeadlineExceeded when that has passed already.
        """
        most_ms = self._most_ms[job.lane]
        if job.deadline_s is not None:
            left_ms = (job.deadline_s - self._clock.now_s()) * 1000.0
            most_ms = min(most_ms, self._most_in_time_ms(worker, job, tokens, ahead, small, left_ms))
        ahead_ms = ahead.ms
        if worker.queue.tokens(job.lane) >= worker.spec.max_queue_tokens:
            ahead_ms, most_ms = max(ahead_ms, 1.0), 0.0
        admission.may_wait(worker.spec.name, job.lane, ahead_ms, most_ms)

    def _most_in_time_ms(
        self, worker: Worker, job: Job, tokens: int, ahead: Ahead, small: bool, left_ms: float
    ) -> float:
        """How much may be ahead of a job that has `left_ms` yet. Raises DeadlineExceeded where nothing would help it.

        An idle device tries everything: a prediction gone wrong would otherwise never be put right.
        """
        if left_ms <= 0.0:
            raise DeadlineExceeded(DEADLINE_PASSED)
        work_ms = tokens * worker.cost.ms_per_token
        if ahead.ms > 0.0 and work_ms / ahead.lanes > left_ms:
            raise DeadlineExceeded(NOT_IN_TIME.format(work_ms / ahead.lanes))
        most_ms = max(left_ms * SHARE_OF_DEADLINE - own_ms(worker, job.lane, tokens, small), 0.0)
        return most_ms if job.lane is Lane.BULK else self._under_pressure_ms(worker, job, ahead, most_ms, work_ms)

    def _under_pressure_ms(self, worker: Worker, job: Job, ahead: Ahead, most_ms: float, work_ms: float) -> float:
        """`most_ms`, less while far more comes than can be done; the job, of `work_ms`, is counted.

        What runs doesn't count: a batch that is longer than a job may wait would keep the door shut for ever. Jobs with
        a deadline may stand beside as much work again as waits without one, or that would keep them out.
        """
        now_s, caller = self._clock.now_s(), (job.model, job.tenant)
        if self._pressure.is_of(caller, now_s):
            fixed_ms, beside_ms = BATCHES_OF_FIXED_MS * worker.cost.fixed_ms, 2.0 * ahead.patient_ms
            standing_ms = max(SHARE_UNDER_PRESSURE * most_ms, fixed_ms, beside_ms)
            most_ms = min(most_ms, standing_ms + ahead.running_ms)
        self._pressure.note(caller, ahead.ms > most_ms, work_ms / ahead.lanes, now_s)
        return most_ms

    def check_sizes(self, worker: Worker, prepared: Sequence[Prepared]) -> None:
        """Refuse what no eviction could make room for. Raises DoesNotFit with both numbers."""
        most = self.most_tokens_ever(worker)
        if most is None:
            return
        for index, item in enumerate(prepared):
            if item.tokens > most:
                message = f"{{input}} has {item.tokens} tokens; the device's memory holds at most {most}"
                raise DoesNotFit(message, index=index)

    def check_not_late(self, deadline_s: float | None) -> None:
        """Raises DeadlineExceeded when the deadline, if there is one, has passed already."""
        if deadline_s is not None and deadline_s <= self._clock.now_s():
            raise DeadlineExceeded(DEADLINE_PASSED)

    async def in_time(self, deadline_s: float | None, answer: Coroutine[None, None, T]) -> T:
        """What `answer` gives until the deadline. Raises DeadlineExceeded then, with `answer` cancelled."""
        if deadline_s is None:
            return await answer
        timer = asyncio.timeout(max(deadline_s - self._clock.now_s(), 0.0))
        try:
            async with timer:
                return await answer
        except TimeoutError:
            if timer.expired():
                raise DeadlineExceeded(DEADLINE_PASSED) from None
            raise
