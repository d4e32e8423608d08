"""Alive, ready, each model's condition, metrics."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from runtime import __version__
from runtime.api.app import build_app
from runtime.work import Lane
from tests.fakes import FakeEngine, spec, status


def test_alive_whatever_the_models_do(client: TestClient, engine: FakeEngine) -> None:
    engine.ready = False
    for path in ("/health", "/live"):
        response = client.get(path)
        assert response.status_code == 200
        assert response.json()["status"] == "ok"
        assert isinstance(response.json()["unix"], float)


def test_ready_lists_every_model(client: TestClient) -> None:
    response = client.get("/ready")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ready",
        "models": [{"id": "owner/letters", "state": "ready", "detail": None, "required": True}],
    }


def test_not_ready_says_which_model_and_why() -> None:
    engine = FakeEngine(spec("a"), spec("b", required=False))
    engine.statuses[0] = status(engine.specs[0], state="failed", detail="no such folder")
    engine.ready = False
    response = TestClient(build_app(engine)).get("/ready")
    assert response.status_code == 503
    assert response.json()["status"] == "not_ready"
    assert response.json()["models"][0] == {
        "id": "a",
        "state": "failed",
        "detail": "no such folder",
        "required": True,
    }


def test_draining_is_not_ready(client: TestClient, engine: FakeEngine) -> None:
    engine.draining = True
    response = client.get("/ready")
    assert (response.status_code, response.json()["status"]) == (503, "draining")
    assert client.get("/health").status_code == 200
    refused = client.post("/v1/embeddings", json={"input": "a"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_health_of_models_has_memory_and_queues(client: TestClient, engine: FakeEngine) -> None:
    engine.statuses = [status(engine.specs[0], queue_items={Lane.ONLINE: 2, Lane.BULK: 5})]
    [model] = client.get("/health/models").json()["models"]
    assert (model["weight_bytes"], model["activation_bytes"], model["loaded_s"]) == (1000, 200, 0.5)
    assert model["queue_items"] == {"online": 2, "bulk": 5}
    assert model["idle_s"] is None


def test_metrics_are_the_engine_s(client: TestClient) -> None:
    response = client.get("/metrics")
    assert response.text == "# HELP fake A metric\n"
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_the_root_names_the_server(client: TestClient) -> None:
    assert client.get("/").json() == {"name": "cotenant", "version": __version__}


def test_probes_are_no_requests_to_a_model(client: TestClient, engine: FakeEngine) -> None:
    for path in ("/", "/health", "/ready", "/metrics", "/v1/models"):
        client.get(path)
    assert engine.metering.observations == []


def test_head_is_get_without_a_body(client: TestClient) -> None:
    response = client.head("/health")
    assert (response.status_code, response.content) == (200, b"")


def test_the_probes_of_other_servers(client: TestClient, engine: FakeEngine) -> None:
    expected = {"/ping": 200, "/v2/health/live": 200, "/.well-known/live": 204}
    waiting = {"/v2/health/ready": 200, "/.well-known/ready": 204}
    assert {path: client.get(path).status_code for path in expected | waiting} == expected | waiting
    engine.ready = False
    unready = dict.fromkeys(waiting, 503)
    assert {path: client.get(path).status_code for path in expected | waiting} == expected | unready


def test_kserve_asks_for_one_model() -> None:
    engine = FakeEngine(spec("owner/a"), spec("b"))
    engine.statuses[1] = status(engine.specs[1], state="loading")
    client = TestClient(build_app(engine))
    answer = client.get("/v2/models/owner/a/ready")
    assert (answer.status_code, answer.json()) == (200, {"name": "owner/a", "ready": True})
    answer = client.get("/v2/models/b/ready")
    assert (answer.status_code, answer.json()) == (503, {"name": "b", "ready": False})
    assert client.get("/v2/models/c/ready").status_code == 404


@pytest.mark.parametrize(
    ("state", "available", "code"),
    [
        ("unloaded", True, 200),
        ("offloaded", True, 200),
        ("unloaded", False, 503),
        ("draining", True, 503),
        ("failed", False, 503),
    ],
)
def test_a_model_that_is_loaded_when_asked_for_counts_as_ready(state: str, available: bool, code: int) -> None:
    engine = FakeEngine(spec("a"))
    engine.statuses = [status(spec("a"), state=state, available=available)]
    assert TestClient(build_app(engine)).get("/v2/models/a/ready").status_code == code
