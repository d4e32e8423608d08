"""OpenVINO's trial: same vectors or neighbours, and the time it may take. Nothing here needs OpenVINO."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.devices.base import LayerSwap
from runtime.devices.cpu import CpuDevice
from runtime.errors import UnsupportedModel
from runtime.models import trial
from runtime.models.base import Execution, Flight
from runtime.models.loading import load_model
from runtime.models.trial import OPENVINO, Demands, Speedups, corpus, measure_speedups, recall
from runtime.registry import ModelSpec
from runtime.work import Job, Prepared, Row, Task
from tests.doubles import HostFlight, StillDevice

WIDTH = 16
TORCH_REASON = "packed: equal to the reference"


class Candidate:
    """A model that torch runs packed; `noise` is what OpenVINO adds to its vectors, by the group that it rounds in."""

    def __init__(self, noise: Callable[[int | None], float] = lambda group: 0.0, obstacle: Exception | None = None):
        self.execution: Execution = "packed"
        self.window_tokens: int | None = None
        self.groups: list[int | None] = []
        """Of each time it was compiled."""
        self.clock_s = 0.0
        self.seconds_per_token: dict[Execution, float] = {}
        self._noise = noise
        self._obstacle = obstacle

    def can_pack(self) -> str | None:
        return None

    def use(self, execution: Execution) -> None:
        assert execution != OPENVINO or self.groups, "OpenVINO has nothing to run"
        self.execution = execution

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        return ()

    def accelerate(self, example: Sequence[Prepared]) -> str | None:
        return None

    def decelerate(self) -> None:
        pass

    def compile(self, activation_group: int | None = None) -> None:
        if self._obstacle:
            raise self._obstacle
        self.groups.append(activation_group)

    def reference_vectors(self, texts: Sequence[str]) -> list[Row]:
        assert self.execution == "buckets", "the reference library can't run in another layout"
        return [self._vector(self._ids(text), 0.0) for text in texts]

    def prepare(self, job: Job) -> list[Prepared]:
        return [Prepared(token_ids=self._ids(str(text))[: job.max_tokens]) for text in job.inputs]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        self.clock_s += self.seconds_per_token.get(self.execution, 0.0) * sum(item.tokens for item in items)
        noise = self._noise(self.groups[-1]) if self.execution == OPENVINO else 0.0
        return HostFlight(lambda: [self._vector(item.token_ids, noise) for item in items])

    def _ids(self, text: str) -> NDArray[np.int32]:
        return np.array([len(word) for word in text.split()], dtype=np.int32)

    def _vector(self, token_ids: NDArray[np.int32], noise: float) -> Row:
        rng = np.random.default_rng(token_ids)
        return rng.normal(size=WIDTH) + noise * rng.normal(size=WIDTH)


def no_noise_in_groups_of(exact: int) -> Callable[[int | None], float]:
    return lambda group: 0.0 if group == exact else 5.0


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Sets what the measurement finds: for a query, and for a batch."""

    def find(query: float, batch: float) -> None:
        monkeypatch.setattr(trial, "measure_speedups", lambda *args: Speedups(query, batch))

    find(2.0, 1.5)
    return find


def try_exact(model: Candidate) -> str:
    return trial.try_exact(model, StillDevice(), Demands(), TORCH_REASON)


def try_quantized(model: Candidate) -> str:
    return trial.try_quantized(model, StillDevice(), Demands())


# -- fp32 -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("speed")
def test_openvino_runs_what_it_computes_exactly_and_faster() -> None:
    model = Candidate()
    reason = try_exact(model)
    assert (model.execution, model.groups) == (OPENVINO, [None])
    assert reason.startswith(f"{OPENVINO}: equal to the reference; 2.00 times torch's speed")


@pytest.mark.parametrize(("query", "batch"), [(0.9, 2.0), (2.0, 0.9)])
def test_torch_stays_where_openvino_is_slower_for_queries_or_batches(
    query: float, batch: float, speed: Callable[[float, float], None]
) -> None:
    speed(query, batch)
    model = Candidate()
    reason = try_exact(model)
    assert model.execution == "packed"
    assert f"{query:.2f} times torch's speed for a query, {batch:.2f} for a mixed batch" in reason
    assert reason.endswith(TORCH_REASON)


@pytest.mark.usefixtures("speed")
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Candidate(noise=lambda group: 1e-3), "differs by"),
        (Candidate(obstacle=RuntimeError("no such operation")), "can't be compiled: RuntimeError"),
    ],
    ids=["inexact", "cannot be compiled"],
)
def test_torch_stays_where_openvino_is_wrong_or_cannot(model: Candidate, said: str) -> None:
    reason = try_exact(model)
    assert model.execution == "packed"
    assert said in reason
    assert reason.endswith(TORCH_REASON)


# -- int8 -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("speed")
def test_int8_runs_where_the_neighbours_stay_and_says_how_many_do() -> None:
    model = Candidate(noise=lambda group: 1e-3)
    reason = try_quantized(model)
    assert model.execution == OPENVINO
    assert len(model.groups) == 1
    assert reason.startswith(f"{OPENVINO} in int8: recall@10 0.99")


@pytest.mark.usefixtures("speed")
def test_smaller_groups_are_tried_where_the_faster_ones_lose_neighbours() -> None:
    first, second = trial.ACTIVATION_GROUPS
    model = Candidate(noise=no_noise_in_groups_of(second))
    assert "recall@10 1.000" in try_quantized(model)
    assert model.groups == [first, second]


@pytest.mark.usefixtures("speed")
@pytest.mark.parametrize("noise", [5.0, np.nan])
def test_int8_that_loses_neighbours_is_refused_with_the_figure(noise: float) -> None:
    with pytest.raises(UnsupportedModel, match=r"keeps 0\.\d{3} of the ten nearest .* 0\.97 are needed"):
        try_quantized(Candidate(noise=lambda group: noise))


@pytest.mark.usefixtures("speed")
def test_int8_that_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="can't be compiled: it has no matrices"):
        try_quantized(Candidate(obstacle=UnsupportedModel("it has no matrices")))


def test_nothing_takes_the_place_of_int8_that_is_slow(
    speed: Callable[[float, float], None], caplog: pytest.LogCaptureFixture
) -> None:
    speed(0.5, 0.5)
    model = Candidate()
    assert "0.50 times torch's speed" in try_quantized(model)
    assert model.execution == OPENVINO
    assert "not faster" in caplog.text


# -- the measures -----------------------------------------------------------------------------------------------


def test_recall_counts_the_neighbours_that_stay() -> None:
    angles = np.linspace(0.0, 3.0, 40)
    rows = [np.array([np.cos(angle), np.sin(angle)]) for angle in angles]
    assert recall(rows, rows) == 1.0
    assert recall([7.0 * row for row in rows], rows) == 1.0, "lengths don't count"
    # One text moves from the first end to the last: it loses all ten, and each of its ten old neighbours loses one.
    moved = [np.array([np.cos(3.1), np.sin(3.1)]), *rows[1:]]
    assert recall(moved, rows) == pytest.approx(1 - (10 + 10) / (40 * 10))


def test_speed_is_the_quotient_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Candidate()
    model.compile()
    model.seconds_per_token = {"packed": 0.03, OPENVINO: 0.01}
    monkeypatch.setattr(time, "perf_counter", lambda: model.clock_s)
    found = measure_speedups(model, StillDevice(), "packed", OPENVINO)
    assert found.query == pytest.approx(3.0)
    assert found.batch == pytest.approx(3.0)


def test_the_best_turn_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Candidate()
    model.compile()
    busy = itertools.cycle([0.0, 9.0, 0.0])  # another program, every third run

    def launch(items: Sequence[Prepared]) -> Flight:
        model.clock_s += (2.0 if model.execution == "packed" else 1.0) + next(busy)
        return HostFlight(lambda: [])

    monkeypatch.setattr(model, "launch", launch)
    monkeypatch.setattr(time, "perf_counter", lambda: model.clock_s)
    found = measure_speedups(model, StillDevice(), "packed", OPENVINO)
    assert found.query == pytest.approx(2.0)
    assert found.batch == pytest.approx(2.0)


def test_the_corpus_is_some_hundred_different_texts() -> None:
    assert len(set(corpus())) == trial.CORPUS_TEXTS
    assert min(len(text.split()) for text in corpus()) >= trial.LEAST_WORDS


# -- who may ask ------------------------------------------------------------------------------------------------


def test_without_the_package_the_model_fails_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    spec = ModelSpec(id="any", backend="openvino")
    with pytest.raises(UnsupportedModel, match=r"pip install 'cotenant\[openvino\]'"):
        load_model(spec, Task.EMBED, tmp_path, CpuDevice(lanes=1))


def test_another_device_than_the_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="runs on the CPU, and this process uses still"):
        load_model(ModelSpec(id="any", backend="openvino"), Task.EMBED, tmp_path, StillDevice())
