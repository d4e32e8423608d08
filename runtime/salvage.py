"""After a failed batch: split it until the guilty inputs are alone, so that only they fail.

A batch is halved by tokens, because memory goes by tokens: of one long and thirty short inputs the long one is alone
after the first cut. Knows no thread and no queue; the executor says how to run part of the batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from runtime.entry import Entry
from runtime.errors import CotenantError, ForwardFailed, NonFiniteOutput, OutOfMemory
from runtime.work import Row

MAX_GUILTY_IN_A_ROW = 8
"""After so many inputs that fail even alone and none that runs, whatever fails next fails as a whole: then the model
is at fault, not an input."""
MAX_TOO_LARGE_IN_A_ROW = 64
"""The same for out-of-memories, where a row of inputs that are too large is no sign of a broken model."""

Answer: TypeAlias = Row | CotenantError
Rerun: TypeAlias = Callable[[Sequence[Entry]], list[Answer]]


def nobody_leaves(entry: Entry) -> bool:
    """No memory can be made for an entry."""
    return False


class Salvage:
    """The rescue of one batch."""

    def __init__(
        self,
        rerun: Rerun,
        is_out_of_memory: Callable[[BaseException], bool],
        make_room: Callable[[Entry], bool] = nobody_leaves,
    ) -> None:
        """`rerun` runs some of the entries again in this thread and raises what the model raises.

        `make_room` is asked, once for the batch, when an entry is too large even alone: whether there is more room now.
        """
        self._rerun = rerun
        self._is_out_of_memory = is_out_of_memory
        self._make_room = make_room
        self._room_was_asked = False
        self._guilty_in_a_row = 0

    def answers(self, entries: Sequence[Entry], error: BaseException) -> list[Answer]:
        """A row or an error for each entry. Recursion is as deep as the batch can be halved."""
        if len(entries) == 1 and self._is_out_of_memory(error) and self._room_was_made(entries[0]):
            return self._part(entries)
        if len(entries) == 1:
            self._guilty_in_a_row += 1
        most = MAX_TOO_LARGE_IN_A_ROW if self._is_out_of_memory(error) else MAX_GUILTY_IN_A_ROW
        if len(entries) == 1 or self._guilty_in_a_row >= most:
            return [self._answer(error, entry) for entry in entries]
        middle = _middle(entries)
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

    def _room_was_made(self, entry: Entry) -> bool:
        """Ask once for a batch: what did not help one of its inputs is not done again for the next."""
        if self._room_was_asked:
            return False
        self._room_was_asked = True
        return self._make_room(entry)

    def _answer(self, error: BaseException, entry: Entry) -> CotenantError:
        if self._is_out_of_memory(error):
            return OutOfMemory("{input} does not fit the device's free memory", index=entry.index)
        return as_error(error, entry)


def _middle(entries: Sequence[Entry]) -> int:
    """Where to cut so that both parts have about as many tokens, and an entry each at least."""
    sums = list(accumulate(entry.prepared.tokens for entry in entries))
    return min(range(1, len(entries)), key=lambda cut: (abs(2 * sums[cut - 1] - sums[-1]), abs(2 * cut - len(entries))))


def checked(rows: Sequence[Row], entries: Sequence[Entry]) -> list[Answer]:
    """Rows, or an error in the place of one that holds NaN or infinity. Raises when their number is wrong."""
    if len(rows) != len(entries):
        raise RuntimeError("the model gave another number of rows than it was given inputs")
    if len(rows) > 1 and _are_finite(rows):
        return list(rows)
    return [
        row
        if np.isfinite(row).all()
        else NonFiniteOutput("the model computed NaN or infinity for {input}", index=entry.index)
        for row, entry in zip(rows, entries, strict=True)
    ]


def _are_finite(rows: Sequence[Row]) -> bool:
    """Whether all vectors are sound, by one look at the batch; False too for multi-vectors, which are long to copy."""
    return all(row.ndim == 1 for row in rows) and bool(np.isfinite(np.concatenate(rows)).all())


def as_error(error: BaseException, entry: Entry) -> CotenantError:
    """What the Job of a failed entry is told: never the input, never the library's own words."""
    if isinstance(error, CotenantError):
        return error.of_input(entry.index)  # the model counts within its batch
    return ForwardFailed(f"the model failed on {{input}} ({type(error).__name__})", index=entry.index)
