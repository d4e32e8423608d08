"""Runs a batch to its answers: launch, land, and after a failure the rescue of everyone who is not at fault.

Knows no queue, no lock and no policy; each batch is run by one caller, which blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from runtime.batch import Batch
from runtime.devices.base import Device
from runtime.entry import Entry
from runtime.models.base import Flight
from runtime.salvage import Answer, Salvage, as_error, checked
from runtime.worker import Worker

log = logging.getLogger(__name__)

MakeRoom = Callable[[Worker, int], bool]
"""Evicts idle models so that one input of so many tokens may fit after all; whether any left. Called in a lane thread,
which it blocks."""


class Execution:
    """How batches run on one device."""

    def __init__(self, device: Device) -> None:
        self.make_room: MakeRoom | None = None
        """Asked when an input doesn't fit even alone; None: nobody can leave."""
        self._device = device

    def launch(self, batch: Batch) -> None:
        """Start a batch. Never raises: a failure is the batch's, and `land` deals with it."""
        try:
            batch.flight = self._start(batch.worker, batch.entries, batch.alone)
            batch.padding_tokens = batch.flight.padding_tokens
        except BaseException as error:
            batch.error = error

    def land(self, batch: Batch, free_s: float = 0.0) -> None:
        """Wait for the rows and split what failed; then the batch has its answers and its times. Never raises.

        `free_s`: when the batch before it in the same lane had landed. A batch that was launched earlier only waited
        until then, and neither pays for that nor teaches the cost line with it.
        """
        try:
            batch.answers = self._rows(batch)
        except BaseException as error:
            log.exception("a batch of %s could not be landed", batch.worker.spec.name)
            batch.answers = [as_error(error, entry) for entry in batch.entries]
        batch.flight = None
        batch.landed_s = self._device.clock.now_s()
        batch.device_ms = (batch.landed_s - max(batch.taken_s, free_s)) * 1000.0

    def _start(self, worker: Worker, entries: Sequence[Entry], alone: bool) -> Flight:
        model = worker.model
        if model is None:
            raise RuntimeError("the model left while its batch was formed")
        with self._device.working(alone):
            return model.launch([entry.prepared for entry in entries])

    def _rows(self, batch: Batch) -> list[Answer]:
        error = batch.error
        if batch.flight is not None:
            try:
                return checked(batch.flight.land(), batch.entries)
            except BaseException as raised:
                error = raised
        # Outside every except block: its traceback would keep the failed batch's tensors alive.
        assert error is not None
        batch.error, batch.flight = error.with_traceback(None), None
        log.error("a batch of %s failed: %r", batch.worker.spec.name, type(error).__name__)
        self._release(batch.error)
        if self._device.is_out_of_memory(batch.error) and len(batch.entries) > 1:
            # Once for a batch, and not for one input alone: the ceiling is for company, and a single giant must not
            # make every later batch small.
            batch.worker.cut_ceiling()
        salvage = Salvage(
            partial(self._rerun, batch.worker), self._device.is_out_of_memory, partial(self._evict, batch.worker)
        )
        return salvage.answers(batch.entries, batch.error)

    def _rerun(self, worker: Worker, entries: Sequence[Entry]) -> list[Answer]:
        """Part of a failed batch once more, in this thread."""
        try:
            return checked(self._start(worker, entries, alone=False).land(), entries)
        except BaseException as raised:
            error = raised.with_traceback(None)
        self._release(error)
        raise error

    def _release(self, error: BaseException) -> None:
        """After an out-of-memory the cache goes back to the driver."""
        if self._device.is_out_of_memory(error):
            self._device.release_cache()

    def _evict(self, worker: Worker, entry: Entry) -> bool:
        return self.make_room is not None and self.make_room(worker, entry.prepared.tokens)
