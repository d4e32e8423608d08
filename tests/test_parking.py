"""A model's weights leave memory and return bit by bit; a closed model holds none, whoever still refers to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from runtime.devices.cpu import CpuDevice
from runtime.models.exactness import choose_execution
from runtime.models.loading import load_model
from runtime.models.multi_vector_exactness import as_picture
from runtime.models.parking import ParkableModel
from runtime.models.text import TextEmbedder
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Pair, Task
from tests.pages import pages

PAIRS = [Pair("a name", "the name of a class"), Pair("which", "another and longer text of some words")]
TEXTS = ["one text", "another and longer one"]
FAMILIES: dict[str, tuple[Task, Sequence[Input]]] = {
    "modernbert-embedder": (Task.EMBED, TEXTS),
    "deberta-v2-embedder": (Task.EMBED, TEXTS),
    "bert-reranker": (Task.RERANK, PAIRS),
    "deberta-v2-reranker": (Task.RERANK, PAIRS),
    "multi-label-classifier": (Task.CLASSIFY, TEXTS),
    "colbert": (Task.MULTI_VECTOR, TEXTS),
    "colqwen2": (Task.MULTI_VECTOR, [*map(as_picture, pages()[:2]), *TEXTS]),
    "colpali": (Task.MULTI_VECTOR, [*map(as_picture, pages()[:2]), *TEXTS]),
    "clip": (Task.EMBED, [*map(as_picture, pages()[:2]), *TEXTS]),
    "clip-modules": (Task.EMBED, [*map(as_picture, pages()[:2]), *TEXTS]),
}


def held_bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_weights_leave_and_return_as_they_were_and_end_with_the_model(tiny_model: Callable[[str], Path]) -> None:
    device = CpuDevice()
    spec = ModelSpec(id="tiny")
    model = TextEmbedder(spec, tiny_model("bert-embedder"), device)
    model.settle(choose_execution(model, spec.execution, model.window_tokens, model.half))
    texts = ["one text", "another and longer one"]
    items = model.prepare(Job(id="j", model="tiny", task=Task.EMBED, inputs=texts))
    module = model._reference
    tensors = [*itertools.chain(module.parameters(), module.buffers())]
    before, size = np.stack(model.launch(items).land()), held_bytes(tensors)
    for _ in range(3):
        assert model.park()
        assert held_bytes(tensors) == 0
        model.unpark()
        assert held_bytes(tensors) == size
        np.testing.assert_array_equal(np.stack(model.launch(items).land()), before)
    model.close()
    assert held_bytes(tensors) == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_leaves_and_returns_with_the_same_rows(name: str, tiny_model: Callable[[str], Path]) -> None:
    task, inputs = FAMILIES[name]
    folder = tiny_model(name)
    model = load_model(ModelSpec(id=name, source=str(folder)), task, folder, CpuDevice(lanes=1))
    assert isinstance(model, ParkableModel)
    module = model._weights
    assert module is not None
    tensors = [*itertools.chain(module.parameters(), module.buffers())]
    items = model.prepare(Job(id="j", model=name, task=task, inputs=inputs))
    before = model.launch(items).land()
    assert held_bytes(tensors) >= model.facts.weight_bytes > 0
    assert model.park()
    assert held_bytes(tensors) == 0
    model.unpark()
    for row, expected in zip(model.launch(items).land(), before, strict=True):
        np.testing.assert_array_equal(row, expected)
    model.close()
    assert held_bytes(tensors) == 0
