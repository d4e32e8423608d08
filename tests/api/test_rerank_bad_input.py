"""What a bad rerank request gets in each dialect: its status, in a small answer that does not repeat it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from runtime.errors import QueueFull
from tests.fakes import FakeEngine

MARKER = "MARKERmarkerMARKER"

FORMS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    # path, fields that make the body the dialect's, status of a wrong schema, of no documents
    "infinity": ("/rerank", {}, 422, 422),
    "cohere-1": ("/v1/rerank", {}, 400, 400),
    "cohere-2": ("/v2/rerank", {}, 400, 400),
    "voyage": ("/v1/rerank", {"truncation": True}, 400, 400),
    "weaviate": ("/rerank", {"property": ""}, 400, 400),
    "tei": ("/rerank", {}, 422, 400),
}

BAD: list[tuple[str, dict[str, Any], str, str]] = [
    # what it is, fields, code, param
    ("no query", {"documents": [MARKER], "query": None}, "invalid_request", "query"),
    ("query a number", {"query": 5}, "invalid_request", "query"),
    ("query a list", {"query": [MARKER]}, "invalid_request", "query"),
    ("query an empty object", {"query": {}}, "invalid_request", "query"),
    ("document a number", {"documents": [MARKER, 5]}, "invalid_request", "documents"),
    ("document null", {"documents": [None]}, "invalid_request", "documents"),
    ("document a list", {"documents": [[MARKER]]}, "invalid_request", "documents"),
    ("document without text", {"documents": ["a", {"title": MARKER}]}, "invalid_request", "documents"),
    ("document of no parts", {"documents": ["a", {"content": []}]}, "invalid_request", "documents"),
    ("document of odd parts", {"documents": ["a", {"content": [5]}]}, "invalid_request", "documents"),
    ("documents a number", {"documents": 5}, "invalid_request", "documents"),
    ("1,001 documents", {"documents": [MARKER] * 1001}, "too_many_documents", "documents"),
    ("100,000 wrong documents", {"documents": [5] * 100_000}, "too_many_documents", "documents"),
    ("top_n below 0", {"top_n": -1}, "invalid_request", "top_n"),
    ("top_n a word", {"top_n": MARKER}, "invalid_request", "top_n"),
    ("top_n true", {"top_n": True}, "invalid_request", "top_n"),
    ("return_documents a word", {"return_documents": MARKER}, "invalid_request", "return_documents"),
    ("truncate a word", {"truncate": MARKER}, "invalid_request", "truncate"),
    ("tokens below 0", {"max_tokens_per_query": -1}, "invalid_request", "max_tokens_per_query"),
]


def in_form(form: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    path, hint, _, _ = FORMS[form]
    body = {"query": "q", "documents": ["a"], **fields}
    if form == "tei":
        body["texts"] = body.pop("documents")
        body["return_text"] = body.pop("return_documents", False)
    elif form == "voyage":
        body["top_k"] = body.pop("top_n", 0)
        if "truncate" in body:
            hint = {"truncation": body.pop("truncate")}
    return path, {**body, **hint}


def assert_refused(form: str, response: Any, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    assert len(response.content) < 2048
    assert MARKER not in response.text
    answer = response.json()
    if form == "weaviate":
        assert answer.keys() == {"error"}
        assert isinstance(answer["error"], str)
    elif form == "tei":
        assert answer.keys() == {"error", "error_type"}
        assert isinstance(answer["error"], str)
    else:
        assert answer["error"]["code"] == code
        assert answer.keys() - {"detail"} == ({"error", "message"} if form.startswith("cohere") else {"error"})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("fields", "code", "param"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_body_of_another_schema(
    ranker: TestClient, ranking_engine: FakeEngine, form: str, fields: dict[str, Any], code: str, param: str
) -> None:
    path, body = in_form(form, fields)
    response = ranker.post(path, content=orjson.dumps(body))
    assert_refused(form, response, FORMS[form][2], code)
    if form in ("infinity", "cohere-1", "cohere-2"):
        assert response.json()["error"]["param"] == param
    assert ranking_engine.jobs == []
    assert ranker.post(path, json=in_form(form, {})[1]).status_code == 200


@pytest.mark.parametrize("form", FORMS)
def test_no_documents(ranker: TestClient, form: str) -> None:
    path, body = in_form(form, {"documents": []})
    response = ranker.post(path, json=body)
    assert_refused(form, response, FORMS[form][3], "empty_input")
    if form == "tei":
        assert response.json() == {"error": "texts is an empty list", "error_type": "Empty"}


@pytest.mark.parametrize("form", FORMS)
def test_the_refusal_of_too_many_documents_has_both_numbers(ranker: TestClient, form: str) -> None:
    path, body = in_form(form, {"documents": ["a"] * 1001})
    response = ranker.post(path, json=body)
    assert "1001" in response.text
    assert "1000" in response.text
    assert response.headers["x-rerank-candidates"] == "1001"


@pytest.mark.parametrize("form", FORMS)
def test_a_lone_surrogate_is_400_and_hurts_nobody(ranker: TestClient, ranking_engine: FakeEngine, form: str) -> None:
    path, body = in_form(form, {"documents": ["SURROGATE", MARKER]})
    response = ranker.post(path, content=orjson.dumps(body).replace(b"SURROGATE", b"\\ud800"))
    assert response.status_code == 400
    assert "not valid JSON" in response.text
    assert MARKER not in response.text
    assert ranking_engine.jobs == []
    assert ranker.post(path, json=in_form(form, {})[1]).status_code == 200


@pytest.mark.parametrize("form", FORMS)
def test_empty_texts_are_inputs_like_any_other(ranker: TestClient, ranking_engine: FakeEngine, form: str) -> None:
    path, body = in_form(form, {"query": "", "documents": ["", " ", "\n"]})
    assert ranker.post(path, json=body).status_code == 200
    assert len(ranking_engine.jobs[0].inputs) == 3


@pytest.mark.parametrize(
    "part",
    [
        {"content": [{"type": "image_url", "image_url": {"url": MARKER}}]},
        {"image": MARKER},
    ],
    ids=["part", "jina"],
)
@pytest.mark.parametrize("form", FORMS)
def test_pictures_are_not_read_here(ranker: TestClient, form: str, part: dict[str, Any]) -> None:
    path, body = in_form(form, {"documents": ["a", part]})
    assert_refused(form, ranker.post(path, json=body), 424 if form == "tei" else 400, "unsupported_capability")


@pytest.mark.parametrize(("path", "status"), [("/rerank", 422), ("/v1/rerank", 400), ("/v2/rerank", 400)])
def test_texts_and_documents_together_are_refused(ranker: TestClient, path: str, status: int) -> None:
    response = ranker.post(path, json={"query": "q", "texts": ["a"], "documents": ["a"]})
    assert (response.status_code, response.json()["error"]["param"]) == (status, "texts")
    response = ranker.post(path, json={"query": "q"})
    assert (response.status_code, response.json()["error"]["param"]) == (status, "documents")


@pytest.mark.parametrize("form", FORMS)
def test_a_full_queue_is_429_in_every_dialect(ranker: TestClient, ranking_engine: FakeEngine, form: str) -> None:
    ranking_engine.failure = QueueFull("the queue is full", retry_after_s=2.0)
    path, body = in_form(form, {})
    response = ranker.post(path, json=body)
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    if form == "tei":
        assert response.json() == {"error": "the queue is full", "error_type": "Overloaded"}
