"""The smallest limit counts, whichever of config, weights, tokenizer and registry states it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer

from runtime.models.limits import UNBOUNDED_TOKENS, max_tokens, position_offset
from tests.tiny_models import EMBEDDERS

OFFSETS = {
    "roberta-embedder": 2,
    "xlm-roberta-embedder": 2,
    "camembert-embedder": 2,
    "mpnet-embedder": 2,
    "esm-embedder": 2,
}


class Positions(torch.nn.Module):
    """Embeddings with a learned position table."""

    def __init__(self, rows: int, padding_idx: int | None) -> None:
        super().__init__()
        self.position_embeddings = torch.nn.Embedding(rows, 4)
        self.padding_idx = padding_idx


class Network(torch.nn.Module):
    """A network whose config claims so many positions and whose table, if it has one, has so many rows."""

    def __init__(self, claimed: object = None, rows: int | None = None, padding_idx: int | None = None) -> None:
        super().__init__()
        self.config: Any = SimpleNamespace(max_position_embeddings=claimed)
        if rows is not None:
            self.embeddings = Positions(rows, padding_idx)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"tokenizer": 256, "wanted": None}, 256),
        ({"tokenizer": None, "wanted": 64}, 64),
        ({"tokenizer": 1_000, "wanted": 600}, 512),
        ({"tokenizer": 10**30, "wanted": None}, 512),
        ({"tokenizer": UNBOUNDED_TOKENS + 1, "wanted": 700}, 512),
    ],
)
def test_the_smallest_known_limit_counts(limits: dict[str, int | None], expected: int) -> None:
    assert max_tokens(Network(claimed=512), limits["tokenizer"], limits["wanted"]) == expected


def test_a_table_shorter_than_the_config_claims_counts() -> None:
    assert max_tokens(Network(claimed=512, rows=64), 512, None) == 64


def test_a_table_with_a_padding_row_takes_fewer_tokens_than_it_has_rows() -> None:
    offset = Network(claimed=514, rows=514, padding_idx=1)
    assert position_offset(offset) == 2
    assert max_tokens(offset, None, None) == 512


@pytest.mark.parametrize("claimed", [-1, 0, None, "512"])
def test_a_config_that_knows_no_bound_is_none(claimed: object) -> None:
    assert max_tokens(Network(claimed=claimed), 300, None) == 300


@pytest.mark.parametrize("tokenizer_limit", [None, 10**30])
def test_without_any_limit_there_still_is_one(tokenizer_limit: int | None) -> None:
    assert 0 < max_tokens(Network(), tokenizer_limit, None) <= UNBOUNDED_TOKENS


@pytest.mark.parametrize("name", sorted(EMBEDDERS))
def test_positions_start_behind_the_padding_row_where_the_architecture_says_so(
    name: str, tiny_model: Callable[[str], Path]
) -> None:
    backbone = SentenceTransformer(str(tiny_model(name)), device="cpu", local_files_only=True)[0].auto_model
    assert isinstance(backbone, torch.nn.Module)
    assert position_offset(backbone) == OFFSETS.get(name, 0)
