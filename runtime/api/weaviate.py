"""Weaviate's dialect of `POST /rerank`, as its module reranker-transformers speaks it: `property` is in the body."""

from __future__ import annotations

from typing import Any

from runtime.api.problems import Dialect
from runtime.api.rerank import Ranking, RerankForm


def scored_documents(ranking: Ranking) -> dict[str, Any]:
    """Every document with its score, in the order in which they came."""
    scored = zip(ranking.documents, ranking.scores, strict=True)
    return {"query": ranking.query, "scores": [{"document": document, "score": score} for document, score in scored]}


RERANK = RerankForm(Dialect.WEAVIATE, scored_documents)
