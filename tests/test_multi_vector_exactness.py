"""The check at load of models that give multi-vectors: the first layout that is exact, or none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from runtime.devices.base import LayerSwap
from runtime.errors import UnsupportedModel
from runtime.models.base import Execution, Flight
from runtime.models.multi_vector_exactness import Probe, as_picture, choose_layout, probe_page
from runtime.pictures import decode
from runtime.work import Job, Prepared, Row
from tests.doubles import HostFlight

ROWS = [np.eye(3, 4, dtype=np.float32), np.eye(2, 4, dtype=np.float32)]
PROBES = [Probe(inputs=["a", "b"], prompt_name="query", reference=ROWS)]


class Noisy(LayerSwap):
    """Layers that add to every number."""

    def __init__(self, name: str, noise: float) -> None:
        self.name = name
        self.noise = noise
        self.applied = False

    def apply(self) -> None:
        self.applied = True

    def undo(self) -> None:
        self.applied = False


class Model:
    """Gives the reference's rows, less what a layout is told to get wrong."""

    def __init__(self, wrong: dict[str, list[Row]], half: bool = False) -> None:
        self.execution: Execution = "equal-length"
        self.half = half
        self.swaps: Sequence[Noisy] = ()
        self.prompts: list[str | None] = []
        self._wrong = wrong

    def use(self, execution: Execution) -> None:
        self.execution = execution

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        return [self.swaps]

    def prepare(self, job: Job) -> list[Prepared]:
        self.prompts.append(job.prompt_name)
        return [Prepared(token_ids=np.zeros(1, dtype=np.int32)) for _ in job.inputs]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        noise = sum(swap.noise for swap in self.swaps if swap.applied)
        return HostFlight(lambda: [row + np.float32(noise) for row in self._wrong.get(self.execution, ROWS)])


LAYOUTS: tuple[Execution, ...] = ("equal-length", "one-by-one")


def test_the_first_exact_layout_is_taken_under_the_probes_prompt() -> None:
    model = Model({})
    assert choose_layout(model, PROBES, LAYOUTS) == "equal-length: equal to the reference on 2 inputs"
    assert (model.execution, model.prompts) == ("equal-length", ["query"])


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([ROWS[0], ROWS[1] + 2e-5], "equal-length: differs by 2.0e-05"),
        ([ROWS[0][:2], ROWS[1]], "equal-length: gives rows of other shapes"),
        ([ROWS[0], ROWS[1] * np.nan], "equal-length: differs by nan"),
    ],
)
def test_a_layout_that_differs_is_passed_over_and_the_reason_kept(rows: list[Row], reason: str) -> None:
    model = Model({"equal-length": rows})
    assert choose_layout(model, PROBES, LAYOUTS) == f"{reason}; one-by-one: equal to the reference on 2 inputs"
    assert model.execution == "one-by-one"


def test_a_model_that_no_layout_reproduces_is_refused() -> None:
    off: list[Row] = [ROWS[0], ROWS[1] + 1]
    with pytest.raises(UnsupportedModel, match="one-by-one: differs by"):
        choose_layout(Model({"equal-length": off, "one-by-one": off}), PROBES, LAYOUTS)


def test_in_half_precision_the_mean_cosine_decides() -> None:
    near: list[Row] = [ROWS[0] + 0.01, ROWS[1]]
    far: list[Row] = [ROWS[0] + 0.2, ROWS[1]]
    assert choose_layout(Model({"equal-length": near}, half=True), PROBES, LAYOUTS).startswith("equal-length: equal")
    assert choose_layout(Model({"equal-length": far}, half=True), PROBES, LAYOUTS).startswith("equal-length: differs")


@pytest.mark.parametrize("half", [False, True])
def test_a_model_whose_weights_are_broken_is_refused(half: bool) -> None:
    broken: list[Row] = [np.full((1, 4), np.nan, dtype=np.float32)]
    probe = Probe(inputs=["a"], reference=broken)
    with pytest.raises(UnsupportedModel, match="NaN or infinity for 1 of 1 usual inputs"):
        choose_layout(Model({"equal-length": broken}, half=half), [probe], LAYOUTS)


def test_a_probe_page_arrives_as_it_was_drawn() -> None:
    page = probe_page(90, 60)
    np.testing.assert_array_equal(np.asarray(decode(as_picture(page))), np.asarray(page))


def test_faster_layers_stay_where_they_keep_well_within_the_tolerance() -> None:
    model = Model({})
    model.swaps = [Noisy("fast", 5e-6), Noisy("exact", 1e-6), Noisy("exacter", 0.0)]
    reason = choose_layout(model, PROBES, LAYOUTS)
    assert [swap.applied for swap in model.swaps] == [False, True, False]
    assert reason.startswith("equal-length: equal to the reference on 2 inputs; fast not used: it differs by 5")
    assert reason.endswith("; exact")
