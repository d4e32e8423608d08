"""An embedder and a reranker in one engine: a hundred pairs over several batches, beside other work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from runtime.engine import Engine
from runtime.errors import NonFiniteOutput, UnsupportedCapability
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.work import Job, Pair, Task
from tests.tiny_models.bad_neighbours import NAN_WORD

pytestmark = pytest.mark.anyio

TinyModel = Callable[[str], Path]
QUERY = "what is a list"
DOCUMENTS = [" ".join(["a list of", *["words"] * (n % 40), f"number {n}"]) for n in range(100)]
PAIRS = [Pair(QUERY, document) for document in DOCUMENTS]


@asynccontextmanager
async def serving(**folders: Path) -> AsyncIterator[Engine]:
    specs = tuple(
        ModelSpec(id=name, source=str(folder), max_batch_tokens=512, max_length=128) for name, folder in folders.items()
    )
    engine = Engine(RuntimeConfig(models=specs, device="cpu", cpu_lanes=2))
    await engine.start()
    await engine.wait_loaded()
    try:
        yield engine
    finally:
        await engine.stop()


def rerank(*pairs: Pair) -> Job:
    return Job(id="job", model="reranker", task=Task.RERANK, inputs=pairs)


async def test_a_hundred_pairs_travel_in_several_batches_beside_other_jobs(tiny_model: TinyModel) -> None:
    folders = {"embedder": tiny_model("bert-embedder"), "reranker": tiny_model("xlm-roberta-reranker")}
    async with serving(**folders) as engine:
        embed = Job(id="job", model="embedder", task=Task.EMBED, inputs=["a query"])
        ranked, vector, few = await asyncio.gather(
            engine.run(rerank(*PAIRS)), engine.run(embed), engine.run(rerank(*PAIRS[:3]))
        )
        batches = engine.metering.registry.get_sample_value(
            "cotenant_batch_tokens_count", {"model": "reranker", "lane": "online"}
        )
    reference = CrossEncoder(str(folders["reranker"]), device="cpu")
    expected = reference.predict(
        [(QUERY, document) for document in DOCUMENTS],
        batch_size=1,
        show_progress_bar=False,
        activation_fn=torch.nn.Identity(),
    )
    rows = np.array(ranked.rows)
    assert rows.shape == (100, 1)
    assert np.abs(rows[:, 0] - expected).max() <= 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(np.array(few.rows), rows[:3], atol=1e-5)
    assert batches is not None
    assert batches >= 4
    assert ranked.head is not None
    assert (ranked.head.labels, ranked.head.activation) == (("LABEL_0",), "sigmoid")
    assert vector.head is None
    whole = SentenceTransformer(str(folders["embedder"]), device="cpu").encode("a query", show_progress_bar=False)
    np.testing.assert_allclose(vector.rows[0], whole, atol=1e-5)


async def test_a_model_is_only_asked_for_what_it_does(tiny_model: TinyModel) -> None:
    folders = {"reranker": tiny_model("bert-reranker"), "classifier": tiny_model("multi-class-classifier")}
    async with serving(**folders) as engine:
        states = {status.name: status.state for status in engine.describe()}
        assert set(states.values()) == {"ready"}
        classified = await engine.run(
            Job(id="job", model="classifier", task=Task.CLASSIFY, inputs=["a text", PAIRS[0]])
        )
        assert [row.shape for row in classified.rows] == [(3,), (3,)]
        assert classified.head is not None
        assert classified.head.activation == "softmax"
        with pytest.raises(UnsupportedCapability):
            await engine.run(Job(id="job", model="classifier", task=Task.RERANK, inputs=PAIRS[:1]))
        with pytest.raises(UnsupportedCapability):
            await engine.run(Job(id="job", model="reranker", task=Task.EMBED, inputs=["a text"]))


async def test_a_logit_that_is_no_number_is_an_error(tiny_model: TinyModel, tmp_path: Path) -> None:
    broken = CrossEncoder(str(tiny_model("bert-reranker")), device="cpu")
    with torch.no_grad():
        next(broken.parameters())[broken.tokenizer.convert_tokens_to_ids(NAN_WORD)] = torch.nan
    broken.save_pretrained(str(tmp_path), create_model_card=False)
    async with serving(reranker=tmp_path) as engine:
        assert np.isfinite((await engine.run(rerank(PAIRS[0]))).rows[0]).all()
        with pytest.raises(NonFiniteOutput):
            await engine.run(rerank(Pair("a query", NAN_WORD)))
