"""POST /score in vLLM's shapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.api.scoring_schemas import Candidate
from runtime.work import Pair, Task
from tests.api.ranking import DOCUMENTS, LOGITS, MODEL, QUERY
from tests.fakes import FakeEngine

PATHS = ("/score", "/v1/score")
NAMES = [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]


def score(client: TestClient, path: str = "/score", **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def values(answer: dict[str, Any]) -> list[float]:
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return [item["score"] for item in answer["data"]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("queries", "documents"), NAMES)
def test_one_query_with_many_documents_in_their_order(
    ranker: TestClient, path: str, queries: str, documents: str
) -> None:
    answer = score(ranker, path, model=MODEL, **{queries: QUERY, documents: DOCUMENTS})
    tokens = sum(3 + len(document.split()) + 3 for document in DOCUMENTS)
    assert answer.pop("id").startswith("score-")
    assert isinstance(answer.pop("created"), int)
    scores = [pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-15) for logit in LOGITS]
    assert answer == {
        "object": "list",
        "model": MODEL,
        "data": [{"index": index, "object": "score", "score": value} for index, value in enumerate(scores)],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def test_one_to_one_and_many_to_many(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    assert len(values(score(ranker, queries="a", documents="b"))) == 1
    score(ranker, queries=["a"], documents=["b", "c"])
    score(ranker, queries=["a", "b"], documents=["c", {"content": [{"type": "text", "text": "d"}]}])
    assert [job.inputs for job in ranking_engine.jobs] == [
        [Pair("a", "b")],
        [Pair("a", "b"), Pair("a", "c")],
        [Pair("a", "c"), Pair("b", "d")],
    ]


@pytest.mark.parametrize("raw", [{"use_activation": False}, {"raw_scores": True}])
def test_logits_on_request(ranker: TestClient, raw: dict[str, Any]) -> None:
    assert values(score(ranker, queries=QUERY, documents=DOCUMENTS, **raw)) == LOGITS


def test_an_embedder_scores_by_cosine_and_embeds_each_text_once(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    answer = score(ranker, model="owner/letters", queries=["a", "b b", "a"], documents=["a", "a", "b b"])
    assert ranking_engine.jobs[0].inputs == ["a", "b b"]
    one, two, three = values(answer)
    assert one == pytest.approx(1.0)
    assert two == three < 1
    assert answer["usage"]["total_tokens"] == 7


def test_the_vector_of_no_length_is_near_nothing(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    from runtime.api.scoring import cosine
    from tests.fakes import vector

    assert cosine([Candidate("a", "b")], [vector("a") * 0, vector("b")]).tolist() == [0.0]


def test_pairs_and_their_price_are_metered(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    headers = ranker.post("/score", json={"queries": "a", "documents": ["b", "c"]}).headers
    assert headers["x-rerank-candidates"] == "2"
    assert headers["x-cost-usd"] == "0.0000125000"
    assert ranking_engine.metering.candidates == [(MODEL, "scored", 2)]
    assert ranking_engine.metering.observations[0].surface == "vllm"
    assert ranking_engine.jobs[0].task is Task.RERANK


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"queries": ["a", "b"], "documents": ["c"]}, "invalid_request", "queries"),
        ({"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "invalid_request", "queries"),
        ({"queries": [], "documents": ["c"]}, "empty_input", "queries"),
        ({"queries": "a", "documents": []}, "empty_input", "documents"),
        ({"queries": "a", "documents": ["b"] * 1001}, "too_many_documents", "documents"),
        ({"text_1": "a", "text_2": ["b"] * 1001}, "too_many_documents", "text_2"),
        ({"text_1": "a", "text_2": ["b", 3]}, "invalid_request", "text_2"),
        ({"data_1": ["a", 3], "data_2": ["b", "c"]}, "invalid_request", "data_1"),
        ({"text_1": "a", "items": []}, "empty_input", "items"),
        ({"queries": 5, "documents": ["b"]}, "invalid_request", "queries"),
        ({"queries": "a", "documents": [["b"]]}, "invalid_request", "documents"),
        ({"documents": ["b"]}, "invalid_request", "queries"),
        ({"queries": "a"}, "invalid_request", "documents"),
        ({"queries": "a", "documents": "b", "model": "owner/moods"}, "unsupported_capability", "model"),
    ],
    ids=[
        "2:1",
        "2:3",
        "no-queries",
        "no-documents",
        "1001",
        "1001-vllm",
        "text_2",
        "data_1",
        "no-items",
        "number",
        "lists",
        "missing-1",
        "missing-2",
        "classifier",
    ],
)
def test_bad_bodies_are_400(ranker: TestClient, path: str, body: dict[str, Any], code: str, param: str) -> None:
    response = ranker.post(path, json=body)
    assert response.status_code == 400, response.text
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (code, param)
    assert len(response.content) < 2048
