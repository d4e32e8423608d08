"""What a bad request gets: its status, in a small answer that does not repeat it, from a server that goes on."""

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.registry import ServerSettings
from tests.fakes import FakeEngine

MARKER = "MARKERmarkerMARKER"
BOTH = ("/v1/embeddings", "/embeddings")

INVALID: list[tuple[str, dict[str, Any], str, str | None]] = [
    # what it is, body, code, param
    ("no input", {}, "invalid_request", "input"),
    ("null input", {"input": None}, "invalid_request", "input"),
    ("number", {"input": 5.5}, "invalid_request", "input"),
    ("object", {"input": {"text": MARKER}}, "invalid_request", "input"),
    ("list with null", {"input": [MARKER, None]}, "invalid_request", "input"),
    ("list with object", {"input": [MARKER, {"words": MARKER}]}, "invalid_request", "input"),
    ("list of booleans", {"input": [True]}, "invalid_request", "input"),
    ("lists of strings", {"input": [[MARKER]]}, "invalid_request", "input"),
    ("10,000 inputs", {"input": [MARKER] * 10_000}, "too_many_inputs", "input"),
    ("10,000 wrong inputs", {"input": [None] * 10_000}, "too_many_inputs", "input"),
    ("model a number", {"input": "a", "model": 5}, "invalid_request", "model"),
    ("unknown format", {"input": "a", "encoding_format": MARKER}, "invalid_encoding_format", "encoding_format"),
    ("unknown dtype", {"input": "a", "embed_dtype": MARKER}, "invalid_encoding_format", "embed_dtype"),
    ("normalize a word", {"input": "a", "normalize": MARKER}, "invalid_request", "normalize"),
    ("normalize yes", {"input": "a", "normalize": "yes"}, "invalid_request", "normalize"),
    ("normalize a number", {"input": "a", "normalize": 1}, "invalid_request", "normalize"),
    ("truncate a word", {"input": "a", "truncate": MARKER}, "invalid_request", "truncate"),
    ("truncate a number", {"input": "a", "truncate": 1}, "invalid_request", "truncate"),
    ("side up", {"input": "a", "truncation_side": MARKER}, "invalid_request", "truncation_side"),
    ("limit 0", {"input": "a", "truncate_prompt_tokens": 0}, "invalid_request", "truncate_prompt_tokens"),
    ("limit -2", {"input": "a", "truncate_prompt_tokens": -2}, "invalid_request", "truncate_prompt_tokens"),
    ("limit true", {"input": "a", "truncate_prompt_tokens": True}, "invalid_request", "truncate_prompt_tokens"),
    ("prompt a number", {"input": "a", "prompt_name": 5}, "invalid_request", "prompt_name"),
    ("priority a word", {"input": "a", "priority": MARKER}, "invalid_request", "priority"),
]

BAD_EVERYWHERE: list[tuple[str, bytes, int, str, str | None]] = [
    # what it is, body, status on every path, code, param
    ("nothing", b"", 400, "invalid_json", None),
    ("cut off", b'{"input": "' + MARKER.encode(), 400, "invalid_json", None),
    ("lone surrogate", b'{"input":"' + MARKER.encode() + b' \\ud800 x"}', 400, "invalid_json", None),
    ("no utf-8", b'{"input":"' + MARKER.encode() + b'\xff"}', 400, "invalid_json", None),
    ("not a number", b'{"input":NaN}', 400, "invalid_json", None),
    ("very deep", b"[" * 100_000, 400, "invalid_json", None),
    ("empty list", b'{"input":[]}', 422, "empty_input", "input"),
    ("token ids", b'{"input":[1,2,3]}', 400, "token_ids_not_accepted", "input"),
    ("token id lists", b'{"input":[[1,2],[3]]}', 400, "token_ids_not_accepted", "input"),
    ("mixed", b'{"input":["a",[1,2]]}', 400, "token_ids_not_accepted", "input"),
    ("many token ids", b'{"input":[' + b"7," * 9999 + b"7]}", 400, "token_ids_not_accepted", "input"),
    ("dimensions below 0", b'{"input":"a","dimensions":-1}', 400, "invalid_dimensions", "dimensions"),
    ("dimensions beyond", b'{"input":"a","dimensions":5}', 400, "invalid_dimensions", "dimensions"),
    ("dimensions a word", b'{"input":"a","dimensions":"abc"}', 400, "invalid_dimensions", "dimensions"),
    ("dimensions true", b'{"input":"a","dimensions":true}', 400, "invalid_dimensions", "dimensions"),
    ("dimensions 1.5", b'{"input":"a","dimensions":1.5}', 400, "invalid_dimensions", "dimensions"),
    ("output_dimension", b'{"input":"a","output_dimension":-1}', 400, "invalid_dimensions", "output_dimension"),
    ("dimensions 2^70", b'{"input":"a","dimensions":1180591620717411303424}', 400, "invalid_dimensions", "dimensions"),
    ("an image", b'{"input":"a","modality":"image"}', 400, "unsupported_capability", "input"),
    ("no such model", b'{"input":"a","model":"' + MARKER.encode() + b'"}', 404, "model_not_found", "model"),
]


def assert_refused(response: Any, status: int, code: str, param: str | None) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] in ("invalid_request_error", "not_found_error")
    assert "\n" not in error["message"]
    assert len(response.content) < 2048
    assert MARKER not in response.text
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["x-request-id"]
    assert response.headers["server-timing"].startswith("prepare;dur=0.000,")
    assert int(response.headers["x-total-time"]) >= 0


def assert_goes_on(client: TestClient) -> None:
    assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 200


@pytest.mark.parametrize(("path", "status"), [("/v1/embeddings", 400), ("/embeddings", 422)])
@pytest.mark.parametrize(("body", "code", "param"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_a_body_of_another_schema(
    client: TestClient, path: str, status: int, body: dict[str, Any], code: str, param: str | None
) -> None:
    assert_refused(client.post(path, json=body), status, code, param)
    assert_goes_on(client)


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [case[1:] for case in BAD_EVERYWHERE],
    ids=[case[0] for case in BAD_EVERYWHERE],
)
def test_a_body_that_is_bad_in_every_dialect(
    client: TestClient, path: str, body: bytes, status: int, code: str, param: str | None
) -> None:
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    assert_refused(response, status, code, param)
    assert_goes_on(client)


@pytest.mark.parametrize("path", BOTH)
def test_the_body_must_be_an_object(client: TestClient, path: str) -> None:
    response = client.post(path, json=["a"])
    assert_refused(response, 400 if path.startswith("/v1") else 422, "invalid_request", None)


def test_the_refusal_of_token_ids_names_the_remedy(client: TestClient) -> None:
    error = client.post("/v1/embeddings", json={"input": [1, 2]}).json()["error"]
    assert "check_embedding_ctx_length=False" in error["message"]


def test_the_refusal_of_an_unknown_model_lists_the_models(client: TestClient) -> None:
    error = client.post("/v1/embeddings", json={"input": "a", "model": "nope"}).json()["error"]
    assert "owner/letters" in error["message"]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": 'application/json; v=1; Charset="ISO-8859-1"'},
        {"content-type": "application/json;charset=nonsense"},
        {"content-type": "application/json;charset="},
        {"content-encoding": "gzip"},
    ],
    ids=["text", "form", "utf-16", "latin-1", "unknown", "no-charset", "gzip"],
)
def test_other_media_are_415(client: TestClient, path: str, headers: dict[str, str]) -> None:
    response = client.post(path, content=b'{"input":"a"}', headers=headers)
    assert_refused(response, 415, "unsupported_media_type", [*headers][-1])
    assert_goes_on(client)


@pytest.mark.parametrize(
    "media_type",
    [
        None,
        "application/json; charset=utf-8",
        'application/json;v="1";CHARSET="UTF8"',
        "application/json; charset=us-ascii",
        "application/json;",
        "Application/JSON",
        "application/vnd.x+json",
    ],
)
def test_json_under_any_of_its_names_is_accepted(client: TestClient, media_type: str | None) -> None:
    headers = {"content-type": media_type} if media_type else {}
    assert client.post("/v1/embeddings", content=b'{"input":"a"}', headers=headers).status_code == 200


def test_a_lane_that_does_not_exist(client: TestClient) -> None:
    response = client.post("/v1/embeddings", json={"input": "a"}, headers={"x-lane": MARKER})
    assert_refused(response, 400, "invalid_request", "x-lane")


def test_a_body_beyond_the_limit_is_413() -> None:
    client = TestClient(build_app(FakeEngine(settings=ServerSettings(max_body_bytes=1024))))
    response = client.post("/v1/embeddings", json={"input": MARKER * 100})
    assert_refused(response, 413, "request_too_large", None)
    assert "1024" in response.json()["error"]["message"]
    chunks = (MARKER.encode() for _ in range(100))
    assert_refused(client.post("/v1/embeddings", content=chunks), 413, "request_too_large", None)
    assert_goes_on(client)


def test_a_string_of_a_megabyte_is_an_input_like_any_other(client: TestClient) -> None:
    response = client.post("/v1/embeddings", json={"input": "." * 1_000_000})
    assert response.json()["data"][0]["embedding"][0] == 1_000_000


@pytest.mark.parametrize("text", ["", " ", "\n", "\x00", "\U0001f600"])
def test_odd_texts_are_inputs_like_any_other(client: TestClient, engine: FakeEngine, text: str) -> None:
    assert client.post("/v1/embeddings", json={"input": [text]}).status_code == 200
    assert engine.jobs[0].inputs == [text]


def test_an_emoji_is_the_same_written_as_a_surrogate_pair(client: TestClient, engine: FakeEngine) -> None:
    client.post("/v1/embeddings", content=b'{"input":"\\ud83d\\ude00"}')
    assert engine.jobs[0].inputs == ["\U0001f600"]


@pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/embeddings/", "/health/", "/" + "x" * 5000])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_404(client: TestClient, method: str, path: str) -> None:
    response = client.request(method, path, content=b"{}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "route_not_found"
    assert len(response.content) < 2048
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/embeddings", {"POST"}),
        ("DELETE", "/embeddings", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("PUT", "/health", {"GET", "HEAD"}),
    ],
)
def test_a_wrong_method_is_405_and_names_the_right_one(
    client: TestClient, method: str, path: str, allow: set[str]
) -> None:
    response = client.request(method, path)
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == allow
    assert response.json()["error"]["code"] == "method_not_allowed"


def test_a_bug_is_500_with_the_request_id_and_its_traceback_in_the_log(
    client: TestClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.failure = RuntimeError("a bug")
    response = client.post("/v1/embeddings", json={"input": MARKER}, headers={"x-request-id": "id-7"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "id-7" in response.json()["error"]["message"]
    assert "a bug" not in response.text
    assert "ended in a bug: RuntimeError\n" in caplog.text
    assert "in run\n    raise self.failure" in caplog.text
    assert "RuntimeError: a bug" not in caplog.text
    assert "id-7" in caplog.text
    assert MARKER not in caplog.text
    engine.failure = None
    assert_goes_on(client)


def test_no_log_line_holds_the_input(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for _, body, _, _ in INVALID:
        client.post("/v1/embeddings", content=orjson.dumps(body))
    client.post("/v1/embeddings", json={"input": MARKER})
    own = [record for record in caplog.records if record.name.startswith("cotenant")]
    assert len(own) == len(INVALID) + 1
    assert MARKER not in "".join(f"{record.getMessage()} {record.__dict__}" for record in own)
