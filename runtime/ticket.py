"""One Job on its way: gathers its rows from however many batches they rode in, then completes its future once.

Lives on the event loop only; no lock.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from runtime.clock import REAL_CLOCK, Clock
from runtime.entry import Entry
from runtime.models.base import Model
from runtime.work import Head, Job, Prepared, Result, Row, RowLayout, Timings


class Ticket:
    """Waits for every row of a Job, or for the first error."""

    def __init__(self, job: Job, slo_s: float, clock: Clock = REAL_CLOCK, arrived_s: float | None = None) -> None:
        """`arrived_s`: when the Job came, if it had to wait until its model was loaded."""
        self.job = job
        self._clock = clock
        self.started_s = clock.now_s()
        self.arrived_s = self.started_s if arrived_s is None else arrived_s
        self.due_s = self.arrived_s + slo_s
        self.timings = Timings()
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.entries: list[Entry] = []
        self._rows: list[Row | None] = []
        self._missing = 0
        self._last_landed_s = 0.0

    def open(self, prepared: Sequence[Prepared]) -> list[Entry]:
        """Entries for the queue, one for each input; a Job without inputs is done at once."""
        now = self._clock.now_s()
        self.timings.prepare_ms = (now - self.started_s) * 1000.0
        deadline_s = math.inf if self.job.deadline_s is None else self.job.deadline_s
        tenant = self.job.tenant
        self.entries = [
            Entry(item, self, index, now, self.due_s, deadline_s, tenant) for index, item in enumerate(prepared)
        ]
        self._rows = [None] * len(prepared)
        self._missing = len(prepared)
        if not prepared and not self.future.done():
            self.future.set_result(None)
        return self.entries

    @property
    def answered(self) -> bool:
        """Every row came."""
        return bool(self._rows) and self._missing == 0

    def ran(self, *, queue_ms: float, device_ms: float, share_ms: float, landed_s: float) -> None:
        """One batch that held some of this Job's inputs is done."""
        self.timings.queue_ms = max(self.timings.queue_ms, queue_ms)
        self.timings.device_ms = max(self.timings.device_ms, device_ms)
        self.timings.device_share_ms += share_ms
        self._last_landed_s = max(self._last_landed_s, landed_s)

    def land(self, index: int, row: Row) -> None:
        """Row `index` is here; the last one completes the future."""
        self._rows[index] = row
        self._missing -= 1
        if self._missing == 0 and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        """The Job can't be answered; the first error counts."""
        if not self.future.done():
            self.future.set_exception(error)

    def result(self, head: Head | None = None, layouts: Sequence[RowLayout] = ()) -> Result:
        """The rows in the order of the inputs, and what their model knows of them. Once the future is done."""
        now = self._clock.now_s()
        self.timings.deliver_ms = (now - self._last_landed_s) * 1000.0 if self._last_landed_s else 0.0
        self.timings.total_ms = (now - self.arrived_s) * 1000.0
        rows = [row for row in self._rows if row is not None]
        return Result(
            model=self.job.model,
            rows=rows,
            tokens=sum(entry.prepared.tokens for entry in self.entries),
            truncated_inputs=sum(entry.prepared.truncated for entry in self.entries),
            timings=self.timings,
            lane=self.job.lane,
            head=head,
            layouts=layouts,
        )


def finished(ticket: Ticket, model: Model | None) -> Result:
    """The Job's Result with what its model knows of the rows. Raises UnsupportedCapability for rows without layout."""
    if model is None:
        return ticket.result()
    layouts = [model.layout_of(entry.prepared) for entry in ticket.entries] if ticket.job.wants_layouts else []
    return ticket.result(model.facts.head, layouts)
