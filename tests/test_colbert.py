"""ColBERT-style models: every row is sentence-transformers' for that text alone, whatever its batch mates were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from runtime.devices.cpu import CpuDevice
from runtime.errors import InputTooLong, InvalidDimensions, UnknownPrompt, UnsupportedCapability
from runtime.models.base import Model
from runtime.models.loading import load_model
from runtime.registry import ModelSpec
from runtime.work import Job, Picture, Row, Task
from tests.tiny_models import TOKEN_EMBEDDERS

FP32 = 1e-5
TEXTS = [
    "what is a class",
    "",
    "name, name; name. (name)",
    "...",
    " ".join(f"word{i}" for i in range(60)),
    " ".join(f"name {i}, value {i}." for i in range(90)),
    "what is a name",
    "naïve café 東京 🙂",
]


@dataclass(frozen=True)
class Loaded:
    name: str
    model: Model
    reference: MultiVectorEncoder

    def job(self, texts: Sequence[str], prompt_name: str | None = None) -> Job:
        return Job(id="job", model=self.name, task=Task.MULTI_VECTOR, inputs=texts, prompt_name=prompt_name)

    def embed(self, job: Job) -> list[Row]:
        return self.model.launch(self.model.prepare(job)).land()

    def expected(self, texts: Sequence[str], query: bool) -> list[Row]:
        encode = self.reference.encode_query if query else self.reference.encode_document
        return [encode(text, convert_to_numpy=True, show_progress_bar=False) for text in texts]


@pytest.fixture(scope="module", params=sorted(TOKEN_EMBEDDERS))
def loaded(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Loaded:
    folder = tiny_model(request.param)
    reference = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
    model = load_model(ModelSpec(id=request.param, source=str(folder)), Task.MULTI_VECTOR, folder, CpuDevice(lanes=2))
    return Loaded(request.param, model, reference)


def difference(rows: Sequence[Row], expected: Sequence[Row]) -> float:
    assert [row.shape for row in rows] == [row.shape for row in expected]
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(rows, expected, strict=True))


def test_documents_are_the_default_and_equal_the_reference_one_by_one(loaded: Loaded) -> None:
    rows = loaded.embed(loaded.job(TEXTS))
    assert difference(rows, loaded.expected(TEXTS, query=False)) <= FP32
    for row in rows:
        np.testing.assert_allclose(np.linalg.norm(row, axis=1), 1.0, atol=1e-3)


def test_queries_equal_the_reference_one_by_one(loaded: Loaded) -> None:
    for name in ("query", "search_query"):
        rows = loaded.embed(loaded.job(TEXTS, name))
        assert difference(rows, loaded.expected(TEXTS, query=True)) <= FP32


def test_queries_and_documents_share_a_batch_in_any_order(loaded: Loaded) -> None:
    items = loaded.model.prepare(loaded.job(TEXTS, "query")) + loaded.model.prepare(loaded.job(TEXTS, "passage"))
    expected = loaded.expected(TEXTS, query=True) + loaded.expected(TEXTS, query=False)
    order = np.random.default_rng(3).permutation(len(items))
    rows = loaded.model.launch([items[i] for i in order]).land()
    assert difference(rows, [expected[i] for i in order]) <= FP32


def test_alone_equals_batched(loaded: Loaded) -> None:
    alone = [loaded.embed(loaded.job([text], "query"))[0] for text in TEXTS]
    assert difference(alone, loaded.embed(loaded.job(TEXTS, "query"))) <= FP32


def test_the_flat_row_is_used(loaded: Loaded) -> None:
    assert loaded.model.facts.execution == "packed", loaded.model.facts.execution_reason


def test_vectors_are_cut_then_normalised(loaded: Loaded) -> None:
    whole = loaded.embed(loaded.job(TEXTS))
    for row, full in zip(loaded.embed(replace(loaded.job(TEXTS), dimensions=8)), whole, strict=True):
        cut = full[:, :8]
        np.testing.assert_allclose(row, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-5)
    for wrong in (0, 33):
        with pytest.raises(InvalidDimensions):
            loaded.model.prepare(replace(loaded.job(TEXTS), dimensions=wrong))


def test_what_it_cannot_do_is_refused(loaded: Loaded) -> None:
    with pytest.raises(UnsupportedCapability):
        loaded.model.prepare(replace(loaded.job(TEXTS), inputs=["a", Picture(b"", 1, 1)]))
    with pytest.raises(UnknownPrompt):
        loaded.model.prepare(loaded.job(TEXTS, "no such prompt"))
    with pytest.raises(InputTooLong):
        loaded.model.prepare(replace(loaded.job(["word " * 900]), truncate=False))


def test_a_classic_query_is_widened_to_32_rows_and_a_document_loses_its_punctuation(
    tiny_model: Callable[[str], Path],
) -> None:
    folder = tiny_model("colbert")
    model = load_model(ModelSpec(id="colbert", source=str(folder)), Task.MULTI_VECTOR, folder, CpuDevice(lanes=1))
    job = Job(id="job", model="colbert", task=Task.MULTI_VECTOR, inputs=["name, name."])
    query = model.launch(model.prepare(replace(job, prompt_name="query"))).land()[0]
    plain = model.launch(model.prepare(replace(job, inputs=["name name"]))).land()[0]
    dotted = model.launch(model.prepare(job)).land()[0]
    assert query.shape[0] == 32
    assert dotted.shape == plain.shape
