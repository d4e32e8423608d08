"""Which documents stand beside the right one: near neighbours by the bi-encoder, kept in the cache."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from scripts.demo_reranker.corpus import Pair, digest

NEIGHBOURS = 30
NEAR_NEGATIVES = 2
RANDOM_NEGATIVES = 1
GROUP_SIZE = 1 + NEAR_NEGATIVES + RANDOM_NEGATIVES

Vectors = NDArray[np.float32]
"""Unit vectors, one a row."""


class Ranking(NamedTuple):
    """A query and its candidates, in the bi-encoder's order; `right` is the position of the one that answers it."""

    query: str
    documents: list[str]
    right: int


class Encoder(Protocol):
    """Makes unit vectors of texts."""

    def encode(self, texts: Sequence[str], max_tokens: int) -> Vectors: ...


class BiEncoder:
    """all-MiniLM-L6-v2 as it is served; what it has once computed is read from `cache`."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._model = SentenceTransformer(str(folder), device="cpu")
        self._cache = cache

    def encode(self, texts: Sequence[str], max_tokens: int) -> Vectors:
        """The unit vectors of the texts, each cut at `max_tokens`."""
        path = self._cache / f"{digest((str(max_tokens), *texts))}.npy"
        if not path.exists():
            self._model.max_seq_length = max_tokens
            vectors = self._model.encode(list(texts), show_progress_bar=True)
            partial = path.with_suffix(".part.npy")
            np.save(partial, vectors)
            partial.rename(path)
        return np.asarray(np.load(path), dtype=np.float32)


def nearest(queries: Vectors, documents: Vectors, count: int) -> NDArray[np.int64]:
    """For each query the `count` nearest documents, nearest first: (queries, count)."""
    order = np.argsort(-(queries @ documents.T), axis=1, kind="stable")
    return order[:, :count].astype(np.int64)


def training_groups(pairs: Sequence[Pair], encoder: Encoder, max_tokens: int, seed: int) -> list[list[str]]:
    """For each query its documents: the right one, two of its near neighbours, and any other."""
    draw = random.Random(seed)
    queries = encoder.encode([pair.query for pair in pairs], max_tokens)
    documents = encoder.encode([pair.document for pair in pairs], max_tokens)
    groups = []
    for own, near in enumerate(nearest(queries, documents, NEIGHBOURS).tolist()):
        wrong = draw.sample([each for each in near if each != own], NEAR_NEGATIVES)
        others = draw.sample(range(len(pairs)), RANDOM_NEGATIVES + GROUP_SIZE)
        wrong += [each for each in others if each not in (own, *wrong)][:RANDOM_NEGATIVES]
        groups.append([pairs[each].document for each in (own, *wrong)])
    return groups


def rankings(pairs: Sequence[Pair], queries: int, encoder: Encoder, candidates: int, max_tokens: int) -> list[Ranking]:
    """For each of the first `queries` its nearest documents among all; the right one takes the last place if absent."""
    asked = encoder.encode([pair.query for pair in pairs[:queries]], max_tokens)
    documents = encoder.encode([pair.document for pair in pairs], max_tokens)
    found = []
    for own, near in enumerate(nearest(asked, documents, candidates).tolist()):
        if own not in near:
            near[-1] = own
        found.append(Ranking(pairs[own].query, [pairs[each].document for each in near], near.index(own)))
    return found
