"""Cohere's and Jina's dialect: `POST /v1/rerank` and `/v2/rerank`.

Answer: Cohere's `results` and `meta`, Jina's and vLLM's `usage`, Infinity's `object` and `created`, all at once.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any

from runtime.api.problems import Dialect
from runtime.api.rerank import Ranking, RerankForm

DOCUMENTS_PER_SEARCH_UNIT = 100
"""Cohere's unit of billing: one query with up to so many documents."""


def ranked_results(ranking: Ranking, version: str) -> dict[str, Any]:
    """The best first; a document is there as `{"text"}` where it was asked for, else its key is absent."""
    documents = ranking.documents
    results = [
        scored_result(ranking, index) | ({"document": {"text": documents[index]}} if ranking.return_documents else {})
        for index in ranking.best
    ]
    return result_list(str(uuid.uuid4()), ranking, results, version)


def scored_result(ranking: Ranking, index: int) -> dict[str, Any]:
    """One document's place and score."""
    return {"index": index, "relevance_score": ranking.scores[index]}


def result_list(id: str, ranking: Ranking, results: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """The results in everybody's envelope."""
    return enveloped(id, ranking.model, {"results": results}, ranking.tokens, len(ranking.documents), version)


def enveloped(
    id: str, model: str, content: dict[str, Any], tokens: int, documents: int, version: str
) -> dict[str, Any]:
    """The content, `results` or several lists of them, with what it is and what it cost."""
    units = -(-documents // DOCUMENTS_PER_SEARCH_UNIT)
    return {
        "id": id,
        "object": "rerank",
        "created": int(time.time()),
        "model": model,
        **content,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {
            "api_version": {"version": version},
            "billed_units": {"search_units": units, "input_tokens": tokens},
            "tokens": {"input_tokens": tokens, "output_tokens": 0},
        },
    }


RERANK_V1 = RerankForm(Dialect.COHERE, partial(ranked_results, version="1"))
RERANK_V2 = RerankForm(Dialect.COHERE, partial(ranked_results, version="2"))
