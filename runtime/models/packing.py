"""Many sequences as one flat row without padding, and the way back.

Sequences are sorted by length, longest first, so that equal lengths stand side by side: on CPU each such run is one
attention call over a contiguous slice, with no gather and no waste. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runtime.work import Prepared

BUCKET_WASTE = 1.10
"""Padded groups of the bucket path may hold at most this many times their real tokens."""

Ints: TypeAlias = NDArray[np.int32]


class Run(NamedTuple):
    """As many sequences of `length` tokens each, side by side from token `start` of the flat row."""

    start: int
    sequences: int
    length: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch as one flat row; all arrays int32."""

    order: NDArray[np.intp]
    """`(items,)` index in the batch of each packed sequence."""
    input_ids: Ints
    """`(tokens,)`"""
    position_ids: Ints
    """`(tokens,)` counting from the model's position offset, restarting with each sequence."""
    sequence_ids: Ints
    """`(tokens,)` which packed sequence a token belongs to."""
    boundaries: Ints
    """`(items + 1,)` cumulative lengths (`cu_seqlens`)."""
    type_ids: Ints | None
    runs: tuple[Run, ...]


def pack(items: Sequence[Prepared], position_offset: int, with_type_ids: bool) -> Packed:
    """Lay `items` out as one flat row, longest first (ties keep their order)."""
    lengths = np.fromiter((item.tokens for item in items), dtype=np.int32, count=len(items))
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    boundaries = np.zeros(len(items) + 1, dtype=np.int32)
    np.cumsum(sorted_lengths, out=boundaries[1:])
    starts = np.repeat(boundaries[:-1], sorted_lengths)
    return Packed(
        order=order,
        input_ids=np.concatenate([items[i].token_ids for i in order]),
        position_ids=np.arange(boundaries[-1], dtype=np.int32) - starts + np.int32(position_offset),
        sequence_ids=np.repeat(np.arange(len(items), dtype=np.int32), sorted_lengths),
        boundaries=boundaries,
        type_ids=_flat_type_ids(items, order) if with_type_ids else None,
        runs=equal_length_runs(sorted_lengths),
    )


def equal_length_runs(sorted_lengths: Ints) -> tuple[Run, ...]:
    """Group neighbours of the same length. `sorted_lengths`: any order in which equals are adjacent."""
    edges = np.flatnonzero(np.diff(sorted_lengths)) + 1
    firsts = np.concatenate(([0], edges))
    counts = np.diff(np.concatenate((firsts, [len(sorted_lengths)])))
    lengths = sorted_lengths[firsts]
    starts = np.concatenate(([0], np.cumsum(counts * lengths)[:-1]))
    return tuple(Run(int(s), int(c), int(n)) for s, c, n in zip(starts, counts, lengths, strict=True))


def _flat_type_ids(items: Sequence[Prepared], order: NDArray[np.intp]) -> Ints:
    def of(item: Prepared) -> Ints:
        return np.zeros(item.tokens, dtype=np.int32) if item.type_ids is None else item.type_ids

    return np.concatenate([of(items[i]) for i in order])


def buckets(items: Sequence[Prepared], waste: float = BUCKET_WASTE) -> list[list[int]]:
    """Split a batch into groups of similar length, longest first.

    Returns lists of indices into `items`; in each group `count * longest <= waste * sum of lengths`.
    """
    order = sorted(range(len(items)), key=lambda i: -items[i].tokens)
    groups: list[list[int]] = []
    real = 0
    for i in order:
        tokens = items[i].tokens
        longest = items[groups[-1][0]].tokens if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= waste * (real + tokens):
            groups[-1].append(i)
            real += tokens
        else:
            groups.append([i])
            real = tokens
    return groups


@dataclass(frozen=True, slots=True)
class Padded:
    """A group as a rectangle `(items, longest)`, padded on the right."""

    input_ids: Ints
    attention_mask: Ints
    type_ids: Ints | None


def pad(items: Sequence[Prepared], pad_id: int, with_type_ids: bool) -> Padded:
    """Lay `items` out as a rectangle."""
    shape = (len(items), max(item.tokens for item in items))
    input_ids = np.full(shape, pad_id, dtype=np.int32)
    mask = np.zeros(shape, dtype=np.int32)
    types = np.zeros(shape, dtype=np.int32) if with_type_ids else None
    for row, item in enumerate(items):
        input_ids[row, : item.tokens] = item.token_ids
        mask[row, : item.tokens] = 1
        if types is not None and item.type_ids is not None:
            types[row, : item.tokens] = item.type_ids
    return Padded(input_ids, mask, types)
