"""Prompts of the registry: a request that names none gets the reference's vectors with that prompt, in every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer

from runtime.devices.cpu import CpuDevice
from runtime.errors import UnknownPrompt, UnsupportedModel
from runtime.models.base import Model
from runtime.models.loading import load_model
from runtime.models.prompts import Prompts
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Pair, Row, Task

TinyModel = Callable[[str], Path]

FP32 = 1e-5
TEXTS = ["what is a class", "name", " ".join(f"word{i}" for i in range(60))]
EMBEDDERS = ("bert-embedder", "distilbert-embedder", "nomic-bert-embedder")
"""Without prompts of its own; with some that pooling leaves out; with a default of its own."""


def loaded(folder: Path, task: Task, **settings: Any) -> Model:
    spec = ModelSpec(id="model", source=str(folder), **settings)
    return load_model(spec, task, folder, CpuDevice(lanes=1))


def rows(model: Model, task: Task, inputs: Sequence[Input], prompt_name: str | None = None) -> list[Row]:
    job = Job(id="job", model="model", task=task, inputs=inputs, prompt_name=prompt_name)
    return model.launch(model.prepare(job)).land()


def difference(found: Sequence[Row], expected: Sequence[Row]) -> float:
    assert [row.shape for row in found] == [row.shape for row in expected]
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["query", "document", "passage", "instruction"])
@pytest.mark.parametrize("embedder", EMBEDDERS)
def test_an_embedder_uses_the_registrys_default_prompt(embedder: str, name: str, tiny_model: TinyModel) -> None:
    folder, prompt = tiny_model(embedder), f"the {name}: "
    model = loaded(folder, Task.EMBED, prompts={name: prompt}, default_prompt=name)
    reference = SentenceTransformer(str(folder), device="cpu")
    expected = [reference.encode(text, prompt=prompt, show_progress_bar=False) for text in TEXTS]
    assert difference(rows(model, Task.EMBED, TEXTS), expected) <= FP32
    assert difference(rows(model, Task.EMBED, TEXTS), rows(model, Task.EMBED, TEXTS, name)) <= FP32
    without = [reference.encode(text, prompt="", show_progress_bar=False) for text in TEXTS]
    assert difference(expected, without) > 10 * FP32


def test_the_registry_may_rewrite_the_text_of_a_models_own_default_prompt(tiny_model: TinyModel) -> None:
    folder = tiny_model("nomic-bert-embedder")
    model = loaded(folder, Task.EMBED, prompts={"document": "text: "})
    reference = SentenceTransformer(str(folder), device="cpu")
    expected = [reference.encode(text, prompt="text: ", show_progress_bar=False) for text in TEXTS]
    assert difference(rows(model, Task.EMBED, TEXTS), expected) <= FP32


@pytest.mark.parametrize("name", ["query", "document"])
def test_a_token_embedder_uses_the_registrys_prompts(name: str, tiny_model: TinyModel) -> None:
    folder = tiny_model("colbert")
    prompts = {"query": "the query: ", "document": "the document: "}
    model = loaded(folder, Task.MULTI_VECTOR, prompts=prompts, default_prompt=name)
    reference = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
    encode = reference.encode_query if name == "query" else reference.encode_document
    expected = [encode(text, prompt=prompts[name], convert_to_numpy=True, show_progress_bar=False) for text in TEXTS]
    assert difference(rows(model, Task.MULTI_VECTOR, TEXTS), expected) <= FP32


@pytest.mark.parametrize(
    ("name", "task"),
    [("clip-modules", Task.EMBED), ("clip", Task.EMBED), ("siglip", Task.EMBED), ("colqwen2", Task.MULTI_VECTOR)],
)
def test_a_model_that_sees_uses_the_registrys_default_prompt(name: str, task: Task, tiny_model: TinyModel) -> None:
    folder = tiny_model(name)
    model = loaded(folder, task, prompts={"query": "a photo of "}, default_prompt="query")
    expected = rows(loaded(folder, task), task, [f"a photo of {text}" for text in TEXTS])
    assert difference(rows(model, task, TEXTS), expected) <= FP32


def test_a_reranker_uses_the_registrys_default_prompt(tiny_model: TinyModel) -> None:
    folder = tiny_model("qwen3-yes-no-reranker")
    model = loaded(folder, Task.RERANK, prompts={"own": "Find the class"}, default_prompt="own")
    reference = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    scores = reference.predict(
        [("what is a class", text) for text in TEXTS], prompt="Find the class", show_progress_bar=False, batch_size=1
    )
    found = np.concatenate(rows(model, Task.RERANK, [Pair("what is a class", text) for text in TEXTS]))
    np.testing.assert_allclose(1 / (1 + np.exp(-found)), scores, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "task"), [("bert-embedder", Task.EMBED), ("colbert", Task.MULTI_VECTOR), ("bert-reranker", Task.RERANK)]
)
def test_a_default_prompt_that_does_not_exist_fails_the_load_and_lists_those_that_do(
    name: str, task: Task, tiny_model: TinyModel
) -> None:
    with pytest.raises(UnsupportedModel, match=r"default_prompt: there is no prompt 'nosuch'; .*\bown\b"):
        loaded(tiny_model(name), task, prompts={"own": "own: "}, default_prompt="nosuch")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("nomic-bert-embedder", Task.EMBED),
        ("colbert", Task.MULTI_VECTOR),
        ("bert-reranker", Task.RERANK),
        ("clip", Task.EMBED),
        ("colqwen2", Task.MULTI_VECTOR),
    ],
)
def test_a_prompt_that_may_be_missing_is_the_default_one_then(name: str, task: Task, tiny_model: TinyModel) -> None:
    model = loaded(tiny_model(name), task)
    inputs: list[Input] = [Pair("a", "b")] if task is Task.RERANK else list(TEXTS)
    job = Job(id="job", model="model", task=task, inputs=inputs, prompt_name="clustering_")
    with pytest.raises(UnknownPrompt):
        model.prepare(job)
    found = model.launch(model.prepare(replace(job, prompt_optional=True))).land()
    assert difference(found, rows(model, task, inputs)) == 0.0


def test_an_optional_prompt_that_exists_is_used() -> None:
    prompts = Prompts({"query": "q: ", "document": "d: "}, "document")
    assert [prompts.text(name, optional=True) for name in ("search_query", "classification")] == ["q: ", "d: "]


def test_a_default_prompt_may_go_by_any_of_its_names() -> None:
    assert Prompts({"query": "q: "}, "search_query").text(None) == "q: "
    with pytest.raises(UnsupportedModel, match="its prompts are: none"):
        Prompts({}, "query")
