"""Fewer rows in a multi-vector, as colpali-engine makes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from colpali_engine.compression.token_pooling import HierarchicalTokenPooler

from runtime.api.token_pooling import MAX_ROWS, pooled
from runtime.errors import InvalidRequest
from tests.fakes import matrix

ROWS = matrix("a b")


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("tokens", [2, 3, 50])
def test_pooled_rows_are_colpali_engine_s(factor: int, tokens: int) -> None:
    rows = np.random.default_rng(tokens).normal(size=(tokens, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    [expected] = HierarchicalTokenPooler().pool_embeddings([torch.from_numpy(rows)], pool_factor=factor)
    assert np.allclose(pooled(rows, factor), expected.numpy(), atol=1e-6)
    assert np.allclose(np.linalg.norm(pooled(rows, factor), axis=1), 1, atol=1e-6)


def test_a_lone_row_and_a_factor_of_one_stay() -> None:
    assert np.array_equal(pooled(ROWS[:1], 3), ROWS[:1])
    assert np.array_equal(pooled(ROWS, 1), ROWS)
    with pytest.raises(InvalidRequest, match=str(MAX_ROWS)):
        pooled(np.ones((MAX_ROWS + 1, 2), np.float32), 2)
