"""The request that loads a model is answered as the later ones are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, Start

MODELS = ("cohere", "weaviate")


@pytest.fixture(scope="module")
def server(start: Start, tiny_model: Callable[[str], Path]) -> Server:
    source = str(tiny_model("bert-embedder"))
    prompts = {"query": "the question: "}
    return start([{"id": name, "source": source, "resident": "on_demand", "prompts": prompts} for name in MODELS])


def near(vector: list[float]) -> Any:
    return pytest.approx(vector, abs=1e-5)


def cohere(server: Server, **fields: Any) -> list[float]:
    body = {"model": "cohere", "texts": ["a text"], **fields}
    found: list[float] = server.client.post("/v2/embed", json=body).json()["embeddings"]["float"][0]
    return found


def weaviate(server: Server, **fields: Any) -> list[float]:
    body = {"model": "weaviate", "text": "a text", "config": fields}
    found: list[float] = server.client.post("/vectors", json=body).json()["vector"]
    return found


def test_the_prompt_of_a_cohere_query_is_there_from_the_first_request_on(server: Server) -> None:
    first = cohere(server, input_type="search_query")
    assert first == near(cohere(server, input_type="search_query"))
    assert first != near(cohere(server, input_type="search_document"))
    assert cohere(server, input_type="search_document") == near(cohere(server))


def test_the_prompt_of_a_weaviate_query_is_there_from_the_first_request_on(server: Server) -> None:
    first = weaviate(server, task_type="query")
    assert first == near(weaviate(server, task_type="query"))
    assert first != near(weaviate(server, task_type="passage"))
    assert weaviate(server, task_type="passage") == near(weaviate(server))
