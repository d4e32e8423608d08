"""A query and documents whose ranks can be worked out by hand, and how they are asked for."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

MODEL = "owner/ranker"
COHERE_PATHS = ("/v1/rerank", "/v2/rerank", "/v1/v1/rerank", "/v2/v1/rerank", "/v1/v2/rerank", "/v2/v2/rerank")
PATHS = ("/rerank", *COHERE_PATHS)

QUERY = "red green blue"
DOCUMENTS = ["red", "none", "red green blue", "green red"]
LOGITS = [0.5, -0.5, 2.5, 1.5]
"""The words shared with the query, minus a half."""
ORDER = [2, 3, 0, 1]


def ask(client: TestClient, path: str, **body: Any) -> Any:
    """The answer to `body` about QUERY."""
    response = client.post(path, json={"query": QUERY, **body})
    assert response.status_code == 200, response.text
    return response.json()


def indices(results: list[dict[str, Any]]) -> list[int]:
    """The documents' indices, in the order of the answer."""
    return [result["index"] for result in results]
