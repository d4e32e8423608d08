"""Fewer rows in a multi-vector: rows that say nearly the same become their mean.

Hierarchical clustering (Ward) of the rows by their similarity to all others, as in "Reducing the Footprint of
Multi-Vector Retrieval with Minimal Performance Impact via Token Pooling" (Clavié et al., 2024) and colpali-engine's
`HierarchicalTokenPooler`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from runtime.errors import InvalidRequest
from runtime.work import Row

MAX_ROWS: Final = 2048
"""The work grows with the cube of the rows; these take seconds."""


def pooled(row: Row, factor: int) -> Row:
    """`(tokens, dim)` -> `(at most tokens // factor, dim)` of unit length. Raises InvalidRequest beyond MAX_ROWS."""
    tokens = row.shape[0]
    if factor == 1 or tokens < 2:
        return row
    if tokens > MAX_ROWS:
        raise InvalidRequest(f"pool_factor takes multi-vectors of at most {MAX_ROWS} rows", param="pool_factor")
    clusters = max(tokens // factor, 1)
    distances = 1.0 - row @ row.T
    labels = fcluster(linkage(distances, metric="euclidean", method="ward"), t=clusters, criterion="maxclust")
    means = np.stack([row[labels == label].mean(axis=0) for label in np.unique(labels)])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    unit: Row = (means / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
    return unit
