"""Vectors in every dialect's shape: OpenAI, Infinity, vLLM, Jina, TEI; one row an input or one a token."""

from __future__ import annotations

import base64
from typing import Any

import httpx2
import numpy as np
import orjson
import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.api.embeddings import MAX_METADATA_ITEMS
from runtime.errors import UnknownPrompt
from runtime.work import Picture, Task
from tests.api.live import SERVERS, HttpServer, live_server
from tests.api.test_picture_inputs import BASE64, DATA_URI, PNG
from tests.fakes import FakeEngine, matrix, spec, status, vector

ROWS = matrix("a b")


@pytest.fixture
def engine() -> FakeEngine:
    """An embedder named first and a late-interaction model; both see."""
    engine = FakeEngine(spec("org/first"), spec("org/late", task="multi_vector"))
    engine.statuses = [status(each, modalities=("text", "image")) for each in engine.specs]
    return engine


def late(**fields: Any) -> dict[str, Any]:
    return {"model": "org/late", **fields}


def decoded(text: str, dtype: str = "<f4") -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
def test_a_late_interaction_model_answers_a_row_a_token(client: TestClient, path: str) -> None:
    [item] = client.post(path, json=late(input="a b")).json()["data"]
    assert np.array_equal(np.array(item["embedding"], np.float32), ROWS)
    assert item.keys() == {"object", "embedding", "index"}


def test_base64_of_rows_is_flat_float32_with_its_shape(client: TestClient) -> None:
    """What Infinity's vision client reshapes by a width that it asked for before."""
    items = client.post("/embeddings", json=late(input=["a b", "c"], encoding_format="base64")).json()["data"]
    assert [(item["dtype"], item["shape"]) for item in items] == [("float32", [4, 4]), ("float32", [3, 4])]
    assert np.array_equal(decoded(items[0]["embedding"]).reshape(-1, 4), ROWS)


def test_dimensions_cut_the_last_axis(client: TestClient) -> None:
    [item] = client.post("/embeddings", json=late(input="a b", dimensions=2)).json()["data"]
    assert np.array(item["embedding"]).shape == (4, 2)


def test_without_a_model_the_embedder_is_meant(client: TestClient, engine: FakeEngine) -> None:
    client.post("/v1/embeddings", json={"input": "a"})
    client.post("/v1/embeddings", json={"input": "a"}, headers={"x-model-id": "org/late"})
    assert [(job.model, job.task) for job in engine.jobs] == [
        ("org/first", Task.EMBED),
        ("org/late", Task.MULTI_VECTOR),
    ]


def test_a_reranker_gives_no_vectors() -> None:
    client = TestClient(build_app(FakeEngine(spec("org/judge", task="rerank"))))
    for name in (None, "org/judge"):
        response = client.post("/v1/embeddings", json={"input": "a", "model": name})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_capability")


# -- bytes ------------------------------------------------------------------------------------------------------


def test_bytes_come_with_their_metadata_in_a_header(client: TestClient) -> None:
    body = late(input=["a b", "c"], encoding_format="bytes", embed_dtype="float16", endianness="big")
    response = client.post("/pooling", json=body)
    metadata = orjson.loads(response.headers["metadata"])
    assert response.headers["content-type"] == "application/octet-stream"
    assert metadata["id"].startswith("pool-")
    assert metadata["usage"]["prompt_tokens"] == 7
    for item, text in zip(metadata["data"], ("a b", "c"), strict=True):
        rows = np.frombuffer(response.content[item["start"] : item["end"]], ">f2").reshape(item["shape"])
        assert np.array_equal(rows, matrix(text).astype(np.float16))
    assert len(response.content) == metadata["data"][-1]["end"]


def test_bytes_only_have_no_metadata(client: TestClient) -> None:
    response = client.post("/v1/embeddings", json=late(input="a b", encoding_format="bytes_only"))
    assert response.content == ROWS.astype("<f4").tobytes()
    assert "metadata" not in response.headers
    assert response.headers["server-timing"]


@pytest.mark.parametrize("http", SERVERS)
def test_the_longest_metadata_fits_a_header(engine: FakeEngine, http: HttpServer) -> None:
    body = {"model": "org/first", "input": ["a"] * MAX_METADATA_ITEMS, "encoding_format": "bytes"}
    with live_server(engine, http) as server:
        response = httpx2.post(f"{server.url}/v1/embeddings", json=body, trust_env=False)
    metadata = orjson.loads(response.headers["metadata"])
    assert len(metadata["data"]) == MAX_METADATA_ITEMS
    assert metadata["data"][-1]["end"] == len(response.content)


def test_metadata_too_long_for_a_header_is_refused_before_any_work(client: TestClient, engine: FakeEngine) -> None:
    body = {"model": "org/first", "input": ["a"] * (MAX_METADATA_ITEMS + 1), "encoding_format": "bytes"}
    response = client.post("/v1/embeddings", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_encoding_format")
    assert not engine.jobs
    assert client.post("/v1/embeddings", json={**body, "encoding_format": "bytes_only"}).status_code == 200


# -- vLLM -------------------------------------------------------------------------------------------------------


def test_pooling_has_vllm_s_shape(client: TestClient) -> None:
    answer = client.post("/pooling", json=late(input=["a b"], task="token_embed")).json()
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    [item] = answer["data"]
    assert (item["object"], item["index"]) == ("pooling", 0)
    assert np.array_equal(np.array(item["data"], np.float32), ROWS)
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0}


def test_pooling_takes_a_conversation_and_a_limit(client: TestClient, engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA_URI}}]}]
    body = late(messages=messages, truncate_prompt_tokens=9, encoding_format="base64")
    [item] = client.post("/pooling", json=body).json()["data"]
    assert decoded(item["data"]).size == np.prod(item["shape"])
    assert engine.jobs[0].inputs == [Picture(PNG, 6, 4)]
    assert engine.jobs[0].max_tokens == 9


@pytest.mark.parametrize(("task", "code"), [("classify", "unsupported_capability"), ("fly", "invalid_request")])
def test_pooling_of_another_task_is_400(client: TestClient, task: str, code: str) -> None:
    response = client.post("/pooling", json=late(input="a", task=task))
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)


# -- Jina -------------------------------------------------------------------------------------------------------


def test_multi_vector_has_jina_s_shape(client: TestClient, engine: FakeEngine) -> None:
    body = {"input": ["a b", {"text": "c"}, {"image": BASE64}], "return_multivector": True, "embedding_type": "float"}
    answer = client.post("/v1/multi-vector", json={**body, "dimensions": 3}).json()
    assert engine.jobs[0].inputs == ["a b", "c", Picture(PNG, 6, 4)]
    assert [np.array(item["embeddings"]).shape for item in answer["data"]] == [(4, 3), (3, 3), (5, 3)]
    assert answer["usage"]["total_tokens"] == 12
    assert answer["model"] == "org/late"


@pytest.mark.parametrize("kind", ["base64", ["base64"]])
def test_multi_vector_s_type_may_be_an_encoding(client: TestClient, kind: Any) -> None:
    [item] = client.post("/v1/multi-vector", json={"input": ["a b"], "embedding_type": kind}).json()["data"]
    assert np.array_equal(decoded(item["embeddings"]).reshape(item["shape"]), ROWS)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "invalid_request"),
        ({"input": []}, "empty_input"),
        ({"input": [5]}, "invalid_request"),
        ({"input": ["a"], "return_multivector": False}, "unsupported_capability"),
        ({"input": ["a"], "embedding_type": "int4"}, "invalid_encoding_format"),
        ({"input": ["a"], "model": "org/first"}, "unsupported_capability"),
    ],
)
def test_multi_vector_refuses_in_jina_s_words(client: TestClient, fields: dict[str, Any], code: str) -> None:
    response = client.post("/v1/multi-vector", json=fields)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert response.json()["detail"] == response.json()["error"]["message"]


# -- TEI --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["a b", ["a b"]])
def test_embed_is_always_a_list_of_vectors(client: TestClient, engine: FakeEngine, inputs: Any) -> None:
    response = client.post("/embed", json={"inputs": inputs, "truncate": True})
    assert np.array_equal(np.array(response.json(), np.float32), vector("a b")[None])
    assert engine.jobs[0].normalize is True
    assert engine.jobs[0].model == "org/first"
    assert response.headers["x-compute-tokens"] == "4"


def test_embed_all_is_a_list_of_lists_of_vectors(client: TestClient) -> None:
    assert np.array_equal(np.array(client.post("/embed_all", json={"inputs": "a b"}).json(), np.float32), ROWS[None])


def test_embed_s_options_reach_the_job(client: TestClient, engine: FakeEngine) -> None:
    body = {"inputs": ["a"], "normalize": False, "truncate": False, "truncation_direction": "Left", "dimensions": 2}
    client.post("/embed", json={**body, "prompt_name": "query"})
    [job] = engine.jobs
    assert (job.normalize, job.truncate, job.truncation_side, job.dimensions) == (False, False, "left", 2)
    assert job.prompt_name == "query"


@pytest.mark.parametrize(
    ("path", "body", "status_code", "kind"),
    [
        ("/embed", {"inputs": []}, 400, "Empty"),
        ("/embed", {}, 422, "Validation"),
        ("/embed", {"inputs": ["a"], "dimensions": 0}, 422, "Validation"),
        ("/embed", {"inputs": ["a"], "dimensions": 9}, 422, "Validation"),
        ("/embed", {"inputs": ["a"], "model": "org/late"}, 424, "Backend"),
        ("/embed_all", {"inputs": ["a"], "model": "org/first"}, 424, "Backend"),
        ("/embed", {"inputs": ["a"], "model": "nope"}, 404, "Validation"),
    ],
)
def test_tei_s_errors_are_flat(
    client: TestClient, path: str, body: dict[str, Any], status_code: int, kind: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == status_code
    assert response.json().keys() == {"error", "error_type"}
    assert response.json()["error_type"] == kind


def test_an_unknown_prompt_is_422_for_tei(client: TestClient, engine: FakeEngine) -> None:
    engine.failure = UnknownPrompt("no such prompt")
    assert client.post("/embed", json={"inputs": "a", "prompt_name": "x"}).status_code == 422


def test_pool_factor_is_for_rows_only(client: TestClient) -> None:
    [rows] = client.post("/pooling", json=late(input="a b", pool_factor=2)).json()["data"]
    assert np.array(rows["data"]).shape == (2, 4)
    [alone] = client.post("/v1/embeddings", json={"model": "org/first", "input": "a b", "pool_factor": 2}).json()[
        "data"
    ]
    assert len(alone["embedding"]) == 4
    assert client.post("/pooling", json=late(input="a", pool_factor=4)).status_code == 400
