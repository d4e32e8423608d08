"""From a model's logits to scores, and the order of what was scored. Knows numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from runtime.work import Activation, Row

Logits = NDArray[np.float64]
Scores = NDArray[np.float64]


def stacked(rows: Sequence[Row]) -> Logits:
    """Rows of one length as `(rows, labels)` in float64, which holds float32 exactly."""
    return np.stack(rows).astype(np.float64)


def activated(logits: Logits, activation: Activation) -> Scores:
    """Scores of `(rows, labels)` logits, in float64 because float32 calls every logit above 17 exactly 1.

    Depends on each row alone: a document's score is the same whatever it is scored beside.
    """
    if activation == "sigmoid":
        # Either branch's exponential is at most 1, so neither overflows.
        small = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1.0, small) / (1.0 + small)
    if activation == "softmax":
        powers: Scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        powers /= powers.sum(axis=-1, keepdims=True)
        return powers
    return logits


def best_first(values: Logits) -> list[int]:
    """Indices of `(n,)` values from the highest to the lowest; equal ones keep their order."""
    order: list[int] = np.argsort(-values, kind="stable").tolist()
    return order
