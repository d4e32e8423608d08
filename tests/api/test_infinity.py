"""POST /embeddings and GET /models as Infinity's own client needs them."""

from __future__ import annotations

import time
import uuid

from starlette.testclient import TestClient

from tests.fakes import FakeEngine


def test_the_answer_has_infinity_s_keys_in_its_order(client: TestClient) -> None:
    answer = client.post(
        "/embeddings",
        json={"input": ["abc"], "model": "default/not-specified", "dimensions": 0, "modality": "text"},
    ).json()
    assert list(answer) == ["object", "data", "model", "usage", "id", "created"]
    assert answer["data"][0]["embedding"][:2] == [3.0, 0.0]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    prefix, _, suffix = answer["id"].partition("-")
    assert prefix == "infinity"
    assert uuid.UUID(suffix).version == 4
    assert abs(answer["created"] - time.time()) < 60


def test_schema_errors_are_422_with_fastapi_s_detail_beside_the_error(client: TestClient) -> None:
    response = client.post("/embeddings", json={"input": 5})
    message = "input must be a string or a list of strings"
    assert response.status_code == 422
    assert response.json() == {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": "input",
            "code": "invalid_request",
        },
        "detail": [{"type": "invalid_request", "loc": ["body", "input"], "msg": message}],
    }


def test_a_missing_model_is_404_without_a_detail(client: TestClient) -> None:
    response = client.post("/embeddings", json={"input": "a", "model": "nope"})
    assert response.status_code == 404
    assert "detail" not in response.json()


def test_models_are_owned_by_infinity(client: TestClient) -> None:
    [item] = client.get("/models").json()["data"]
    assert item["owned_by"] == "infinity"
    assert item["stats"].keys() == {"queue_fraction", "queue_absolute", "results_pending", "batch_size"}


def test_requests_are_counted_under_their_own_surface(client: TestClient, engine: FakeEngine) -> None:
    client.post("/embeddings", json={"input": "a"})
    assert [seen.surface for seen in engine.metering.observations] == ["infinity"]
