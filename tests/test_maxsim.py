"""MaxSim in the engine: equal to colpali-engine's, whatever is compared beside it, in queues like all other work."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch
from colpali_engine.models import ColPaliProcessor
from numpy.typing import NDArray

from runtime.devices.cpu import CpuDevice
from runtime.engine import Engine
from runtime.errors import ConfigurationError, UnsupportedCapability
from runtime.models.maxsim import NO_ROWS_SCORE, QUERY_ROWS_AT_ONCE, MaxSim
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.work import MAXSIM_ID, Job, Lane, MatrixPair, Task

pytestmark = pytest.mark.anyio
RELATIVE = 1e-4
Matrix = NDArray[np.float32]


def unit_rows(rows: int, width: int = 128, seed: int = 0) -> Matrix:
    made = np.random.default_rng((seed, rows)).normal(size=(rows, width)).astype(np.float32)
    unit: Matrix = made / np.linalg.norm(made, axis=1, keepdims=True)
    return unit


QUERIES = [unit_rows(rows, seed=1) for rows in (1, 7, QUERY_ROWS_AT_ONCE, 2 * QUERY_ROWS_AT_ONCE + 3)]
DOCUMENTS = [unit_rows(rows, seed=2) for rows in (5, 300, 1, 300, 1030, 5, 64, 300)]


def job(pairs: Sequence[MatrixPair], lane: Lane = Lane.ONLINE) -> Job:
    return Job(id="job", model=MAXSIM_ID, task=Task.MAXSIM, inputs=pairs, lane=lane)


def all_pairs() -> list[MatrixPair]:
    return [MatrixPair(query, document) for query in QUERIES for document in DOCUMENTS]


def scores(model: MaxSim, pairs: Sequence[MatrixPair]) -> Matrix:
    return np.concatenate(model.launch(model.prepare(job(pairs))).land())


@pytest.fixture(scope="module")
def model() -> MaxSim:
    return MaxSim(CpuDevice(lanes=1))


def expected() -> Matrix:
    """colpali-engine's, one by one: in one batch it pads, and a row of zeros may be the largest."""
    found = [
        ColPaliProcessor.score_multi_vector([torch.from_numpy(query)], [torch.from_numpy(document)], device="cpu")
        for query in QUERIES
        for document in DOCUMENTS
    ]
    return np.array([float(score) for score in found], dtype=np.float32)


def test_every_score_equals_the_library_s_in_one_batch_and_alone(model: MaxSim) -> None:
    pairs = all_pairs()
    np.testing.assert_allclose(scores(model, pairs), expected(), rtol=RELATIVE)
    alone = [scores(model, [pair])[0] for pair in pairs]
    np.testing.assert_allclose(alone, expected(), rtol=RELATIVE)


def test_the_order_of_a_batch_is_kept(model: MaxSim) -> None:
    order = np.random.default_rng(3).permutation(len(all_pairs()))
    pairs = all_pairs()
    np.testing.assert_allclose(scores(model, [pairs[i] for i in order]), expected()[order], rtol=RELATIVE)


def test_no_row_that_is_not_there_is_the_largest(model: MaxSim) -> None:
    """All dot products are negative; a padded row of zeros would win."""
    query = unit_rows(3)
    documents = [np.repeat(-query[:1] - query[1:2] - query[2:], rows, axis=0) for rows in (1, 9, 200)]
    found = scores(model, [MatrixPair(query, document) for document in documents])
    direct = [(query @ document.T).max(axis=1).sum() for document in documents]
    np.testing.assert_allclose(found, direct, rtol=RELATIVE)
    assert (found < 0).all()


def test_a_document_without_rows_comes_last_and_a_query_without_rows_scores_nothing(model: MaxSim) -> None:
    query, none = QUERIES[3], np.empty((0, 128), np.float32)
    pairs = [MatrixPair(query, none), MatrixPair(query, DOCUMENTS[0]), MatrixPair(query, none)]
    found = scores(model, pairs)
    assert found.tolist() == [NO_ROWS_SCORE, pytest.approx(scores(model, pairs[1:2])[0], rel=RELATIVE), NO_ROWS_SCORE]
    assert scores(model, pairs[:1]).tolist() == [NO_ROWS_SCORE]
    assert scores(model, [MatrixPair(none, DOCUMENTS[0])]).tolist() == [0.0]


def test_it_costs_the_documents_rows(model: MaxSim) -> None:
    pairs = all_pairs()
    assert [item.tokens for item in model.prepare(job(pairs))] == [len(pair.document) for pair in pairs]
    assert [model.cost(pair) for pair in pairs] == [len(pair.document) for pair in pairs]
    with pytest.raises(UnsupportedCapability):
        model.prepare(Job(id="job", model=MAXSIM_ID, task=Task.MAXSIM, inputs=["a text"]))


@asynccontextmanager
async def engine_without_models(**fields: Any) -> AsyncIterator[Engine]:
    engine = Engine(RuntimeConfig(device="cpu", **fields))
    await engine.start()
    await engine.wait_loaded()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_every_engine_has_it_beside_its_models_and_shows_it_in_no_list() -> None:
    async with engine_without_models() as engine:
        assert engine.describe() == []
        with pytest.raises(UnsupportedCapability):
            engine.resolve(None, Task.MAXSIM)
        results = await asyncio.gather(*(engine.run(job([pair])) for pair in all_pairs()))
        np.testing.assert_allclose([float(result.rows[0][0]) for result in results], expected(), rtol=RELATIVE)
        whole = await engine.run(job(all_pairs(), Lane.BULK))
        np.testing.assert_allclose(np.concatenate(whole.rows), expected(), rtol=RELATIVE)
        assert whole.tokens == len(QUERIES) * sum(map(len, DOCUMENTS))
        assert whole.timings.device_share_ms > 0
        metrics = engine.metering.render().decode()
        assert re.search(rf'tokens_total{{model="{MAXSIM_ID}"[^}}]*}} {2 * whole.tokens}.0', metrics)


def queued(engine: Engine) -> float:
    """Document rows that wait."""
    found = re.search(rf'queue_tokens{{lane="online",model="{MAXSIM_ID}"}} (\S+)', engine.metering.render().decode())
    assert found is not None
    return float(found[1])


async def test_a_request_that_is_given_up_leaves_no_work_behind() -> None:
    async with engine_without_models() as engine:
        waiting = asyncio.create_task(engine.run(job(all_pairs() * 100)))
        while not (tokens := queued(engine)):
            assert not waiting.done()
            await asyncio.sleep(0)
        assert tokens > 0
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert queued(engine) == 0


def test_its_name_is_taken() -> None:
    with pytest.raises(ConfigurationError):
        Engine(RuntimeConfig(models=(ModelSpec(id="a", aliases=(MAXSIM_ID,)),)))
