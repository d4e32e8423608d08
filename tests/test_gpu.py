"""On a CUDA GPU: the same relations as on CPU, the pinned ring under load, memory given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from runtime.devices.cuda import CudaDevice
from runtime.engine import Engine
from runtime.models.loading import load_model
from runtime.models.text import TextEmbedder
from runtime.registry import Dtype, ModelSpec, RuntimeConfig
from runtime.work import Job, Row, Task
from tests.test_model_contract import OTHER_LAYOUTS, difference, texts
from tests.tiny_models import EMBEDDERS

pytestmark = [pytest.mark.gpu]

FP32_ON_GPU = 1e-5
HALF_COSINE = 0.999


def load(name: str, folder: Path, dtype: Dtype) -> TextEmbedder:
    model = load_model(ModelSpec(id=name, source=str(folder), dtype=dtype), Task.EMBED, folder, CudaDevice(0))
    assert isinstance(model, TextEmbedder)
    return model


def embed(model: TextEmbedder, inputs: list[str]) -> list[Row]:
    return model.launch(model.prepare(Job(id="job", model="m", task=Task.EMBED, inputs=inputs))).land()


def on_cpu(folder: Path, inputs: list[str], limit: int) -> list[Row]:
    reference = SentenceTransformer(str(folder), device="cpu")
    reference.max_seq_length = limit
    return [reference.encode(text, show_progress_bar=False) for text in inputs]


@pytest.mark.parametrize("name", sorted(EMBEDDERS))
def test_fp32_equals_the_reference_on_cpu(name: str, tiny_model: Callable[[str], Path]) -> None:
    model = load(name, tiny_model(name), "float32")
    assert difference(embed(model, texts()), on_cpu(tiny_model(name), texts(), model.facts.max_tokens)) <= FP32_ON_GPU


@pytest.mark.parametrize("name", sorted(EMBEDDERS))
def test_bf16_points_where_the_reference_points(name: str, tiny_model: Callable[[str], Path]) -> None:
    model = load(name, tiny_model(name), "bfloat16")
    expected = on_cpu(tiny_model(name), texts(), model.facts.max_tokens)
    for row, whole in zip(embed(model, texts()), expected, strict=True):
        assert row @ whole / np.linalg.norm(row) / np.linalg.norm(whole) >= HALF_COSINE
    assert model.facts.execution == OTHER_LAYOUTS.get(name, "packed"), model.facts.execution_reason


@pytest.mark.parametrize("name", ["bert-embedder", "modernbert-embedder", "qwen3-embedder"])
def test_a_replayed_graph_equals_the_eager_path(name: str, tiny_model: Callable[[str], Path]) -> None:
    model = load(name, tiny_model(name), "bfloat16")
    assert model.facts.graph_bytes > 0, "no graphs were captured"
    batches = [texts()[:count] for count in (1, 3, 8, 12, 14)]
    replayed = [embed(model, batch) for batch in batches]
    model.decelerate()
    for rows, batch in zip(replayed, batches, strict=True):
        assert difference(rows, embed(model, batch)) <= 2e-2  # bf16 rounding of another kernel shape


def test_two_flights_keep_every_row_with_its_text(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("bert-embedder")

    async def run() -> list[Row]:
        spec = ModelSpec(id="tiny", source=str(folder), dtype="float32", max_batch_tokens=256)
        engine = Engine(RuntimeConfig(device="cuda:0", models=(spec,)))
        await engine.start()
        await engine.wait_loaded()
        jobs = [Job(id=str(i), model="tiny", task=Task.EMBED, inputs=[f"text {i} " * (i % 40)]) for i in range(500)]
        results = await asyncio.gather(*map(engine.run, jobs))
        await engine.stop()
        return [result.rows[0] for result in results]

    expected = on_cpu(folder, [f"text {i} " * (i % 40) for i in range(500)], 256)
    assert difference(asyncio.run(run()), expected) <= FP32_ON_GPU


def test_a_closed_model_gives_its_memory_back(tiny_model: Callable[[str], Path]) -> None:
    def cycle() -> int:
        model = load("bert-embedder", tiny_model("bert-embedder"), "bfloat16")
        embed(model, texts())
        model.close()
        del model
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    held = [cycle() for _ in range(6)]
    assert max(held[2:]) - min(held[2:]) <= 2**20
