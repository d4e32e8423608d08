"""Requests that are refused count in the lane in which they would have run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.errors import QueueFull
from runtime.registry import ServerSettings
from runtime.work import Lane
from tests.fakes import FakeEngine, spec

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "a"}),
    ("/embed", {"inputs": "a"}),
    ("/v2/embed", {"texts": ["a"]}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("/vectors", {"text": "a"}),
    ("/rerank", {"query": "a", "documents": ["b"]}),
    ("/score", {"queries": "a", "documents": ["b"]}),
    ("/classify", {"input": "a"}),
    ("/v1/maxsim", {"query": "a", "documents": ["b"]}),
    ("/v1/similarity_map", {"query": "a", "image": "b"}),
    ("/vertex", {"instances": [{"inputs": "a"}]}),
]
UNKNOWN = {"model": "nobody"}


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: bulk, key: of-bulk, lane: bulk, tokens_per_minute: 1}, {name: any, key: of-any}]")
    models = (spec("owner/letters", default=True), spec("owner/rows", task="multi_vector"))
    return FakeEngine(*models, settings=ServerSettings(keys_file=str(keys)))


@pytest.fixture
def client(engine: FakeEngine) -> TestClient:
    return TestClient(build_app(engine))


def lane(client: TestClient, engine: FakeEngine, path: str, body: Mapping[str, Any], headers: dict[str, str]) -> Lane:
    """Of the last request that was counted, which was refused."""
    assert client.post(path, json=body, headers=headers).status_code >= 400
    return engine.metering.observations[-1].lane


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[path for path, _ in ROUTES])
def test_what_is_refused_counts_in_its_key_s_lane_or_in_the_one_it_asks_for(
    client: TestClient, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    of_bulk, of_any = {"x-api-key": "of-bulk"}, {"x-api-key": "of-any"}
    for broken in ({}, {**body, **UNKNOWN}, {**body, "timeout_ms": 0}):
        assert lane(client, engine, path, broken, of_bulk) is Lane.BULK
        assert lane(client, engine, path, broken, of_any) is Lane.ONLINE
        assert lane(client, engine, path, broken, {**of_any, "x-lane": "Bulk"}) is Lane.BULK
    assert lane(client, engine, path, {**body, **UNKNOWN, "priority": 1}, of_any) is Lane.BULK


def test_a_spent_quota_and_a_full_queue_count_there_too(client: TestClient, engine: FakeEngine) -> None:
    of_bulk = {"x-api-key": "of-bulk"}
    assert client.post("/v1/embeddings", json={"input": "a b"}, headers=of_bulk).status_code == 200
    assert lane(client, engine, "/v1/embeddings", {"input": "a"}, of_bulk) is Lane.BULK
    assert engine.metering.request_errors[-1] == ("openai", "rate_limited")
    engine.failure = QueueFull("full")
    assert lane(client, engine, "/v1/embeddings", {"input": "a", "priority": 1}, {"x-api-key": "of-any"}) is Lane.BULK


@pytest.mark.parametrize(("header", "expected"), [("bulk", Lane.BULK), ("fast", Lane.ONLINE), ("", Lane.ONLINE)])
def test_a_stranger_counts_in_the_lane_that_the_head_asks_for(
    client: TestClient, engine: FakeEngine, header: str, expected: Lane
) -> None:
    assert lane(client, engine, "/v1/embeddings", {"input": "a"}, {"x-lane": header}) is expected
    assert engine.metering.observations[-1].status == 401
