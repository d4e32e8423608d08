"""The log line of a request."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.api.access import JsonFormatter
from tests.fakes import FakeEngine


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    records = [record for record in caplog.records if record.name == "cotenant.access"]
    return [json.loads(JsonFormatter().format(record)) for record in records]


def test_a_request_to_a_model_logs_what_it_cost(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    headers = {"x-request-id": "id-7", "x-lane": "bulk"}
    client.post("/v1/embeddings", json={"input": ["a b", "c"]}, headers=headers)
    [line] = lines(caplog)
    total_ms = line.pop("total_ms")
    assert line.pop("render_ms") <= total_ms
    assert line.pop("time").endswith("Z")
    assert line.pop("message").startswith("POST '/v1/embeddings' 200 ")
    assert line == {
        "level": "info",
        "logger": "cotenant.access",
        "id": "id-7",
        "method": "POST",
        "path": "/v1/embeddings",
        "status": 200,
        "tenant": "default",
        "model": "owner/letters",
        "lane": "bulk",
        "code": None,
        "inputs": 2,
        "tokens": 7,
        "candidates": 0,
        "prepare_ms": 1.25,
        "queue_ms": 2.5,
        "device_ms": 30.75,
        "device_share_ms": 12.5,
        "cost_usd": None,
    }


def test_a_refused_request_logs_its_code(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client.post("/embeddings", json={"input": []})
    [line] = lines(caplog)
    assert (line["status"], line["code"], line["model"]) == (422, "empty_input", "unknown")


def test_probes_are_logged_for_debugging_only(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client.get("/health")
    assert lines(caplog) == []
    client.get("/v1/models")
    assert [(line["path"], line["status"]) for line in lines(caplog)] == [("/v1/models", 200)]


def test_a_path_can_neither_flood_nor_break_the_log(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client.get("/" + "x" * 5000 + "%0a%0d")
    client.get("/a%0ab")
    long, odd = lines(caplog)
    assert len(long["path"]) == 200
    assert odd["path"] == "/a\nb"
    assert "\n" not in odd["message"]


def test_nothing_is_written_where_nobody_listens(
    client: TestClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    client.post("/v1/embeddings", json={"input": "a"})
    assert len(engine.jobs) == 1
    assert caplog.records == []


def test_the_formatter_keeps_tracebacks_on_their_line() -> None:
    try:
        raise RuntimeError("a bug")
    except RuntimeError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "it broke: %s", ("why",), sys.exc_info())
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["message"]) == ("error", "it broke: why")
    assert "RuntimeError: a bug" in line["traceback"]
