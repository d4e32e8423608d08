"""CUDA graphs for small packed batches: one launch in place of some hundred, at fixed sizes of the flat row.

Python needs 1 to 3 ms to launch a small encoder's kernels, many times what the GPU needs to run them. A graph replays
them in one call, but its shapes are fixed: the row is filled up to the next size with dummy sequences, whose vectors
are dropped. Rows beyond the largest size run eagerly, since there the GPU's work hides the launching.
Not run on a GPU by us yet; `scripts/gpu_check` compares it with the eager path and times both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.devices.cuda import CudaDevice
from runtime.models.attention import AttentionPlan
from runtime.models.packing import Packed

log = logging.getLogger(__name__)

ROW_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096)
MAX_SEQUENCES = 128
"""Slots for sequences in a graph, dummies included."""
WARM_UPS = 2

Features = dict[str, torch.Tensor]
Forward = Callable[[Features, AttentionPlan], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """What filling a row up needs to know of its model."""

    with_type_ids: bool
    position_offset: int
    max_tokens: int
    """Dummy sequences are no longer than this, so that their positions exist."""


@dataclass(slots=True)
class _Captured:
    flat: torch.Tensor
    """Every input of the graph back to back, int32, so that one copy fills them all."""
    graph: torch.cuda.CUDAGraph
    vectors: torch.Tensor


class RowGraphs:
    """Captured forwards of one model, by row size."""

    def __init__(self, device: CudaDevice, forward: Forward, shape: RowShape) -> None:
        """Capture every size; seconds. Raises what torch raises where the model can't be captured."""
        self._device = device
        self._shape = shape
        before = torch.cuda.memory_reserved()
        self._pool = torch.cuda.graph_pool_handle()
        self._by_tokens = {tokens: self._capture(forward, tokens) for tokens in reversed(ROW_TOKENS)}
        self.held_bytes = max(torch.cuda.memory_reserved() - before, 0)

    def run(self, row: Packed) -> torch.Tensor | None:
        """Vectors `(items, dim)` of `row`; None when no graph holds it. Valid until the next run."""
        arrays = fill_up(row, self._shape)
        if arrays is None:
            return None
        captured = self._by_tokens[arrays["input_ids"].size]
        self._device.upload_into(captured.flat, arrays)
        captured.graph.replay()
        return captured.vectors[: len(row.order)]

    def _capture(self, forward: Forward, tokens: int) -> _Captured:
        names = ["input_ids", "position_ids", "seq_idx", *(["token_type_ids"] if self._shape.with_type_ids else [])]
        flat = torch.zeros(tokens * len(names) + MAX_SEQUENCES + 1, dtype=torch.int32, device=self._device.name)
        features = {name: flat[i * tokens : (i + 1) * tokens].view(1, tokens) for i, name in enumerate(names)}
        boundaries = flat[tokens * len(names) :]
        boundaries[1:] = tokens
        features["position_ids"] += self._shape.position_offset
        features["cu_seq_lens_q"] = boundaries
        plan = AttentionPlan(torch.empty((0, 3), dtype=torch.int64), boundaries, tokens)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                forward(dict(features), plan)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other models' lanes may allocate while this one is captured.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            vectors = forward(dict(features), plan)
        return _Captured(flat, graph, vectors)


def fill_up(row: Packed, shape: RowShape) -> dict[str, NDArray[np.int32]] | None:
    """`row` at the next graph size, dummy sequences at its end; None when it is too long or has too many sequences.

    Keys in the order in which a graph's flat buffer holds them. Slots that stay empty repeat the last boundary:
    sequences of no tokens.
    """
    used = row.input_ids.size
    tokens = row_tokens(used)
    if tokens is None:
        return None
    dummies = _dummy_lengths(tokens - used, shape.max_tokens)
    if len(row.order) + len(dummies) > MAX_SEQUENCES:
        return None
    lengths = np.array(dummies, dtype=np.int32)
    ids = np.arange(len(row.order), len(row.order) + len(dummies), dtype=np.int32)
    positions = [np.arange(length, dtype=np.int32) + np.int32(shape.position_offset) for length in dummies]
    boundaries = np.full(MAX_SEQUENCES + 1, tokens, dtype=np.int32)
    boundaries[: row.boundaries.size] = row.boundaries
    boundaries[row.boundaries.size : row.boundaries.size + lengths.size] = used + np.cumsum(lengths)
    arrays = {
        "input_ids": np.concatenate([row.input_ids, np.zeros(tokens - used, dtype=np.int32)]),
        "position_ids": np.concatenate([row.position_ids, *positions]),
        "seq_idx": np.concatenate([row.sequence_ids, np.repeat(ids, lengths)]),
    }
    if row.type_ids is not None:
        arrays["token_type_ids"] = np.concatenate([row.type_ids, np.zeros(tokens - used, dtype=np.int32)])
    arrays["cu_seq_lens_q"] = boundaries
    return arrays


def row_tokens(used: int) -> int | None:
    """Tokens of the smallest graph that holds so many; None: none does."""
    return next((size for size in ROW_TOKENS if size >= used), None)


def _dummy_lengths(tokens: int, longest: int) -> list[int]:
    full, rest = divmod(tokens, longest)
    return [longest] * full + ([rest] if rest else [])
