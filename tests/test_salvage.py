"""A failed batch is split until the guilty are alone: they fail, the others get their rows, nothing runs for ever."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.entry import Entry
from runtime.errors import CotenantError, ForwardFailed, InvalidRequest, NonFiniteOutput, OutOfMemory
from runtime.salvage import MAX_GUILTY_IN_A_ROW, Answer, Salvage, as_error, checked
from runtime.work import Row
from tests.entries import entry


def row_of(one: Entry) -> Row:
    return np.array([one.index], dtype=np.float32)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError)


class Device:
    """Runs entries unless `fault` says otherwise; counts its runs."""

    def __init__(self, fault: Callable[[Sequence[Entry]], BaseException | None]) -> None:
        self.fault = fault
        self.runs = 0

    def run(self, entries: Sequence[Entry]) -> list[Answer]:
        self.runs += 1
        error = self.fault(entries)
        if error is not None:
            raise error
        return [row_of(one) for one in entries]


def salvage(size: int, fault: Callable[[Sequence[Entry]], BaseException | None]) -> tuple[list[Answer], Device]:
    """What becomes of a batch of `size` entries that failed once with what `fault` gives for all of it."""
    entries = [entry(1, index) for index in range(size)]
    device, error = Device(fault), fault(entries)
    assert error is not None
    return Salvage(device.run, is_out_of_memory).answers(entries, error), device


def assert_only(answers: list[Answer], guilty: set[int]) -> None:
    """The guilty have errors, and everyone else the row of his own."""
    assert {index for index, answer in enumerate(answers) if isinstance(answer, CotenantError)} == guilty
    for index, answer in enumerate(answers):
        if not isinstance(answer, CotenantError):
            np.testing.assert_array_equal(answer, [index])


def poison(guilty: set[int]) -> Callable[[Sequence[Entry]], BaseException | None]:
    return lambda entries: ValueError("boom") if guilty & {one.index for one in entries} else None


@given(size=st.integers(1, 600), data=st.data())
def test_a_few_guilty_inputs_fail_alone_wherever_they_stand(size: int, data: st.DataObject) -> None:
    some = st.sets(st.integers(0, size - 1), min_size=1, max_size=MAX_GUILTY_IN_A_ROW - 1)
    guilty = data.draw(some)
    answers, _ = salvage(size, poison(guilty))
    assert_only(answers, guilty)


@pytest.mark.parametrize("size", [1, 2, 500, 512, 513, 4_096])
def test_the_first_input_of_even_the_largest_batch_fails_alone(size: int) -> None:
    answers, _ = salvage(size, poison({0}))
    assert_only(answers, {0})


def test_many_guilty_inputs_fail_alone_while_some_input_between_them_runs() -> None:
    guilty = set(range(0, 200, 2))
    answers, _ = salvage(200, poison(guilty))
    assert_only(answers, guilty)


@pytest.mark.parametrize("size", [64, 512, 4_096])
def test_a_model_that_always_fails_is_not_asked_for_every_input(size: int) -> None:
    answers, device = salvage(size, lambda entries: ValueError("always"))
    assert len(answers) == size
    assert all(isinstance(answer, ForwardFailed) for answer in answers)
    halvings = size.bit_length()
    assert device.runs <= 2 * (MAX_GUILTY_IN_A_ROW + halvings)


@given(size=st.integers(2, 300), room=st.integers(1, 299))
def test_a_batch_too_large_for_the_memory_runs_in_parts(size: int, room: int) -> None:
    if room >= size:
        room = size - 1
    answers, _ = salvage(size, lambda entries: MemoryError() if len(entries) > room else None)
    assert_only(answers, set())


def test_an_input_too_large_for_the_memory_even_alone_is_told_so() -> None:
    answers, _ = salvage(8, lambda entries: MemoryError() if any(one.index == 5 for one in entries) else None)
    assert_only(answers, {5})
    assert isinstance(answers[5], OutOfMemory)
    assert "input 5 " in answers[5].message


def test_errors_name_the_place_and_the_kind_but_never_the_librarys_words() -> None:
    answers, _ = salvage(3, lambda entries: ValueError("secret text of the caller"))
    for index, answer in enumerate(answers):
        assert isinstance(answer, ForwardFailed)
        assert f"input {index} (ValueError)" in answer.message
        assert "secret" not in answer.message


def test_an_error_that_is_ours_already_is_passed_on() -> None:
    ours = InvalidRequest("one of ours")
    assert as_error(ours, entry(1)) is ours


def test_an_input_that_a_model_counted_within_its_batch_is_counted_within_its_request() -> None:
    ours = ForwardFailed("{input} holds a token that the model has no embedding for", index=0)
    assert as_error(ours, entry(1, 7)).message == "input 7 holds a token that the model has no embedding for"


def test_a_part_that_runs_but_holds_nan_gives_its_errors_too() -> None:
    def run(entries: Sequence[Entry]) -> list[Answer]:
        if len(entries) > 2:
            raise ValueError
        return checked([np.array([np.nan if one.index == 1 else 1.0]) for one in entries], entries)

    answers = Salvage(run, is_out_of_memory).answers([entry(1, index) for index in range(4)], ValueError())
    assert [isinstance(answer, NonFiniteOutput) for answer in answers] == [False, True, False, False]


def test_the_tensors_of_a_failed_run_are_gone_before_the_next_one() -> None:
    class Tensor:
        pass

    alive: list[weakref.ref[Tensor]] = []
    seen: list[int] = []

    def run(entries: Sequence[Entry]) -> list[Answer]:
        seen.append(sum(ref() is not None for ref in alive))
        tensor = Tensor()
        alive.append(weakref.ref(tensor))
        raise MemoryError

    Salvage(run, is_out_of_memory).answers([entry(1, index) for index in range(8)], MemoryError())
    assert len(seen) > 2
    assert set(seen) == {0}


# -- what a run gave --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_an_error_in_its_place_alone(broken: float) -> None:
    entries = [entry(1, index) for index in range(3)]
    rows = [np.array([1.0, 2.0]), np.array([broken, 0.0]), np.array([3.0, 4.0])]
    answers = checked(rows, entries)
    assert isinstance(answers[1], NonFiniteOutput)
    assert "input 1" in answers[1].message
    np.testing.assert_array_equal(answers[0], rows[0])
    np.testing.assert_array_equal(answers[2], rows[2])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_rows_than_inputs_is_never_shared_out(count: int) -> None:
    with pytest.raises(RuntimeError, match="another number of rows"):
        checked([np.zeros(1)] * count, [entry(1, 0), entry(1, 1)])


def test_a_batch_is_cut_where_its_tokens_are_halved() -> None:
    """One long input of thirty-two is alone after the first cut, or the second where it stands in the middle."""
    runs: list[list[int]] = []

    def run(entries: Sequence[Entry]) -> list[Answer]:
        runs.append([one.index for one in entries])
        if any(one.prepared.tokens > 100 for one in entries):
            raise MemoryError
        return [row_of(one) for one in entries]

    long_first = [entry(500 if index == 0 else 5, index) for index in range(32)]
    answers = Salvage(run, is_out_of_memory).answers(long_first, MemoryError())
    assert_only(answers, {0})
    assert runs == [[0], list(range(1, 32))]


def test_room_is_asked_for_when_an_input_does_not_fit_alone_and_it_runs_once_more() -> None:
    asked: list[int] = []

    def make_room(one: Entry) -> bool:
        asked.append(one.index)
        return True

    def run(entries: Sequence[Entry]) -> list[Answer]:
        if not asked and any(one.index == 2 for one in entries):
            raise MemoryError
        return [row_of(one) for one in entries]

    answers = Salvage(run, is_out_of_memory, make_room).answers([entry(1, index) for index in range(4)], MemoryError())
    assert_only(answers, set())
    assert asked == [2]


def test_nobody_leaves_for_an_input_that_fails_otherwise() -> None:
    def make_room(one: Entry) -> bool:
        raise AssertionError("no memory is short")

    def run(entries: Sequence[Entry]) -> list[Answer]:
        raise ValueError

    answers = Salvage(run, is_out_of_memory, make_room).answers([entry(1, 0), entry(1, 1)], ValueError())
    assert_only(answers, {0, 1})
