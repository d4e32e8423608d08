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
