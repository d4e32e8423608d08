"""A model's weights leave memory and return bit by bit; a closed model holds none, whoever still refers to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from runtime.devices.cpu import CpuDevice
from runtime.models.exactness import choose_execution
from runtime.models.text import TextEmbedder
from runtime.registry import ModelSpec
from runtime.work import Job, Task


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
