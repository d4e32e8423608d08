"""One real server for all clients, on real and tiny models, and what its answers must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.references import MAX_LENGTH, References
from tests.server.conftest import MINILM, Server

TINY = {
    "reranker": "bert-reranker",
    "classifier": "multi-class-classifier",
    "clip": "clip",
    "colpali": "colpali",
    "colqwen2": "colqwen2",
}
"""Served id: the tiny model's name."""
INSTALL_LIMIT_S = 900
"""The first test that uses a client also installs it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(INSTALL_LIMIT_S))


@pytest.fixture(scope="package")
def references(tiny_model: Callable[[str], Path]) -> References:
    return References({served: tiny_model(name) for served, name in TINY.items()})


@pytest.fixture(scope="package")
def url(references: References, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's address; clients that name no model get the embedder or the reranker."""
    models: list[dict[str, object]] = [{"id": "all-minilm-l6-v2", "source": MINILM, "default": True}]
    for served, folder in references.folders.items():
        limit = {"max_length": MAX_LENGTH} if served in ("reranker", "classifier") else {}
        models.append({"id": served, "source": str(folder), **limit})
    server = Server(tmp_path_factory.mktemp("server"), models)
    yield server.url
    server.close()
