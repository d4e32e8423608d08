"""Voyage's dialect of `POST /v1/rerank`: `top_k` and `truncation` in, `data` out."""

from __future__ import annotations

from typing import Any

from runtime.api.cohere import scored_result
from runtime.api.problems import Dialect
from runtime.api.rerank import Ranking, RerankForm


def ranked_data(ranking: Ranking) -> dict[str, Any]:
    """The best first; documents are plain strings, where they were asked for."""
    documents = ranking.documents
    data = [
        scored_result(ranking, index) | ({"document": documents[index]} if ranking.return_documents else {})
        for index in ranking.best
    ]
    return {"object": "list", "data": data, "model": ranking.model, "usage": {"total_tokens": ranking.tokens}}


RERANK = RerankForm(Dialect.VOYAGE, ranked_data)
