"""Which hidden states a head reads of a flat row, also where a captured graph leaves slots empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from runtime.models.heads import NetworkHead, Reading

NAMES = {
    "bert-reranker": Reading.FIRST,
    "modernbert-cls-reranker": Reading.FIRST,
    "modernbert-reranker": Reading.MEAN,
    "qwen2-score-reranker": Reading.LAST_NOT_PADDING,
}


@pytest.fixture(params=NAMES)
def head(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> NetworkHead:
    network = AutoModelForSequenceClassification.from_pretrained(tiny_model(request.param)).eval()
    found = NetworkHead(network, generates=False)
    assert found.reading is NAMES[request.param]
    return found


def test_empty_slots_at_the_end_of_a_row_change_no_other(head: NetworkHead) -> None:
    states = torch.randn(9, 64)
    features = {
        "input_ids": torch.tensor([[5, 6, 0, 7, 8, 9, 5, 0, 0]]),
        "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]]),
        "cu_seq_lens_q": torch.tensor([0, 3, 7, 9, 9, 9], dtype=torch.int32),
    }
    row = head._read_row(states, features)[:3, 0]
    expected = {
        Reading.FIRST: states[[0, 3, 7]],
        Reading.MEAN: torch.stack([states[:3].mean(0), states[3:7].mean(0), states[7:].mean(0)]),
        # The padding token (0) is passed over; of nothing but padding, the first is read.
        Reading.LAST_NOT_PADDING: states[[1, 6, 7]],
    }[head.reading]
    torch.testing.assert_close(row, expected)
