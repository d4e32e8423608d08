"""MaxSim on the device: how well a document's multi-vector answers a query's. No weights, no padding.

The score is the sum over the query's rows of the largest dot product with any of the document's rows, in float32
(ColBERT, Khattab & Zaharia 2020). Documents of equal length share one reduction; none is padded, so that no row that
isn't there can be the largest. A document without rows (of a model that skips punctuation) comes after all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.devices.base import Device, Download
from runtime.errors import UnsupportedCapability
from runtime.models.base import Flight, Model, ModelFacts
from runtime.models.packing import Run, equal_length_runs
from runtime.work import MAXSIM_ROWS, Input, Job, MatrixPair, Prepared, Row, rough_tokens

QUERY_ROWS_AT_ONCE = 64
"""So that the table of dot products stays small, however long a query is."""
USUAL_WIDTH = 128
NO_ROWS_SCORE = -1e9
"""Of a document without rows, as sentence-transformers has it."""
EXAMPLE_ROWS = (32, 512)
"""Of the query and the document that the device is timed with."""
BYTES_PER_TOKEN = (2 * USUAL_WIDTH + 2 * QUERY_ROWS_AT_ONCE) * 4
"""Workspace of one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMatrices(Prepared):
    """Two multi-vectors; what they cost is the document's rows, and their token ids are as many zeros."""

    pair: MatrixPair


class MaxSim(Model):
    """What every engine has, on its device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.facts = ModelFacts(
            dimensions=None,
            max_tokens=MAXSIM_ROWS,
            dtype="float32",
            execution="packed",
            execution_reason="no weights: each document is reduced alone",
            prompts=(),
            weight_bytes=0,
            # A row, its copy in the batch, and its products with the query's rows.
            activation_bytes_per_token=BYTES_PER_TOKEN,
        )

    def cost(self, item: Input) -> int:
        """The document's rows exactly."""
        return rough_tokens(item)

    def example(self) -> Input:
        """A short query and half a page."""
        query, document = (np.ones((rows, USUAL_WIDTH), dtype=np.float32) for rows in EXAMPLE_ROWS)
        return MatrixPair(query, document)

    def prepare(self, job: Job) -> list[Prepared]:
        """The pairs as they are. Their shapes were checked where they came in."""
        pairs = [item for item in job.inputs if isinstance(item, MatrixPair)]
        if len(pairs) != len(job.inputs):
            raise UnsupportedCapability("MaxSim compares multi-vectors only", param="documents")
        return [PreparedMatrices(token_ids=no_ids(len(pair.document)), pair=pair) for pair in pairs]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Score one batch: `(1,)` each."""
        pairs = [item.pair for item in items if isinstance(item, PreparedMatrices)]
        assert len(pairs) == len(items)
        by_query: dict[int, list[int]] = {}
        for index, pair in enumerate(pairs):
            by_query.setdefault(id(pair.query), []).append(index)
        order: list[int] = []
        scores = []
        with torch.inference_mode():
            for group in by_query.values():
                group.sort(key=lambda index: -len(pairs[index].document))
                order += group
                scores.append(self._scores(pairs[group[0]].query, [pairs[index].document for index in group]))
        return ScoreFlight(self._device.download(scores), order)

    def close(self) -> None:
        """Nothing is held."""

    def _scores(self, query: NDArray[np.float32], documents: Sequence[NDArray[np.float32]]) -> torch.Tensor:
        """`(documents,)` scores of one query. `documents`: the longest first."""
        # Floats travel as the bits of integers, as all uploads do.
        arrays = {"query": query.view(np.int32), "rows": np.concatenate(documents).view(np.int32)}
        landed = {name: tensor.view(torch.float32) for name, tensor in self._device.upload(arrays).items()}
        runs = equal_length_runs(np.array([len(document) for document in documents], dtype=np.int32))
        columns = landed["rows"].t()
        parts = [best_sums(rows @ columns, runs) for rows in landed["query"].split(QUERY_ROWS_AT_ONCE)]
        scores = torch.stack(parts).sum(0)
        scores[sum(len(document) > 0 for document in documents) :] = NO_ROWS_SCORE
        return scores


class ScoreFlight(Flight):
    """Scores of one batch on their way to the host."""

    def __init__(self, download: Download, order: Sequence[int]) -> None:
        """`order`: for each score in the download, its item's index in the batch."""
        self._download = download
        self._order = order

    def land(self) -> list[Row]:
        """`(1,)` of each item."""
        scores = self._download.wait()
        rows: list[Row] = [scores] * len(self._order)
        for place, item in enumerate(self._order):
            rows[item] = scores[place : place + 1].copy()
        return rows


def best_sums(products: torch.Tensor, runs: Sequence[Run]) -> torch.Tensor:
    """`(documents,)`: for each document, the sum over query rows of its largest product; 0 where it has no row.

    `products`: `(n, rows)`.
    """
    sums = []
    for run in runs:
        block = products[:, run.start : run.start + run.sequences * run.length]
        if run.length:
            sums.append(block.unflatten(1, (run.sequences, run.length)).amax(2).sum(0))
        else:
            sums.append(products.new_zeros(run.sequences))
    return torch.cat(sums)


def no_ids(count: int) -> NDArray[np.int32]:
    """`(count,)` zeros that share one number's memory."""
    return np.broadcast_to(np.int32(0), (count,))
