"""Refusals as a caller reads them: the caller's own field, the place in it, JSON's words, and what would do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.api import tokens
from runtime.api.app import build_app
from tests.api.bodies import posts
from tests.api.test_picture_inputs import BASE64
from tests.fakes import FakeEngine

ROWS = {"model": "owner/rows"}
CONVERSATION = [{"role": "user", "content": "a"}, {"role": "user"}]
BLIND = "is a picture; owner/letters takes text only"

REFUSALS: list[tuple[str, dict[str, Any], str, str | None]] = [
    # path, body, message, param where the dialect has one
    ("/similarity", {"inputs": "a"}, "inputs must be an object with source_sentence and sentences", None),
    ("/similarity", {"inputs": {"sentences": ["a"]}}, "inputs.source_sentence must be a string", None),
    ("/similarity", {"inputs": {"source_sentence": "a"}}, "inputs.sentences must be a list of strings", None),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences is an empty list", None),
    (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b", 5]}},
        "inputs.sentences[1] must be a string, or an object with text or content",
        None,
    ),
    ("/similarity", {"inputs": "a", "parameters": 5}, "parameters must be an object", None),
    (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"dimensions": "x"}},
        "parameters.dimensions must be an integer",
        None,
    ),
    ("/vectors", {"text": "a", "config": {"timeout_ms": "x"}}, "config.timeout_ms must be a number", None),
    ("/vectors", {"text": ["a"]}, "text must be a string", None),
    ("/v2/embed", {"texts": "a"}, "texts must be a list of strings", "texts"),
    ("/v2/embed", {"texts": ["a", 5]}, "texts[1] must be a string", "texts"),
    ("/v2/embed", {"images": [BASE64, 5]}, "images[1] must be a picture (data URI, base64 or address)", "images"),
    ("/v2/embed", {"images": [BASE64]}, f"images[0] {BLIND}", "images"),
    ("/v2/embed", {"inputs": ["a", {"image": BASE64}]}, f"inputs[1] {BLIND}", "inputs"),
    (
        "/v2/embed",
        {"texts": ["a"], "embedding_types": ["float", "x"]},
        "embedding_types[1] must be 'float', 'int8', 'uint8', 'binary', 'ubinary' or 'base64'",
        "embedding_types",
    ),
    ("/v1/embeddings", {"input": ["a", {"image": BASE64}]}, f"input[1] {BLIND}", "input"),
    ("/v1/embeddings", {"input": BASE64, "modality": "image"}, f"input {BLIND}", "input"),
    ("/v1/embeddings", {"messages": CONVERSATION}, "messages[1] must be an object with content", "messages"),
    (
        "/pooling",
        {"messages": [CONVERSATION[:1], CONVERSATION]},
        "messages[1][1] must be an object with content",
        "messages",
    ),
    ("/tokenize", {"messages": CONVERSATION}, "messages[1] must be an object with content", "messages"),
    ("/tokenize", {"messages": "a"}, "messages must be a list", "messages"),
    ("/tokenize", {"inputs": "abcdef"}, "inputs holds 6 characters, this route takes 5 in one request", None),
    ("/tokenize", {"prompt": "abcdef"}, "prompt holds 6 characters, this route takes 5 in one request", "prompt"),
    ("/v1/tokenize", {"text": "abcdef"}, "text holds 6 characters, this route takes 5 in one request", "text"),
    ("/detokenize", {"tokens": "a"}, "tokens must be a list of token ids, which are integers", "tokens"),
    ("/detokenize", {"tokens": [1] * 6}, "tokens holds 6 ids, this route takes 5 in one request", "tokens"),
    ("/vertex", {"instances": [{"inputs": "a"}, 5]}, "instances[1] must be an object", None),
    (
        "/vertex",
        {"instances": [{"inputs": "a"}, {"inputs": ["a", 5]}]},
        "instances[1]: inputs[1] must be a string",
        None,
    ),
    (
        "/v1/rerank",
        {"query": "a", "documents": 5},
        "documents must be a string, or an object with text or content",
        "documents",
    ),
    (
        "/v1/rerank",
        {"query": "a", "documents": "b", "return_documents": 5},
        "return_documents must be true or false",
        "return_documents",
    ),
    (
        "/score",
        {"text_1": "a", "text_2": ["b", 5]},
        "text_2[1] must be a string, or an object with text or content",
        "text_2",
    ),
    (
        "/v1/maxsim",
        {"query": "a", "documents": ["b", {"words": "c"}], **ROWS},
        "documents[1]: a part must be text, image_url or image",
        "documents",
    ),
    (
        "/v1/maxsim",
        {"query": "a", "documents": {"words": "c"}, **ROWS},
        "documents: a part must be text, image_url or image",
        "documents",
    ),
    (
        "/v1/maxsim",
        {"query": {"words": "c"}, "documents": ["b"], **ROWS},
        "query: a part must be text, image_url or image",
        "query",
    ),
    (
        "/v1/similarity_map",
        {"query": "a", "image": {"words": "c"}, **ROWS},
        "image: a part must be text, image_url or image",
        "image",
    ),
]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(tokens, "MAX_CHARACTERS", 5)
    monkeypatch.setattr(tokens, "MAX_IDS", 5)
    return TestClient(build_app(FakeEngine.of_all_tasks()))


@pytest.mark.parametrize(
    ("path", "body", "message", "param"), REFUSALS, ids=[f"{path} {message[:40]}" for path, _, message, _ in REFUSALS]
)
def test_a_refusal_names_what_the_caller_wrote(
    client: TestClient, path: str, body: dict[str, Any], message: str, param: str | None
) -> None:
    response = client.post(path, json=body)
    assert 400 <= response.status_code < 425
    error = response.json()["error"]
    assert (error if isinstance(error, str) else error["message"]) == message
    assert isinstance(error, str) or error["param"] == param


@pytest.mark.parametrize("path", sorted(posts()))
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the body is empty: send a JSON object"),
        (b'{"a": "\xe9"}', "the body is not valid JSON: it is not UTF-8 text, from byte 7 on"),
        (json.dumps({"a": 1}).encode("utf-16"), "the body is not valid JSON: it is not UTF-8 text, from byte 0 on"),
        (b'{"a": ', "the body is not valid JSON: unexpected end of data, line 1 column 7"),
        (b"null", "the body must be a JSON object"),
    ],
    ids=["empty", "latin-1", "utf-16", "torn", "null"],
)
def test_a_body_that_is_no_json_is_told_why_on_every_route(
    client: TestClient, path: str, content: bytes, words: str
) -> None:
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert response.status_code in (400, 422)
    assert (error if isinstance(error, str) else error["message"]) == words
