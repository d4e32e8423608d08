"""Tokens in three dialects, told apart by the body: places, special tokens, limits, and who is asked."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.api import tokens
from runtime.api.app import build_app
from runtime.errors import ModelLoading, QueueFull
from tests.fake_metering import Observation
from tests.fakes import FakeEngine, spec

META = {"api_version": {"version": "1"}}


def test_tei_s_tokens_have_their_places_in_bytes(client: TestClient) -> None:
    answer = client.post("/tokenize", json={"inputs": "né"})
    assert answer.json() == [
        [
            {"id": 0, "text": "[S]", "special": True, "start": None, "stop": None},
            {"id": ord("n"), "text": "n", "special": False, "start": 0, "stop": 1},
            {"id": ord("é"), "text": "é", "special": False, "start": 1, "stop": 3},
        ]
    ]
    assert answer.headers["x-compute-tokens"] == "3"


def test_tei_s_answer_is_a_list_a_text_and_behind_its_prompt(client: TestClient) -> None:
    body = {"inputs": ["a", ""], "add_special_tokens": False, "prompt_name": "query"}
    read = client.post("/tokenize", json=body).json()
    assert [[token["text"] for token in text] for text in read] == [["Q", ":", "a"], ["Q", ":"]]
    assert read[0][2]["start"] == 2


def test_vllm_s_answer_counts_and_spells_where_it_is_asked_to(client: TestClient) -> None:
    counted = client.post("/tokenize", json={"prompt": "hi"})
    assert counted.json() == {"count": 3, "max_model_len": 256, "tokens": [0, 104, 105], "token_strs": None}
    spelled = client.post("/tokenize", json={"prompt": "h", "return_token_strs": True, "add_special_tokens": False})
    assert spelled.json() == {"count": 1, "max_model_len": 256, "tokens": [104], "token_strs": ["▁h"]}


def test_vllm_s_messages_are_read_as_they_are_for_vectors(client: TestClient) -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]
    assert client.post("/tokenize", json={"messages": messages}).json()["tokens"] == [0, *map(ord, "a\nb")]


def test_cohere_s_answer_has_no_special_tokens_and_may_come_on_either_path(client: TestClient) -> None:
    for path in ("/v1/tokenize", "/tokenize"):
        answer = client.post(path, json={"text": "hi", "model": "owner/letters"}).json()
        assert answer == {"tokens": [104, 105], "token_strings": ["▁h", "▁i"], "meta": META}


def test_ids_become_texts_again_in_each_dialect(client: TestClient) -> None:
    assert client.post("/decode", json={"ids": [0, 104]}).json() == ["h"]
    assert client.post("/decode", json={"ids": [[0, 104], [105]], "skip_special_tokens": False}).json() == ["[S]h", "i"]
    assert client.post("/detokenize", json={"tokens": [0, 104]}).json() == {"prompt": "[S]h"}
    assert client.post("/v1/detokenize", json={"tokens": [104]}).json() == {"text": "h", "meta": META}


def test_the_model_is_found_as_on_every_route_and_no_job_is_run() -> None:
    engine = FakeEngine(spec("owner/letters"), spec("owner/ranker", task="rerank"))
    client = TestClient(build_app(engine))
    unnamed = client.post("/tokenize", json={"prompt": "a"})
    assert unnamed.status_code == 400
    assert unnamed.json()["error"]["code"] == "model_required"
    assert client.post("/m/owner/ranker/tokenize", json={"prompt": "a"}).status_code == 200
    assert client.post("/tokenize", json={"inputs": "a", "model": "owner/letters"}).status_code == 200
    assert client.post("/decode", json={"ids": [1]}, headers={"x-model-id": "owner/ranker"}).status_code == 200
    assert engine.consulted == ["owner/ranker", "owner/letters", "owner/ranker"]
    assert engine.jobs == []
    assert engine.metering.observations[1] == Observation("vllm", "owner/ranker", "tokenize", 200)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/tokenize", {}, 422, "inputs"),
        ("/tokenize", {"inputs": []}, 400, "empty"),
        ("/tokenize", {"inputs": [5]}, 422, "inputs[0]"),
        ("/tokenize", {"inputs": "a", "prompt_name": "none"}, 422, "prompt"),
        ("/tokenize", {"inputs": ["a"] * 3000}, 422, "2048"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"messages": [{"content": {"image_url": "data:,"}}]}, 400, "messages"),
        ("/v1/tokenize", {"text": 5}, 400, "text"),
        ("/v1/tokenize", {}, 400, "text"),
        ("/decode", {"ids": []}, 400, "empty"),
        ("/decode", {"ids": [[]]}, 400, "empty"),
        ("/decode", {"ids": ["a"]}, 422, "ids"),
        ("/decode", {"ids": [[1], 2]}, 422, "ids"),
        ("/decode", {"ids": [-1]}, 422, "vocabulary"),
        ("/decode", {"ids": [[1]] * 3000}, 422, "2048"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, 400, "vocabulary"),
        ("/v1/detokenize", {}, 400, "tokens"),
    ],
)
def test_a_bad_body_is_refused_in_its_dialect(
    client: TestClient, path: str, body: dict[str, Any], status: int, word: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert word in (error if isinstance(error, str) else error["message"])
    assert isinstance(error, str) is ("inputs" in body or path == "/decode" or (body == {} and path == "/tokenize"))


def test_texts_and_ids_of_one_request_are_bounded(
    client: TestClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_CHARACTERS", 10)
    monkeypatch.setattr(tokens, "MAX_IDS", 10)
    assert client.post("/tokenize", json={"inputs": ["a" * 5, "b" * 5]}).status_code == 200
    assert client.post("/tokenize", json={"inputs": ["a" * 5, "b" * 6]}).status_code == 422
    assert client.post("/detokenize", json={"tokens": [97] * 10}).status_code == 200
    assert client.post("/detokenize", json={"tokens": [97] * 11}).status_code == 400
    assert engine.consulted == ["owner/letters"] * 2


@pytest.mark.parametrize(("failure", "status"), [(QueueFull("full"), 429), (ModelLoading("loading"), 503)])
def test_what_the_engine_refuses_is_answered_in_the_dialect(
    client: TestClient, engine: FakeEngine, failure: Exception, status: int
) -> None:
    engine.failure = failure
    response = client.post("/tokenize", json={"inputs": "a"})
    assert response.status_code == status
    assert response.json()["error_type"] in ("Overloaded", "Unhealthy")
    assert response.headers["retry-after"]


def test_a_key_is_needed() -> None:
    client = TestClient(build_app(keyed()))
    for path in tokens.ROUTES:
        assert client.post(path, json={"inputs": "a"}).status_code == 401


def keyed() -> FakeEngine:
    from runtime.registry import ServerSettings

    return FakeEngine(settings=ServerSettings.model_validate({"api_key": "k"}))
