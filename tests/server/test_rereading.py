"""A real server that is told to read its registry again (SIGHUP): models come, go, change; nonsense does nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.server.conftest import Server, Start

WAIT_S = 60.0


def reread(server: Server, log_line: str, models: list[dict[str, object]] | None = None, text: str = "") -> None:
    """Write the registry anew, send the signal and wait for the log's line about it."""
    registry = server.log.parent / "registry.yaml"
    settings = {"max_queue_ms": 12_345.0, "server": {"max_inputs": 12, "api_key": "a-secret"}}
    registry.write_text(text or yaml.safe_dump({"models": models, **settings}))
    seen = server.log.read_text().count(log_line)
    server.process.send_signal(signal.SIGHUP)
    until = time.monotonic() + WAIT_S
    while server.log.read_text().count(log_line) == seen:
        assert time.monotonic() < until, server.log.read_text()[-3000:]
        time.sleep(0.05)


def served(server: Server) -> dict[str, str]:
    data = server.client.get("/v1/models").json()["data"]
    return {model["id"]: model["state"] for model in data}


def embed(server: Server, model: str) -> int:
    return server.client.post("/v1/embeddings", json={"model": model, "input": "x"}).status_code


@pytest.mark.timeout(300)
def test_models_come_go_and_change_and_nonsense_changes_nothing(
    start: Start, tiny_model: Callable[[str], Path]
) -> None:
    source = str(tiny_model("bert-embedder"))
    server = start([{"id": "a", "source": source}, {"id": "b", "source": source}])
    admin = {model["id"]: model["loads"] for model in server.client.get("/admin/models").json()["models"]}
    assert admin == {"a": 1, "b": 1}

    wanted: list[dict[str, object]] = [
        {"id": "a", "source": source, "aliases": ["first"], "pinned": True},
        {"id": "c", "source": source, "max_length": 16},
    ]
    reread(server, "the registry was read again: 2 models", wanted)
    assert served(server) == {"a": "ready", "c": "ready"}
    assert [embed(server, name) for name in ("first", "b", "c")] == [200, 404, 200]
    shown = server.client.get("/admin/models").json()["models"]
    assert [(model["id"], model["loads"], model["pinned"]) for model in shown] == [("a", 1, True), ("c", 1, False)]
    log = server.log.read_text()
    assert "need a restart: max_queue_ms, server.max_inputs, server.api_key" in log
    assert "a-secret" not in log

    reread(server, "nothing has changed", text="models: [{id: a, dtyp: float32}]")
    assert served(server) == {"a": "ready", "c": "ready"}

    wanted[0] |= {"max_length": 8}
    reread(server, "the registry was read again: 2 models", wanted)
    assert embed(server, "a") == 200
    limits = {model["id"]: model["max_model_len"] for model in server.client.get("/v1/models").json()["data"]}
    assert limits["a"] == 8
    assert server.terminate() == 0
    assert "SIGTERM: ending once the requests in flight are answered" in server.log.read_text()
