"""After a failed batch: split it until the guilty inputs are alone, so that only they fail.

Knows no thread and no queue; the executor says how to run part of the batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from runtime.batch_queue import Entry
from runtime.errors import CotenantError, ForwardFailed, NonFiniteOutput, OutOfMemory
from runtime.work import Row

MAX_GUILTY_IN_A_ROW = 8
"""After so many inputs that fail even alone and none that runs, whatever fails next fails as a whole: then the model
is at fault, not an input."""

Answer: TypeAlias = Row | CotenantError
Rerun: TypeAlias = Callable[[Sequence[Entry]], list[Answer]]


class Salvage:
    """The rescue of one batch."""

    def __init__(self, rerun: Rerun, is_out_of_memory: Callable[[BaseException], bool]) -> None:
        """`rerun` runs some of the entries again in this thread and raises what the model raises."""
        self._rerun = rerun
        self._is_out_of_memory = is_out_of_memory
        self._guilty_in_a_row = 0

    def answers(self, entries: Sequence[Entry], error: BaseException) -> list[Answer]:
        """A row or an error for each entry. Recursion is as deep as the batch can be halved."""
        if len(entries) == 1:
            self._guilty_in_a_row += 1
        if len(entries) == 1 or self._guilty_in_a_row >= MAX_GUILTY_IN_A_ROW:
            return [self._answer(error, entry) for entry in entries]
        middle = len(entries) // 2
        return [*self._part(entries[:middle]), *self._part(entries[middle:])]

    def _part(self, entries: Sequence[Entry]) -> list[Answer]:
        try:
            answers = self._rerun(entries)
        except BaseException as raised:
            # Without its traceback, which holds the failed run's tensors.
            error: BaseException = raised.with_traceback(None)
        else:
            self._guilty_in_a_row = 0
            return answers
        return self.answers(entries, error)

    def _answer(self, error: BaseException, entry: Entry) -> CotenantError:
        if self._is_out_of_memory(error):
            return OutOfMemory(f"input {entry.index} does not fit the device's free memory")
        return as_error(error, entry)


def checked(rows: Sequence[Row], entries: Sequence[Entry]) -> list[Answer]:
    """Rows, or an error in the place of one that holds NaN or infinity. Raises when their number is wrong."""
    if len(rows) != len(entries):
        raise RuntimeError("the model gave another number of rows than it was given inputs")
    return [
        row
        if np.isfinite(row).all()
        else NonFiniteOutput(f"the model computed NaN or infinity for input {entry.index}")
        for row, entry in zip(rows, entries, strict=True)
    ]


def as_error(error: BaseException, entry: Entry) -> CotenantError:
    """What the Job of a failed entry is told: never the input, never the library's own words."""
    if isinstance(error, CotenantError):
        return error
    return ForwardFailed(f"the model failed on input {entry.index} ({type(error).__name__})")
