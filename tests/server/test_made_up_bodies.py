"""Made-up bodies against a real server on tiny models of every task: no 5xx, no hang, and it serves on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.api.bodies import Request, requests
from tests.api.test_fuzz import SOAK, hold
from tests.server.conftest import Server, Start

MODELS = {
    "owner/letters": "bert-embedder",
    "owner/rows": "colbert",
    "owner/ranker": "bert-reranker",
    "owner/moods": "multi-class-classifier",
}


@pytest.fixture(scope="module")
def server(start: Start, tiny_model: Callable[[str], Path]) -> Server:
    return start([{"id": name, "source": str(tiny_model(made))} for name, made in MODELS.items()])


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@settings(SOAK, max_examples=3_000)
@given(request_=requests())
def test_3_000_bodies(server: Server, request_: Request) -> None:
    hold(server.client, request_)


@pytest.mark.slow
def test_it_is_ready_and_its_log_holds_none_of_them_afterwards(server: Server) -> None:
    assert server.client.get("/ready").status_code == 200
    log = server.log.read_text()
    assert "ended in a bug" not in log
    assert "MARKERmarkerMARKER" not in log
