"""Whatever the dialect: which model ranks, by what, and what that costs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.registry import ServerSettings
from runtime.work import Head, Pair, Task
from tests.api.ranking import DOCUMENTS, LOGITS, MODEL, ORDER, QUERY, ask, indices
from tests.fakes import FakeEngine, spec

# -- scores and order -------------------------------------------------------------------------------------------


def test_ties_keep_the_order_of_the_documents_in_every_form(ranker: TestClient) -> None:
    documents = ["x", "red", "y", "green", "z"]
    order = [1, 3, 0, 2, 4]
    assert indices(ask(ranker, "/v1/rerank", documents=documents)["results"]) == order
    assert indices(ask(ranker, "/rerank", documents=documents, top_n=3)["results"]) == order[:3]
    assert indices(ask(ranker, "/rerank", documents=documents, top_k=4)["data"]) == order[:4]
    assert indices(ask(ranker, "/rerank", texts=documents)) == order


def test_order_is_that_of_the_logits_where_scores_are_all_one(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    logits = {str(index): 40.0 + (index * 7) % 20 for index in range(20)}
    ranking_engine.logits[Task.RERANK] = lambda pair: [logits[pair.document]] if isinstance(pair, Pair) else []
    order = sorted(range(20), key=lambda index: -logits[str(index)])
    results = ask(ranker, "/v1/rerank", documents=list(logits))["results"]
    assert indices(results) == order
    assert {result["relevance_score"] for result in results} == {1.0}
    raw = ask(ranker, "/v1/rerank", documents=list(logits), raw_scores=True)["results"]
    assert indices(raw) == order
    assert len({result["relevance_score"] for result in raw}) == 20


def test_scores_that_float32_can_t_tell_apart_differ(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    logits = {str(index): 17.0 + index for index in range(19)}
    ranking_engine.logits[Task.RERANK] = lambda pair: [logits[pair.document]] if isinstance(pair, Pair) else []
    results = ask(ranker, "/v1/rerank", documents=list(logits))["results"]
    assert len({result["relevance_score"] for result in results}) == 19


@pytest.mark.parametrize("raw", [{"raw_scores": True}, {"use_activation": False}, {"raw_scores": "true"}])
def test_raw_scores_are_logits(ranker: TestClient, raw: dict[str, Any]) -> None:
    results = ask(ranker, "/rerank", documents=DOCUMENTS, **raw)["results"]
    assert [result["relevance_score"] for result in results] == [LOGITS[index] for index in ORDER]


def test_a_score_is_the_same_beside_any_others(ranker: TestClient) -> None:
    [alone] = ask(ranker, "/v1/rerank", documents=["red"])["results"]
    together = ask(ranker, "/v1/rerank", documents=DOCUMENTS * 50)["results"]
    assert {result["relevance_score"] for result in together if result["index"] % 4 == 0} == {alone["relevance_score"]}


def test_a_model_s_own_activation_is_used(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    ranking_engine.heads[Task.RERANK] = Head(labels=("score",), activation="identity")
    results = ask(ranker, "/v1/rerank", documents=DOCUMENTS)["results"]
    assert [result["relevance_score"] for result in results] == [LOGITS[index] for index in ORDER]


# -- models -----------------------------------------------------------------------------------------------------


def test_a_request_that_names_no_model_means_the_reranker(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    ask(ranker, "/rerank", texts=["a"])
    assert ranking_engine.jobs[0].model == MODEL


@pytest.mark.parametrize("path", ["/rerank?model=b", "/v1/rerank?model=b"])
def test_a_model_is_named_in_the_body_else_in_the_query_else_in_a_header(path: str) -> None:
    engine = FakeEngine(*(spec(name, task="rerank") for name in "abc"))
    with TestClient(build_app(engine)) as client:
        client.post(path, json={"query": "q", "texts": ["t"], "model": "a"}, headers={"x-model-id": "c"})
        client.post(path, json={"query": "q", "texts": ["t"]}, headers={"x-model-id": "c"})
        client.post("/rerank", json={"query": "q", "texts": ["t"]}, headers={"x-model-id": "c"})
        assert client.post("/rerank", json={"query": "q", "texts": ["t"]}).status_code == 400
    assert [job.model for job in engine.jobs] == ["a", "b", "c"]


def test_an_embedder_that_is_named_scores_by_cosine(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    documents = ["red", QUERY, "red", "a b c d e f"]
    results = ask(ranker, "/v1/rerank", documents=documents, model="owner/letters")["results"]
    [job] = ranking_engine.jobs
    assert (job.task, job.inputs) == (Task.EMBED, [QUERY, "red", "a b c d e f"])
    assert results[0] == {"index": 1, "relevance_score": pytest.approx(1.0)}
    by_index = {result["index"]: result["relevance_score"] for result in results}
    assert by_index[0] == by_index[2]
    # (14, 2, 1/3, -1) and (3, 0, 1/3, -1)
    dot, lengths = 14 * 3 + 1 / 9 + 1, math.sqrt((196 + 4 + 1 / 9 + 1) * (9 + 1 / 9 + 1))
    assert by_index[0] == pytest.approx(dot / lengths, abs=1e-7)


def test_an_embedder_takes_no_limits_of_halves(ranker: TestClient) -> None:
    body = {"query": "q", "documents": ["a"], "model": "owner/letters", "max_tokens_per_doc": 5}
    response = ranker.post("/v2/rerank", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens_per_doc")


@pytest.mark.parametrize(("field", "status"), [("texts", 424), ("documents", 400)])
def test_a_classifier_can_t_rank(ranker: TestClient, field: str, status: int) -> None:
    response = ranker.post("/rerank?model=owner/moods", json={"query": "q", field: ["a"]})
    assert response.status_code == status


def test_a_reranker_of_several_labels_can_t_rank(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    ranking_engine.logits[Task.RERANK] = lambda pair: [1.0, 2.0]
    response = ranker.post("/rerank", json={"query": "q", "texts": ["a"]})
    assert response.status_code == 424
    assert response.json() == {
        "error": "this model has 2 labels: it classifies, and can't rank",
        "error_type": "Backend",
    }


def test_without_a_reranker_nothing_is_guessed() -> None:
    with TestClient(build_app(FakeEngine())) as client:
        assert client.post("/rerank", json={"query": "q", "texts": ["a"]}).status_code == 424
        assert client.post("/v1/rerank", json={"query": "q", "documents": ["a"]}).status_code == 400


# -- metering ---------------------------------------------------------------------------------------------------


def test_candidates_device_time_and_price_are_in_the_headers(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    ranking_engine.truncated_inputs = 2
    headers = ranker.post("/v1/rerank", json={"query": "q", "documents": DOCUMENTS}).headers
    assert (headers["x-rerank-candidates"], headers["x-truncated-inputs"]) == ("4", "2")
    assert (headers["x-device-ms"], headers["x-cost-usd"]) == ("12.500", "0.0000125000")
    assert headers["x-compute-characters"] == str(sum(1 + len(document) for document in DOCUMENTS))
    assert ranking_engine.metering.candidates == [(MODEL, "scored", 4), (MODEL, "truncated", 2)]
    [(account, device_ms, cost_usd)] = ranking_engine.metering.costs
    assert (account, device_ms) == ((MODEL, "rerank", "online", "default"), 12.5)
    assert cost_usd == pytest.approx(12.5e-6)


def test_no_price_no_dollars() -> None:
    engine = FakeEngine(spec(task="rerank"))
    with TestClient(build_app(engine)) as client:
        headers = client.post("/rerank", json={"query": "q", "texts": ["a"]}).headers
    assert headers["x-device-ms"] == "12.500"
    assert "x-cost-usd" not in headers
    assert engine.metering.costs == [(("owner/letters", "rerank", "online", "default"), 12.5, None)]


def test_what_is_over_the_cap_is_counted_as_capped(ranking_engine: FakeEngine) -> None:
    engine = FakeEngine(*ranking_engine.specs, settings=ServerSettings(port=0, max_documents=3))
    with TestClient(build_app(engine)) as client:
        response = client.post("/v1/rerank", json={"query": "q", "documents": DOCUMENTS})
        assert response.headers["x-rerank-candidates"] == "4"
        client.post("/v1/rerank", json={"query": "q", "documents": [5]})
    assert engine.metering.candidates == [(MODEL, "capped", 4)]
    assert engine.metering.costs == []
    assert engine.jobs == []


def test_requests_are_counted_under_the_dialect_of_their_body(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    for body in (
        {"texts": ["a"]},
        {"documents": ["a"]},
        {"documents": ["a"], "top_k": 1},
        {"documents": ["a"], "property": ""},
    ):
        ask(ranker, "/rerank", **body)
    ask(ranker, "/v2/rerank", documents=["a"])
    surfaces = [seen.surface for seen in ranking_engine.metering.observations]
    assert surfaces == ["tei", "infinity", "voyage", "weaviate", "cohere"]
