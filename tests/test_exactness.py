"""A layout serves only if it gives the reference's vectors; the fastest that does is taken, and why is on record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from runtime.devices.base import LayerSwap
from runtime.errors import UnsupportedModel
from runtime.models.base import Execution, Flight
from runtime.models.exactness import (
    FP32_TOLERANCE,
    LONGEST_PROBE_WORDS,
    Probes,
    choose_execution,
    choose_layout,
    probe_texts,
)
from runtime.work import Job, Prepared, Row, Task
from tests.doubles import HostFlight

Fault = Callable[[Row, int], Row]
"""What a layout makes of the right vector of a text of so many words."""


def off_by(relative: float) -> Fault:
    """A fault in one number, relative to the vector's length."""

    def fault(row: Row, words: int) -> Row:
        wrong = row.copy()
        wrong[0] += relative * np.linalg.norm(row)
        return wrong

    return fault


def long_texts_only(words: int) -> Fault:
    return lambda row, count: -row if count > words else row


def raising(row: Row, words: int) -> Row:
    raise RuntimeError("no such kernel")


def broken(row: Row, words: int) -> Row:
    return row * np.nan


class Swap(LayerSwap):
    """Layers with a fault."""

    def __init__(self, name: str, fault: Fault) -> None:
        self.name = name
        self.fault = fault
        self.applied = False

    def apply(self) -> None:
        self.applied = True

    def undo(self) -> None:
        self.applied = False


class Layouts:
    """A model whose layouts are right but for the given faults; `replay` is the fault of its recorded batches."""

    def __init__(
        self,
        faults: Mapping[Execution, Fault],
        *,
        obstacle: str | None = None,
        scale: float = 1.0,
        replay: Fault | None = None,
        swaps: Sequence[Sequence[Swap]] = (),
    ) -> None:
        self.execution: Execution = "packed"
        self.tried: list[Execution] = []
        self.replaying = False
        self._faults = faults
        self._obstacle = obstacle
        self._scale = scale
        self._replay = replay
        self._swaps = swaps

    def can_pack(self) -> str | None:
        return self._obstacle

    def use(self, execution: Execution) -> None:
        self.execution = execution

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        return self._swaps

    def accelerate(self, example: Sequence[Prepared]) -> str | None:
        assert example
        self.replaying = self._replay is not None
        return "replay" if self.replaying else None

    def decelerate(self) -> None:
        self.replaying = False

    def reference_vectors(self, texts: Sequence[str]) -> list[Row]:
        assert self.execution == "buckets", "the reference library can't run in another layout"
        return [self._right(len(text.split())) for text in texts]

    def prepare(self, job: Job) -> list[Prepared]:
        return [Prepared(token_ids=np.zeros(len(str(text).split()), dtype=np.int32)) for text in job.inputs]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        self.tried.append(self.execution)
        fault = self._replay if self.replaying else self._faults.get(self.execution)
        swapped = [swap.fault for group in self._swaps for swap in group if swap.applied]
        fault = next(iter(swapped), fault)
        return HostFlight(lambda: [self._answer(item.tokens, fault) for item in items])

    def _answer(self, words: int, fault: Fault | None) -> Row:
        return self._right(words) if fault is None else fault(self._right(words), words)

    def _right(self, words: int) -> Row:
        return np.random.default_rng(words).normal(size=8) * self._scale


def choose(model: Layouts, wanted: str = "auto", window_tokens: int | None = None, half: bool = False) -> str:
    return choose_execution(model, wanted, window_tokens, half)


def test_packed_is_taken_when_it_is_exact_and_nothing_else_is_tried() -> None:
    model = Layouts({})
    reason = choose(model)
    assert (model.execution, model.tried) == ("packed", ["packed"])
    assert "equal to the reference" in reason


@pytest.mark.parametrize(
    "fault",
    [off_by(1e-3), off_by(-2 * FP32_TOLERANCE), raising, broken, long_texts_only(100)],
    ids=["far off", "just off", "raising", "broken", "long texts only"],
)
def test_a_layout_that_differs_or_raises_is_passed_over(fault: Fault) -> None:
    model = Layouts({"packed": fault})
    reason = choose(model)
    assert model.execution == "buckets"
    assert reason.startswith("packed: ")
    assert "buckets: equal to the reference" in reason


def test_what_padding_and_packing_both_spoil_runs_in_groups_of_one_length() -> None:
    model = Layouts({"packed": raising, "buckets": off_by(0.1)})
    reason = choose(model)
    assert model.execution == "equal-length"
    assert "packed: raised RuntimeError" in reason
    assert "buckets: differs by 1.0e-01" in reason


def test_a_model_that_no_layout_can_run_exactly_is_refused_with_every_reason() -> None:
    model = Layouts({"packed": raising, "buckets": off_by(0.1), "equal-length": off_by(0.01)})
    with pytest.raises(
        UnsupportedModel, match=r"packed: raised .*buckets: differs .*equal-length: differs by 1\.0e-02"
    ):
        choose(model)


def test_rounding_is_no_difference() -> None:
    model = Layouts({"packed": off_by(0.5 * FP32_TOLERANCE)})
    choose(model)
    assert model.execution == "packed"


@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_a_difference_counts_relative_to_the_vectors_length(scale: float) -> None:
    small = Layouts({"packed": off_by(0.5 * FP32_TOLERANCE)}, scale=scale)
    choose(small)
    large = Layouts({"packed": off_by(5 * FP32_TOLERANCE)}, scale=scale)
    choose(large)
    assert (small.execution, large.execution) == ("packed", "buckets")


def test_half_precision_may_round_but_not_turn_the_vector() -> None:
    rounded, turned = Layouts({"packed": off_by(1e-3)}), Layouts({"packed": off_by(0.2)})
    choose(rounded, half=True)
    choose(turned, half=True)
    assert (rounded.execution, turned.execution) == ("packed", "buckets")


def test_who_asks_for_buckets_is_never_given_a_packed_row() -> None:
    model = Layouts({})
    assert choose(model, wanted="buckets").startswith("asked for buckets")
    assert model.tried == ["buckets"]


def test_an_architecture_that_cannot_pack_is_not_tried_and_says_why() -> None:
    model = Layouts({}, obstacle="the network has no attention interface")
    assert choose(model).startswith("the network has no attention interface")
    assert model.tried == ["buckets"]


@pytest.mark.parametrize("scale", [np.nan, np.inf])
@pytest.mark.parametrize("half", [False, True])
def test_a_model_whose_weights_are_broken_is_refused(scale: float, half: bool) -> None:
    with pytest.raises(UnsupportedModel, match=r"NaN or infinity for 14 of 14 usual inputs.*weights are broken"):
        choose(Layouts({}, scale=scale), half=half)


def test_a_model_that_breaks_on_long_texts_alone_is_refused() -> None:
    class BreaksOnLong(Layouts):
        def _right(self, words: int) -> Row:
            return super()._right(words) * (np.nan if words > 100 else 1.0)

    with pytest.raises(UnsupportedModel, match="NaN or infinity for 1 of 14"):
        choose(BreaksOnLong({}))


def test_recorded_batches_that_agree_are_replayed() -> None:
    model = Layouts({}, replay=lambda row, words: row)
    choose(model)
    assert model.replaying


@pytest.mark.parametrize("replay", [off_by(0.1), raising])
def test_recorded_batches_that_differ_are_dropped_and_the_layout_stays(replay: Fault) -> None:
    model = Layouts({}, replay=replay)
    reason = choose(model)
    assert (model.execution, model.replaying) == ("packed", False)
    assert "replay not used" in reason
    assert "packed: equal to the reference" in reason


# -- logits -----------------------------------------------------------------------------------------------------


def choose_for_logits(fault: Fault, half: bool = False) -> str:
    """The layout for a model whose packed logits have `fault`; the largest logit is 4, others are near 0."""
    texts = probe_texts(None)
    rows = [np.array([4.0 if place == 3 else 1e-4]) for place in range(len(texts))]
    right = {len(text.split()): row for text, row in zip(texts, rows, strict=True)}
    job = Job(id="job", model="m", task=Task.RERANK, inputs=texts)

    class Logits(Layouts):
        def _right(self, words: int) -> Row:
            return right[words]

    logits = Logits({"packed": fault})
    choose_layout(logits, "auto", half, Probes(job=job, reference=lambda: rows, logits=True))
    return logits.execution


def plus(difference: float) -> Fault:
    return lambda row, words: row + difference


def test_a_logit_near_zero_is_compared_with_the_largest() -> None:
    assert choose_for_logits(plus(2e-5)) == "packed"
    assert choose_for_logits(plus(8e-5)) == "buckets"


def test_logits_in_half_precision_may_round_but_not_change_sides() -> None:
    assert choose_for_logits(plus(0.1), half=True) == "packed"
    assert choose_for_logits(plus(0.2), half=True) == "buckets"


# -- the texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_tokens", [None, 32, 128, 512])
def test_probe_texts_have_equal_near_and_far_lengths(window_tokens: int | None) -> None:
    counts = [len(text.split()) for text in probe_texts(window_tokens)]
    assert len(counts) > len(set(counts))
    assert min(counts) == 1
    assert max(counts) > (window_tokens or 0)
    assert any(0 < longer - shorter <= 0.1 * longer for longer in counts for shorter in counts)
    assert len(set(probe_texts(window_tokens))) == len(counts)


def test_a_huge_window_makes_no_huge_text() -> None:
    assert max(len(text.split()) for text in probe_texts(32_768)) == LONGEST_PROBE_WORDS


def test_the_fastest_layers_that_keep_well_within_the_tolerance_are_put_in_place() -> None:
    swaps = [
        Swap("fast", off_by(0.5 * FP32_TOLERANCE)),
        Swap("raising", raising),
        Swap("exact", off_by(0.2 * FP32_TOLERANCE)),
        Swap("exacter", off_by(0.0)),
    ]
    reason = choose(Layouts({}, swaps=[swaps, [other := Swap("other", off_by(0.0))]]))
    assert [swap.applied for swap in swaps] == [False, False, True, False]
    assert "fast not used: it differs by 5.0e-06; raising not used: it raised RuntimeError; exact" in reason
    assert "exacter" not in reason
    assert other.applied


def test_layers_that_all_differ_leave_the_models_own() -> None:
    swaps = [Swap("fast", off_by(1e-3)), Swap("slow", off_by(1e-4))]
    model = Layouts({}, swaps=[swaps], replay=lambda row, words: row)
    choose(model)
    assert not any(swap.applied for swap in swaps)
    assert model.replaying
