"""Packing is lossless, its runs cover the row, and buckets waste no more than they may."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime.models.packing import BUCKET_WASTE, buckets, equal_length_runs, pack, pad
from runtime.work import Prepared

lengths = st.lists(st.integers(1, 30) | st.sampled_from([7, 8]), min_size=1, max_size=24)
"""Some of them equal more often than chance would have it."""


def prepared(tokens: int, seed: int, types: bool = False) -> Prepared:
    rng = np.random.default_rng(seed)
    return Prepared(
        token_ids=rng.integers(0, 30_000, tokens).astype(np.int32),
        type_ids=rng.integers(0, 2, tokens).astype(np.int32) if types else None,
    )


def items_of(counts: list[int]) -> list[Prepared]:
    """Items of these lengths, every second one with segment ids."""
    return [prepared(tokens, seed, types=seed % 2 == 1) for seed, tokens in enumerate(counts)]


@given(lengths)
def test_every_sequence_is_found_again_in_the_row(counts: list[int]) -> None:
    items = items_of(counts)
    row = pack(items, 0, with_type_ids=True)
    assert sorted(row.order) == list(range(len(items)))
    assert row.type_ids is not None
    assert row.input_ids.shape == row.type_ids.shape == (sum(counts),)
    for position, index in enumerate(row.order):
        part = slice(row.boundaries[position], row.boundaries[position + 1])
        np.testing.assert_array_equal(row.input_ids[part], items[index].token_ids)
        expected = items[index].type_ids
        np.testing.assert_array_equal(row.type_ids[part], np.zeros(counts[index]) if expected is None else expected)


@given(lengths, st.integers(0, 5))
def test_positions_restart_with_each_sequence_at_the_models_offset(counts: list[int], offset: int) -> None:
    row = pack(items_of(counts), offset, with_type_ids=False)
    expected = [np.arange(counts[index]) + offset for index in row.order]
    np.testing.assert_array_equal(row.position_ids, np.concatenate(expected))
    assert row.type_ids is None


@given(lengths)
def test_sequence_ids_and_boundaries_tell_the_same_sequences_apart(counts: list[int]) -> None:
    row = pack(items_of(counts), 0, with_type_ids=False)
    assert row.boundaries[0] == 0
    assert row.boundaries[-1] == sum(counts)
    np.testing.assert_array_equal(np.bincount(row.sequence_ids), np.diff(row.boundaries))
    assert (np.diff(row.sequence_ids) >= 0).all()


@given(lengths)
def test_the_longest_stand_first_and_equals_keep_their_order(counts: list[int]) -> None:
    order = pack(items_of(counts), 0, with_type_ids=False).order
    assert list(order) == sorted(range(len(counts)), key=lambda i: (-counts[i], i))


@given(lengths)
def test_runs_cover_the_row_without_gap_or_overlap_and_are_as_few_as_can_be(counts: list[int]) -> None:
    row = pack(items_of(counts), 0, with_type_ids=False)
    assert row.runs[0].start == 0
    for run, following in pairwise(row.runs):
        assert following.start == run.start + run.sequences * run.length
    assert [run.length for run in row.runs] == sorted(set(counts), reverse=True)
    starts = [run.start + k * run.length for run in row.runs for k in range(run.sequences)]
    assert starts == row.boundaries[:-1].tolist()


def test_runs_of_a_row_that_is_not_sorted_are_its_neighbours_of_one_length() -> None:
    found = equal_length_runs(np.array([3, 3, 5, 2, 2, 2], dtype=np.int32))
    assert [tuple(run) for run in found] == [(0, 2, 3), (6, 1, 5), (11, 3, 2)]


@given(lengths)
def test_what_goes_to_the_device_is_int32(counts: list[int]) -> None:
    row = pack(items_of(counts), 2, with_type_ids=True)
    block = pad(items_of(counts), 0, with_type_ids=True)
    assert row.type_ids is not None
    assert block.type_ids is not None
    arrays = [row.input_ids, row.position_ids, row.sequence_ids, row.boundaries, row.type_ids]
    arrays += [block.input_ids, block.attention_mask, block.type_ids]
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}
    assert all(array.flags.c_contiguous for array in arrays)


# -- buckets ----------------------------------------------------------------------------------------------------


@given(lengths, st.floats(1.0, 2.0))
def test_each_bucket_pads_within_its_waste_and_every_item_is_in_one(counts: list[int], waste: float) -> None:
    groups = buckets(items_of(counts), waste)
    assert sorted(index for group in groups for index in group) == list(range(len(counts)))
    for group in groups:
        longest = max(counts[index] for index in group)
        assert len(group) * longest <= waste * sum(counts[index] for index in group)


@given(lengths)
def test_without_any_waste_a_bucket_is_all_items_of_one_length(counts: list[int]) -> None:
    groups = buckets(items_of(counts), waste=1.0)
    expected = [[i for i, count in enumerate(counts) if count == length] for length in sorted(set(counts))[::-1]]
    assert groups == expected


@given(lengths)
def test_a_bucket_ends_only_where_the_next_item_would_waste_too_much(counts: list[int]) -> None:
    groups = buckets(items_of(counts))
    for group, following in pairwise(groups):
        joined = [counts[index] for index in (*group, following[0])]
        assert len(joined) * joined[0] > BUCKET_WASTE * sum(joined)


# -- rectangles -------------------------------------------------------------------------------------------------


@given(lengths, st.integers(1, 9))
def test_the_mask_leads_back_to_every_sequence_and_the_rest_is_padding(counts: list[int], pad_id: int) -> None:
    items = items_of(counts)
    block = pad(items, pad_id, with_type_ids=True)
    assert block.type_ids is not None
    assert block.input_ids.shape == (len(counts), max(counts))
    real = block.attention_mask == 1
    assert (block.input_ids[~real] == pad_id).all()
    assert not block.attention_mask[~real].any()
    assert not block.type_ids[~real].any()
    for row, item in enumerate(items):
        np.testing.assert_array_equal(block.input_ids[row, real[row]], item.token_ids)
        assert real[row, : item.tokens].all()
        expected = np.zeros(item.tokens) if item.type_ids is None else item.type_ids
        np.testing.assert_array_equal(block.type_ids[row, real[row]], expected)


def test_a_model_without_segments_is_given_none() -> None:
    assert pad(items_of([3, 5]), 0, with_type_ids=False).type_ids is None
