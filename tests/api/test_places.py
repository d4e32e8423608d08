"""Errors about one input name it as the caller does, in each dialect's own field and with its place there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.errors import CotenantError, ForwardFailed, InputTooLong
from runtime.work import Job, Result
from tests.api.test_picture_inputs import BASE64
from tests.fakes import FakeEngine

LONG = "too long"
MULTI = {"model": "owner/rows"}

CASES: list[tuple[str, dict[str, Any], str]] = [
    # path, body, the place in the message
    ("/v1/embeddings", {"input": ["a", LONG]}, "input[1]"),
    ("/v1/embeddings", {"input": LONG}, "input"),
    ("/v1/embeddings", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    (
        "/pooling",
        {"messages": [[{"role": "user", "content": "a"}], [{"role": "user", "content": LONG}]]},
        "messages[1]",
    ),
    ("/embeddings", {"input": ["a", LONG]}, "input[1]"),
    ("/embed", {"inputs": ["a", LONG]}, "inputs[1]"),
    ("/embed", {"inputs": LONG}, "inputs"),
    ("/embed_all", {"inputs": ["a", LONG], **MULTI}, "inputs[1]"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", LONG]}}, "inputs.sentences[1]"),
    ("/similarity", {"inputs": {"source_sentence": LONG, "sentences": ["b"]}}, "inputs.source_sentence"),
    ("/v1/embed", {"texts": ["a", LONG]}, "texts[1]"),
    ("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": LONG}]}]}, "inputs[0]"),
    ("/v1/multi-vector", {"input": [{"text": "a"}, {"text": LONG}], **MULTI}, "input[1]"),
    ("/vectors", {"text": LONG}, "text"),
    ("/rerank", {"query": "a", "documents": ["b", LONG]}, "documents[1]"),
    ("/rerank", {"query": "a", "texts": ["b", LONG]}, "texts[1]"),
    ("/v1/rerank", {"query": "a", "documents": ["b", LONG], "model": "owner/letters"}, "documents[1]"),
    ("/v1/rerank", {"query": LONG, "documents": ["b", "c"], "model": "owner/letters"}, "query"),
    ("/v2/rerank", {"query": "a", "documents": ["b", "b", LONG], **MULTI}, "documents[2]"),
    ("/v2/rerank", {"query": LONG, "documents": ["b"], **MULTI}, "query"),
    ("/score", {"queries": ["a", "a"], "documents": ["b", LONG]}, "documents[1]"),
    ("/score", {"queries": LONG, "documents": ["b"], **MULTI}, "queries"),
    ("/score", {"queries": ["a", LONG], "documents": ["b", "c"], **MULTI}, "queries[1]"),
    ("/classify", {"input": ["a", LONG]}, "input[1]"),
    ("/predict", {"inputs": [["a"], ["b", LONG]]}, "inputs[1]"),
    ("/predict", {"inputs": ["a", LONG]}, "inputs"),
    ("/v1/maxsim", {"query": "a", "documents": ["b", {"id": 7, "text": LONG}], **MULTI}, "documents[1]"),
    ("/v1/maxsim", {"queries": ["a", LONG], "documents": ["b"], **MULTI}, "queries[1]"),
    ("/v1/similarity_map", {"query": LONG, "image": BASE64, **MULTI}, "query"),
    ("/vertex", {"instances": [{"inputs": "a"}, {"inputs": ["a", LONG]}]}, "instances[1]: inputs[1]"),
]


class Failing(FakeEngine):
    """Refuses the first input that holds `LONG`, by its index."""

    kind: type[CotenantError] = InputTooLong

    async def run(self, job: Job) -> Result:
        for index, item in enumerate(job.inputs):
            if LONG in repr(item):
                raise self.kind("{input} has 600 tokens; the limit is 512", index=index)
        return await super().run(job)


def texts_of(value: Any) -> Iterator[str]:
    """Every text in an answer's JSON."""
    if isinstance(value, dict):
        for part in value.values():
            yield from texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize(("path", "body", "place"), CASES, ids=[f"{path} {place}" for path, _, place in CASES])
def test_an_input_that_is_too_long_is_named_as_the_caller_names_it(path: str, body: dict[str, Any], place: str) -> None:
    response = TestClient(build_app(Failing.of_all_tasks())).post(path, json=body)
    assert response.status_code in (400, 422)
    answer = response.json()
    assert f"{place} has 600 tokens; the limit is 512" in set(texts_of(answer))
    if isinstance(answer["error"], dict):
        assert answer["error"]["param"] == place.partition("[")[0]


def test_a_failed_input_is_named_too_and_no_field_is_blamed() -> None:
    failing = Failing.of_all_tasks()
    failing.kind = ForwardFailed
    response = TestClient(build_app(failing)).post("/v1/rerank", json={"query": "a", "documents": ["b", LONG]})
    assert response.status_code == 500
    error = response.json()["error"]
    assert (error["message"], error["param"]) == ("documents[1] has 600 tokens; the limit is 512", None)


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/embeddings", {"input": [BASE64, "@"], "modality": "image"}, "input[1]"),
        ("/v1/embeddings", {"input": ["a", {"image": "@"}]}, "input[1]"),
        ("/v2/embed", {"images": [BASE64, "http://a.example/"]}, "images[1]"),
        ("/v1/multi-vector", {"input": [{"text": "a"}, {"image": "@"}]}, "input[1]"),
        ("/v1/rerank", {"query": "a", "documents": ["b", {"image": BASE64}, {"image": "@"}]}, "documents[2]"),
        ("/v1/maxsim", {"query": "a", "documents": [[[1.0]], {"image": "@"}]}, "documents[1]"),
        ("/v1/similarity_map", {"query": "a", "image": "@"}, "image"),
    ],
)
def test_a_picture_that_is_no_picture_is_named_by_its_place(path: str, body: dict[str, Any], place: str) -> None:
    response = TestClient(build_app(Failing.of_all_tasks())).post(path, json={**MULTI, **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"].startswith(f"{place}: ")
    assert error["param"] == place.partition("[")[0]


@pytest.mark.parametrize(("path", "field"), [("/v1/embeddings", "input"), ("/embed", "inputs")])
def test_token_ids_are_refused_in_the_field_that_has_them(path: str, field: str) -> None:
    response = TestClient(build_app(Failing.of_all_tasks())).post(path, json={field: [[1, 2]]})
    assert response.status_code in (400, 422)
    assert any(text.startswith(f"{field} must be text: token ids") for text in texts_of(response.json()))


PICTURES = {"query": "a", "documents": ["b", {"image": BASE64}]}


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/score"])
def test_pictures_without_a_model_are_told_which_models_see(path: str) -> None:
    body = {**PICTURES, "queries": "a"}
    answer = TestClient(build_app(Failing.of_all_tasks())).post(path, json=body).json()
    assert answer["error"]["code"] == "unsupported_capability"
    assert answer["error"]["message"] == (
        "documents[1] must be text: no model is named, and owner/ranker, which is meant then, reads nothing else;"
        " name one that sees: owner/rows"
    )
    named = TestClient(build_app(Failing.of_all_tasks())).post(path, json={**body, "model": "owner/ranker"}).json()
    assert named["error"]["message"] == (
        "documents[1] must be text: owner/ranker reads nothing else; name one that sees: owner/rows"
    )


def test_pictures_where_no_model_sees() -> None:
    blind = Failing.of_all_tasks()
    blind.statuses[1] = replace(blind.statuses[1], modalities=("text",))
    answer = TestClient(build_app(blind)).post("/v1/rerank", json=PICTURES).json()
    assert answer["error"]["message"].endswith("; no model here compares pictures")
