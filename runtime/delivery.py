"""From a lane thread to whoever waits: one hop to the event loop for a whole batch, and each entry has its row."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from runtime.batch import Batch
from runtime.errors import CotenantError, ExecutionError
from runtime.metering import Metering
from runtime.ticket import Ticket
from runtime.work import Lane
from runtime.worker import Worker

log = logging.getLogger(__name__)


BatchWatcher: TypeAlias = Callable[[str, Lane, Sequence[str], int, float], None]
"""Is told of each batch on the event loop: served name, lane, ids of its jobs, tokens, milliseconds on the device."""


class Delivery:
    """Completes what a batch answers, and tells the worker how its batch went."""

    def __init__(self, metering: Metering) -> None:
        self._metering = metering
        self._loop: asyncio.AbstractEventLoop | None = None
        self.watcher: BatchWatcher | None = None
        self.work_done: Callable[[Worker], None] = lambda worker: None
        """Called on the loop after each batch of a model."""

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver to this loop."""
        self._loop = loop

    def from_lane(self, batch: Batch) -> None:
        """In a lane thread: hand a finished batch over. Never blocks or raises."""
        assert self._loop is not None
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
        self.work_done(batch.worker)

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
        self._tell_watcher(batch, tokens)
        self._metering.observe_batch(worker.spec.name, batch.lane, len(batch.entries), tokens, batch.device_ms)
        self._metering.observe_padding(worker.spec.name, batch.lane, batch.padding_tokens)

    def _tell_watcher(self, batch: Batch, tokens: int) -> None:
        if self.watcher is not None:
            owners = [entry.owner for entry in batch.entries]
            job_ids = list(dict.fromkeys(owner.job.id for owner in owners if isinstance(owner, Ticket)))
            self.watcher(batch.worker.spec.name, batch.lane, job_ids, tokens, batch.device_ms)
