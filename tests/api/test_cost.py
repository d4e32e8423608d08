"""What a request cost: on the account of its model, task, lane and tenant, and in the body where that is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.registry import ServerSettings
from runtime.work import Lane
from tests.fakes import FakeEngine, spec

ASKED = {"x-include-cost": "true"}
STAGES = {"prepare", "queue", "device", "deliver", "render"}


@pytest.mark.parametrize(
    ("route", "body", "task"),
    [
        ("/v1/embeddings", {"input": ["a", "b"], "model": "owner/letters"}, "embed"),
        ("/embeddings", {"input": "a", "model": "owner/letters", "encoding_format": "base64"}, "embed"),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}, "rerank"),
        ("/rerank", {"query": "q", "documents": ["a"], "property": ""}, "rerank"),
        ("/classify", {"input": ["a"], "model": "owner/moods"}, "classify"),
    ],
)
def test_an_answer_that_is_an_object_says_what_it_cost_when_asked(
    ranker: TestClient, route: str, body: dict[str, Any], task: str
) -> None:
    plain, asked = (ranker.post(route, json=body, headers=headers) for headers in ({}, ASKED))
    answer = asked.json()
    cost = answer.pop("cost")
    assert answer.keys() == plain.json().keys()
    assert (cost["task"], cost["lane"], cost["tenant"]) == (task, "online", "default")
    assert cost["stages_ms"].keys() == STAGES
    assert cost["device_share_ms"] == 12.5
    assert cost["usd"] == pytest.approx(12.5e-6)
    assert asked.headers["x-device-ms"] == "12.500"


def test_what_ran_in_bulk_is_on_that_lane_s_account(client: TestClient, engine: FakeEngine) -> None:
    engine.most_online = 2
    answer = client.post("/v1/embeddings", json={"input": ["a", "b", "c"]}, headers=ASKED).json()
    assert answer["cost"]["lane"] == "bulk"
    assert [seen.lane for seen in engine.metering.observations] == [Lane.BULK]
    assert [account.lane for account, *_ in engine.metering.costs] == [Lane.BULK]


def test_lists_and_bytes_stay_as_they_are(ranker: TestClient) -> None:
    listed = ranker.post("/rerank", json={"query": "q", "texts": ["a"]}, headers=ASKED)
    assert [item["index"] for item in listed.json()] == [0]
    body = {"input": "a", "model": "owner/letters", "encoding_format": "bytes_only"}
    plain, asked = (ranker.post("/v1/embeddings", json=body, headers=headers).content for headers in ({}, ASKED))
    assert plain == asked


def test_without_a_price_the_dollars_are_null(client: TestClient) -> None:
    answer = client.post("/v1/embeddings", json={"input": "a"}, headers=ASKED).json()
    assert answer["cost"]["usd"] is None


@pytest.mark.parametrize(("written", "status"), [("false", 200), ("TRUE", 200), ("yes", 400), ("", 400)])
def test_the_header_is_true_or_false(client: TestClient, written: str, status: int) -> None:
    answer = client.post("/v1/embeddings", json={"input": "a"}, headers={"x-include-cost": written})
    assert answer.status_code == status
    assert ("cost" in answer.json()) == (written == "TRUE")
    if status == 400:
        assert answer.json()["error"]["param"] == "x-include-cost"


def test_an_error_costs_nothing_to_tell(client: TestClient, engine: FakeEngine) -> None:
    answer = client.post("/v1/embeddings", json={"input": []}, headers=ASKED)
    assert set(answer.json()) == {"error"}
    assert engine.metering.costs == []


def test_a_key_s_tenant_and_lane_are_on_the_account() -> None:
    settings = ServerSettings(port=0, api_keys=SecretStr("indexer:secret-key-of-the-indexer"))
    engine = FakeEngine(spec(), settings=settings)
    with TestClient(build_app(engine)) as client:
        headers = {"authorization": "Bearer secret-key-of-the-indexer", "x-lane": "bulk"}
        answer = client.post("/v1/embeddings", json={"input": "a"}, headers={**headers, **ASKED})
    assert answer.status_code == 200, json.dumps(answer.json())
    [(account, *_)] = engine.metering.costs
    assert account == ("owner/letters", "embed", "bulk", "indexer")
    assert answer.json()["cost"] | account._asdict() == answer.json()["cost"]
