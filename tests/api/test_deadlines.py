"""A request's deadline, from a header or the body, reaches the engine; one that has passed is answered 504."""

from __future__ import annotations

import time

import pytest
from starlette.testclient import TestClient

from runtime.errors import DeadlineExceeded
from tests.fakes import FakeEngine

ROUTES = ("/v1/embeddings", "/embeddings")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("headers", "body", "timeout_ms"),
    [
        ({"x-deadline-ms": "1500"}, {}, 1500.0),
        ({"x-request-timeout-ms": "2500.5"}, {}, 2500.5),
        ({}, {"timeout_ms": 700}, 700.0),
        ({"x-deadline-ms": "100"}, {"timeout_ms": 700}, 100.0),
    ],
)
def test_a_deadline_counts_from_the_requests_head(
    client: TestClient,
    engine: FakeEngine,
    route: str,
    headers: dict[str, str],
    body: dict[str, float],
    timeout_ms: float,
) -> None:
    before_s = time.perf_counter()
    assert client.post(route, json={"input": "a", **body}, headers=headers).status_code == 200
    after_s = time.perf_counter()
    deadline_s = engine.jobs[0].deadline_s
    assert deadline_s is not None
    assert before_s <= deadline_s - timeout_ms / 1000 <= after_s


@pytest.mark.parametrize("route", ROUTES)
def test_without_one_there_is_no_deadline(client: TestClient, engine: FakeEngine, route: str) -> None:
    assert client.post(route, json={"input": "a", "timeout_ms": None}).status_code == 200
    assert engine.jobs[0].deadline_s is None


@pytest.mark.parametrize("written", ["soon", "0", "-5", "nan", "inf", ""])
@pytest.mark.parametrize("header", ["x-deadline-ms", "x-request-timeout-ms"])
def test_a_header_that_is_no_time_is_refused_by_name(client: TestClient, header: str, written: str) -> None:
    response = client.post("/v1/embeddings", json={"input": "a"}, headers={header: written})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == header


@pytest.mark.parametrize("written", [0, -1, "soon", True, [1]])
def test_a_field_that_is_no_time_is_refused_by_name(client: TestClient, written: object) -> None:
    response = client.post("/v1/embeddings", json={"input": "a", "timeout_ms": written})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "timeout_ms"


@pytest.mark.parametrize("route", ROUTES)
def test_a_deadline_that_passed_is_a_504(client: TestClient, engine: FakeEngine, route: str) -> None:
    engine.failure = DeadlineExceeded("the deadline passed before the answer was there")
    response = client.post(route, json={"input": "a", "timeout_ms": 5})
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/rerank", {"query": "a", "documents": ["a"]}),
        ("/rerank", {"query": "a", "texts": ["a"]}),
        ("/v1/score", {"queries": "a", "documents": ["a"]}),
        ("/classify", {"input": ["a"], "model": "owner/moods"}),
        ("/v1/maxsim", {"query": [[1.0, 0.0]], "documents": [[[0.0, 1.0]]]}),
    ],
)
def test_routes_that_score_know_deadlines(
    ranker: TestClient, ranking_engine: FakeEngine, route: str, body: dict[str, object]
) -> None:
    assert ranker.post(route, json={**body, "timeout_ms": 700}).status_code == 200
    assert ranking_engine.jobs[0].deadline_s is not None
