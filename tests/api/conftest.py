"""The edge over a fake engine: in process for answers, over a socket for connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from tests.api.living import Play, player
from tests.fakes import FakeEngine, spec


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    with TestClient(build_app(engine), raise_server_exceptions=True) as client:
        yield client


@pytest.fixture
def ranking_engine() -> FakeEngine:
    """A reranker, an embedder and a classifier in one process."""
    return FakeEngine(
        spec("owner/ranker", task="rerank"), spec("owner/letters"), spec("owner/moods", task="classify"), price=3.6
    )


@pytest.fixture
def ranker(ranking_engine: FakeEngine) -> Iterator[TestClient]:
    with TestClient(build_app(ranking_engine), raise_server_exceptions=True) as client:
        yield client


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    """Serve an engine while a scene, given the engine and the URL, goes on; then what was printed."""
    return player(monkeypatch, capsys)
