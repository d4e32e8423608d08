"""POST /v1/embeddings and GET /v1/models in OpenAI's shapes."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from starlette.testclient import TestClient

from runtime.work import Lane
from tests.api.live import SERVERS, HttpServer, live_server
from tests.fakes import FakeEngine, spec, status, vector

MODEL = "owner/letters"


def embed(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/embeddings", json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_string_gives_one_embedding_and_the_tokens_it_cost(client: TestClient) -> None:
    assert embed(client, input="two words") == {
        "object": "list",
        "data": [{"object": "embedding", "embedding": [9.0, 1.0, pytest.approx(1 / 3), -1.0], "index": 0}],
        "model": MODEL,
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }


def test_a_list_keeps_its_order_and_its_empty_strings(client: TestClient) -> None:
    data = embed(client, input=["abc", "", "a b"])["data"]
    assert [item["index"] for item in data] == [0, 1, 2]
    assert [item["embedding"][0] for item in data] == [3.0, 0.0, 3.0]


def test_float_and_base64_answers_are_equal_bit_for_bit(client: TestClient) -> None:
    texts = ["a", "b c", ""]
    numbers = embed(client, input=texts)["data"]
    encoded = embed(client, input=texts, encoding_format="base64")["data"]
    for text, plain, item in zip(texts, numbers, encoded, strict=True):
        raw = base64.b64decode(item["embedding"], validate=True)
        assert raw == np.asarray(vector(text), "<f4").tobytes()
        assert raw == np.array(plain["embedding"], "<f4").tobytes()
        assert item.keys() == {"object", "embedding", "index"}


def test_embed_dtype_comes_back_beside_the_bytes(client: TestClient) -> None:
    [item] = embed(client, input="abc", encoding_format="base64", embed_dtype="float16")["data"]
    assert (item["dtype"], item["shape"]) == ("float16", [4])
    assert base64.b64decode(item["embedding"]) == vector("abc").astype("<f2").tobytes()


def test_nulls_and_unknown_fields_count_as_absent(client: TestClient, engine: FakeEngine) -> None:
    nulls = dict.fromkeys(
        ("encoding_format", "dimensions", "user", "normalize", "truncate", "prompt_name", "priority"), None
    )
    assert embed(client, input="abc", colour="green", **nulls) == embed(client, input="abc")
    first, second = engine.jobs
    assert (first.dimensions, first.normalize, first.prompt_name) == (None, None, None)
    assert (first.truncate, first.truncation_side, first.max_tokens) == (True, None, None)
    assert first.lane is second.lane is Lane.ONLINE


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dimensions": 2}, {"dimensions": 2}),
        ({"dimensions": 0}, {"dimensions": None}),
        ({"output_dimension": 3}, {"dimensions": 3}),
        ({"dimensions": None, "output_dimension": 3}, {"dimensions": 3}),
        ({"normalize": False}, {"normalize": False}),
        ({"normalize": "true"}, {"normalize": True}),
        ({"normalize": "False"}, {"normalize": False}),
        ({"truncate": True}, {"truncate": True, "truncation_side": None}),
        ({"truncate": False}, {"truncate": False}),
        ({"truncate": "false"}, {"truncate": False}),
        ({"truncate": "NONE"}, {"truncate": False}),
        ({"truncate": "START"}, {"truncate": True, "truncation_side": "left"}),
        ({"truncate": "END"}, {"truncate": True, "truncation_side": "right"}),
        ({"truncation_side": "left"}, {"truncation_side": "left"}),
        ({"truncation_direction": "Left"}, {"truncation_side": "left"}),
        ({"truncate_prompt_tokens": -1}, {"max_tokens": None}),
        ({"truncate_prompt_tokens": 7}, {"max_tokens": 7}),
        ({"prompt_name": "query"}, {"prompt_name": "query"}),
        ({"input_type": "query"}, {"prompt_name": "query"}),
        ({"prompt_name": "query", "input_type": "document"}, {"prompt_name": "query"}),
        ({"priority": 1}, {"lane": Lane.BULK}),
        ({"priority": -1}, {"lane": Lane.ONLINE}),
        ({"modality": "text", "user": "u"}, {}),
    ],
)
def test_fields_reach_the_engine(
    client: TestClient, engine: FakeEngine, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    embed(client, input="abc", **fields)
    [job] = engine.jobs
    assert {name: getattr(job, name) for name in expected} == expected


@pytest.mark.parametrize(("header", "lane"), [("bulk", Lane.BULK), ("Online", Lane.ONLINE)])
def test_the_lane_header_wins_over_priority(client: TestClient, engine: FakeEngine, header: str, lane: Lane) -> None:
    priority = 1 if lane is Lane.ONLINE else 0
    body = {"input": "a", "priority": priority}
    assert client.post("/v1/embeddings", json=body, headers={"x-lane": header}).status_code == 200
    assert engine.jobs[0].lane is lane


@pytest.mark.parametrize(
    ("fields", "headers", "may_go_bulk"),
    [({}, {}, True), ({"priority": -1}, {}, False), ({}, {"x-lane": "online"}, False), ({"priority": 0}, {}, True)],
)
def test_a_request_that_names_no_lane_may_go_bulk(
    client: TestClient, engine: FakeEngine, fields: dict[str, Any], headers: dict[str, str], may_go_bulk: bool
) -> None:
    assert client.post("/v1/embeddings", json={"input": "a", **fields}, headers=headers).status_code == 200
    [job] = engine.jobs
    assert (job.lane, job.may_go_bulk) == (Lane.ONLINE, may_go_bulk)


def test_headers_say_where_the_time_went(client: TestClient, engine: FakeEngine) -> None:
    engine.truncated_inputs = 1
    headers = client.post("/v1/embeddings", json={"input": ["a b", "c"]}).headers
    stages = dict(stage.split(";dur=") for stage in headers["server-timing"].split(","))
    assert list(stages) == ["prepare", "queue", "device", "render", "total"]
    assert [float(stages[name]) for name in ("prepare", "queue", "device")] == [1.25, 2.5, 30.75]
    assert headers["x-compute-type"] == "cpu"
    assert (headers["x-compute-characters"], headers["x-compute-tokens"]) == ("4", "7")
    assert headers["x-tokenization-time"] == "1"
    assert headers["x-queue-time"] == "2"
    assert headers["x-inference-time"] == "30"
    assert int(headers["x-total-time"]) == int(headers["x-compute-time"]) >= 0
    assert headers["x-truncated-inputs"] == "1"


def test_x_truncated_inputs_is_absent_where_nothing_was_cut(client: TestClient) -> None:
    assert "x-truncated-inputs" not in client.post("/v1/embeddings", json={"input": "a"}).headers


def test_compute_type_follows_the_model_s_device(client: TestClient, engine: FakeEngine) -> None:
    engine.statuses = [status(engine.specs[0], device=None)]
    assert "x-compute-type" not in client.post("/v1/embeddings", json={"input": "a"}).headers
    engine.statuses = [status(engine.specs[0], device="cuda:0")]
    assert client.post("/v1/embeddings", json={"input": "a"}).headers["x-compute-type"] == "gpu"


@pytest.mark.parametrize("sent", ["req-7", "a" * 128])
def test_a_plain_request_id_comes_back(client: TestClient, engine: FakeEngine, sent: str) -> None:
    response = client.post("/v1/embeddings", json={"input": "a"}, headers={"x-request-id": sent})
    assert response.headers["x-request-id"] == sent == engine.jobs[0].id


@pytest.mark.parametrize("sent", ["", "a b", "a" * 129, "<script>"])
def test_any_other_request_id_is_replaced(client: TestClient, sent: str) -> None:
    response = client.post("/v1/embeddings", json={"input": "a"}, headers={"x-request-id": sent})
    assert response.headers["x-request-id"] != sent
    assert len(response.headers["x-request-id"]) == 32


def test_big_bodies_take_the_threads_and_give_the_same_answer(client: TestClient) -> None:
    texts = ["x" * (n % 100) for n in range(2048)]
    data = embed(client, input=texts)["data"]
    assert [item["embedding"][0] for item in data] == [len(text) for text in texts]


def test_every_answer_is_counted_under_a_bounded_name(client: TestClient, engine: FakeEngine) -> None:
    embed(client, input="a")
    client.post("/v1/embeddings", json={"input": "a", "model": "made up"})
    client.post("/v1/embeddings", content=b"{")
    seen = [(seen.surface, seen.model, seen.task, seen.status) for seen in engine.metering.observations]
    assert seen == [
        ("openai", MODEL, "embed", 200),
        ("openai", "unknown", "embed", 404),
        ("openai", "unknown", "embed", 400),
    ]
    assert engine.metering.request_errors == [("openai", "model_not_found"), ("openai", "invalid_json")]


def test_a_request_is_counted_in_its_lane(client: TestClient, engine: FakeEngine) -> None:
    embed(client, input="a")
    client.post("/v1/embeddings", json={"input": "a"}, headers={"x-lane": "bulk"})
    assert [seen.lane for seen in engine.metering.observations] == [Lane.ONLINE, Lane.BULK]


def test_models_lists_what_is_served() -> None:
    from runtime.api.app import build_app

    engine = FakeEngine(spec(), spec("b", served_name="beta", aliases=("second",)))
    engine.statuses[1] = status(
        engine.specs[1],
        backend="openvino",
        queue_items={Lane.ONLINE: 3},
        queue_tokens={Lane.ONLINE: 128},
        results_pending=2,
    )
    client = TestClient(build_app(engine))
    answer = client.get("/v1/models").json()
    assert answer["object"] == "list"
    assert [item["id"] for item in answer["data"]] == [MODEL, "beta"]
    item = answer["data"][1]
    assert item["object"] == "model"
    assert (item["owned_by"], item["root"], item["backend"]) == ("cotenant", "b", "openvino")
    assert item["capabilities"] == ["embed"]
    assert (item["max_model_len"], item["dimensions"], item["dtype"]) == (256, 4, "float32")
    assert item["stats"] == {
        "queue_fraction": 0.25,
        "queue_absolute": 3,
        "results_pending": 2,
        "batch_size": 512,
    }
    assert item["limits"]["max_inputs"] == 2048
    assert item["limits"]["max_body_bytes"] == 64 * 2**20
    assert client.get("/v1/models/second").json() == item
    assert client.get("/v1/models/owner/letters").json() == answer["data"][0]
    missing = client.get("/v1/models/nope")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert "beta" in missing.json()["error"]["message"]


@pytest.mark.parametrize("http", SERVERS)
def test_the_openai_sdk_gets_its_vectors_over_a_socket(http: HttpServer) -> None:
    with (
        live_server(FakeEngine(), http) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        answer = sdk.embeddings.create(model=MODEL, input=["a b", ""])
        assert [item.embedding for item in answer.data] == [vector("a b").tolist(), vector("").tolist()]
        assert answer.usage.prompt_tokens == 6
        plain = sdk.embeddings.create(model=MODEL, input="a b", encoding_format="float")
        assert np.array(plain.data[0].embedding, np.float32).tobytes() == vector("a b").tobytes()
        assert [model.id for model in sdk.models.list()] == [MODEL]
        assert sdk.models.retrieve(MODEL).id == MODEL
        with pytest.raises(BadRequestError) as refused:
            sdk.embeddings.create(model=MODEL, input=[[1, 2, 3]])
        assert (refused.value.code, refused.value.param) == ("token_ids_not_accepted", "input")
        with pytest.raises(NotFoundError, match="owner/letters"):
            sdk.embeddings.create(model="nope", input="a")


def test_token_ids_reach_only_a_model_that_accepts_them(client: TestClient, engine: FakeEngine) -> None:
    for ids in ([1, 2, 3], [[1, 2], [3]], ["text", [1, 2]]):
        answer = client.post("/v1/embeddings", json={"input": ids})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "token_ids_not_accepted")
    engine.specs = tuple(spec.model_copy(update={"accept_token_ids": True}) for spec in engine.specs)
    for ids, expected in (([1, 2], [[1, 2]]), ([[1, 2], [3]], [[1, 2], [3]]), (["text", [1]], ["text", [1]])):
        assert client.post("/v1/embeddings", json={"input": ids}).status_code == 200
        assert list(engine.jobs[-1].inputs) == expected
