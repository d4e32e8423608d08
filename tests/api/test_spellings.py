"""An error is about the name that the caller has for a field."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.errors import InvalidDimensions, RequestError, UnknownPrompt
from tests.fakes import FakeEngine

VECTORS: dict[str, dict[str, Any]] = {"/v1/embeddings": {"input": "a"}, "/v2/embed": {"texts": ["a"]}}
SCORES: dict[str, dict[str, Any]] = {
    "/rerank": {"model": "owner/ranker", "query": "a", "documents": ["b"]},
    "/classify": {"model": "owner/moods", "input": ["a"]},
}
PROMPT = UnknownPrompt("this model has no such prompt; its prompts are: none")
WIDTH = InvalidDimensions("dimensions must be between 1 and 4 for this model")


def refusal(client: TestClient, engine: FakeEngine, failure: RequestError, path: str, **body: Any) -> tuple[str, str]:
    """The field at fault and the message of the answer."""
    engine.failure = failure
    error = client.post(path, json=body).json()["error"]
    return error["param"], error["message"]


@pytest.mark.parametrize("path", VECTORS)
def test_vectors(path: str, client: TestClient, engine: FakeEngine) -> None:
    def refused(failure: RequestError, **fields: Any) -> tuple[str, str]:
        return refusal(client, engine, failure, path, **VECTORS[path], **fields)

    assert refused(PROMPT, input_type="x") == ("input_type", PROMPT.message)
    assert refused(PROMPT, prompt_name="x") == ("prompt_name", PROMPT.message)
    assert refused(PROMPT, prompt_name="x", input_type="y") == ("prompt_name", PROMPT.message)
    said = "output_dimension must be between 1 and 4 for this model"
    assert refused(WIDTH, output_dimension=9) == ("output_dimension", said)
    assert refused(WIDTH, dimensions=9) == ("dimensions", WIDTH.message)


@pytest.mark.parametrize("path", SCORES)
@pytest.mark.parametrize("name", ["input_type", "prompt_name"])
def test_scores(path: str, name: str, ranker: TestClient, ranking_engine: FakeEngine) -> None:
    body = {**SCORES[path], name: "x"}
    assert refusal(ranker, ranking_engine, PROMPT, path, **body) == (name, PROMPT.message)
