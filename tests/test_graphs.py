"""A row filled up for a graph: the real sequences untouched, dummies behind them, every slot accounted for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime.models.graphs import MAX_SEQUENCES, ROW_TOKENS, RowShape, fill_up
from runtime.models.packing import pack
from runtime.work import Prepared

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def items(of: list[int]) -> list[Prepared]:
    return [Prepared(token_ids=np.arange(1, n + 1, dtype=np.int32)) for n in of]


@given(lengths, st.integers(16, 512), st.sampled_from([0, 2]))
def test_a_filled_row_keeps_the_real_sequences_and_covers_its_size(of: list[int], longest: int, offset: int) -> None:
    row = pack(items(of), offset, True)
    shape = RowShape(with_type_ids=True, position_offset=offset, max_tokens=longest)
    arrays = fill_up(row, shape)
    used = sum(of)
    if arrays is None:
        size = next((size for size in ROW_TOKENS if size >= used), None)
        assert size is None or len(of) + -(-(size - used) // longest) > MAX_SEQUENCES
        return
    tokens = arrays["input_ids"].size
    assert tokens in ROW_TOKENS
    assert tokens >= used
    np.testing.assert_array_equal(arrays["input_ids"][:used], row.input_ids)
    np.testing.assert_array_equal(arrays["position_ids"][:used], row.position_ids)
    boundaries = arrays["cu_seq_lens_q"]
    assert boundaries.size == MAX_SEQUENCES + 1
    assert boundaries[-1] == tokens
    np.testing.assert_array_equal(boundaries[: row.boundaries.size], row.boundaries)
    dummies = np.diff(boundaries)[len(of) :]
    assert (dummies >= 0).all()
    assert dummies.max(initial=0) <= longest
    for sequence in range(len(of) + int((dummies > 0).sum())):
        start, end = boundaries[sequence], boundaries[sequence + 1]
        assert (arrays["seq_idx"][start:end] == sequence).all()
        np.testing.assert_array_equal(arrays["position_ids"][start:end], np.arange(end - start) + offset)


def test_a_row_beyond_the_largest_size_is_left_to_the_eager_path() -> None:
    shape = RowShape(with_type_ids=False, position_offset=0, max_tokens=512)
    assert fill_up(pack(items([512] * 9), 0, False), shape) is None
    assert fill_up(pack(items([1] * (MAX_SEQUENCES + 1)), 0, False), shape) is None


def test_a_model_without_segment_ids_gets_none() -> None:
    shape = RowShape(with_type_ids=False, position_offset=0, max_tokens=512)
    arrays = fill_up(pack(items([5, 9]), 0, False), shape)
    assert arrays is not None
    assert list(arrays) == ["input_ids", "position_ids", "seq_idx", "cu_seq_lens_q"]
