"""POST /v2/embed and /v1/embed as Cohere's clients send and read them."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from runtime.errors import UnknownPrompt
from runtime.work import Picture
from tests.api.test_picture_inputs import DATA_URI, PNG
from tests.fakes import FakeEngine, matrix, spec, status, vector


@pytest.fixture
def engine() -> FakeEngine:
    """An embedder named first and a late-interaction model; both see."""
    engine = FakeEngine(spec("org/first"), spec("org/late", task="multi_vector"))
    engine.statuses = [status(each, modalities=("text", "image")) for each in engine.specs]
    return engine


def decoded(text: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")


def cohere(**fields: Any) -> dict[str, Any]:
    return {"model": "org/first", "input_type": "search_document", **fields}


def test_v2_embed_answers_by_type(client: TestClient) -> None:
    kinds = ["float", "int8", "uint8", "base64"]
    answer = client.post("/v2/embed", json=cohere(texts=["a b", "c"], embedding_types=kinds)).json()
    assert answer["response_type"] == "embeddings_by_type"
    assert uuid.UUID(answer["id"]).version == 4
    assert answer["texts"] == ["a b", "c"]
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 7}}
    assert list(answer["embeddings"]) == kinds
    assert np.array_equal(np.array(answer["embeddings"]["float"][0], np.float32), vector("a b"))
    assert answer["embeddings"]["int8"][0] == [127, 127, 42, -127]
    assert np.array_equal(decoded(answer["embeddings"]["base64"][1]), vector("c"))


def test_v2_embed_takes_pictures(client: TestClient, engine: FakeEngine) -> None:
    parts = [{"content": [{"type": "image_url", "image_url": {"url": DATA_URI}}]}, {"content": [{"text": "a"}]}]
    for fields in ({"images": [DATA_URI]}, {"inputs": parts}):
        answer = client.post("/v2/embed", json=cohere(input_type="image", **fields)).json()
        assert answer["meta"]["billed_units"]["images"] == 1
        assert engine.jobs[-1].inputs[0] == Picture(PNG, 6, 4)
    assert answer["texts"] == ["a"]


def test_v1_embed_is_a_plain_list_unless_types_are_named(client: TestClient) -> None:
    plain = client.post("/v1/embed", json=cohere(texts=["c"], truncate=None)).json()
    assert plain["response_type"] == "embeddings_floats"
    assert plain["embeddings"][0][0] == 1.0
    assert plain["meta"]["billed_units"]["input_tokens"] == 3
    typed = client.post("/v1/embed", json=cohere(texts=["c"], embedding_types=["float"])).json()
    assert typed["response_type"] == "embeddings_by_type"
    assert typed["embeddings"]["float"] == plain["embeddings"]


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
def test_only_an_input_type_of_cohere_s_may_be_one_that_the_model_lacks(
    path: str, client: TestClient, engine: FakeEngine
) -> None:
    """Its clients must send one, also to models without prompts."""
    known = ["search_document", "search_query", "classification", "clustering", "image"]
    for name in (*known, "query", "search_qeury", "", None):
        assert client.post(path, json=cohere(texts=["a"], input_type=name)).status_code == 200
    found = [(job.prompt_name, job.prompt_optional) for job in engine.jobs]
    others = [("query", False), ("search_qeury", False), (None, False), (None, False)]
    assert found == [*((name, True) for name in known), *others]


def test_an_unknown_input_type_is_named_as_such(client: TestClient, engine: FakeEngine) -> None:
    engine.failure = UnknownPrompt("this model has no such prompt; its prompts are: query")
    answer = client.post("/v2/embed", json=cohere(texts=["a"], input_type="search_qeury"))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_prompt", "input_type")


def test_cohere_s_limits_reach_the_job(client: TestClient, engine: FakeEngine) -> None:
    client.post("/v2/embed", json=cohere(texts=["a"], output_dimension=2, truncate="START", max_tokens=7))
    [job] = engine.jobs
    assert (job.dimensions, job.truncation_side, job.max_tokens) == (2, "left", 7)


def test_v2_embed_of_rows_has_their_shapes_beside_base64(client: TestClient) -> None:
    body = cohere(texts=["a b"], embedding_types=["base64"]) | {"model": "org/late"}
    answer = client.post("/v2/embed", json=body).json()
    assert np.array_equal(decoded(answer["embeddings"]["base64"][0]).reshape(answer["shapes"][0]), matrix("a b"))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "invalid_request"),
        ({"texts": ["a"], "images": [DATA_URI]}, "invalid_request"),
        ({"texts": "a"}, "invalid_request"),
        ({"texts": []}, "empty_input"),
        ({"images": [5]}, "invalid_request"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "invalid_encoding_format"),
        ({"texts": ["a"], "embedding_types": ["binary"]}, "invalid_encoding_format"),
        ({"images": ["x"]}, "invalid_image"),
    ],
)
def test_cohere_s_errors_have_a_message_at_the_top(client: TestClient, fields: dict[str, Any], code: str) -> None:
    response = client.post("/v2/embed", json=cohere(**fields))
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert response.json()["message"] == response.json()["error"]["message"]
