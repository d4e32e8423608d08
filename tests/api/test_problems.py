"""The error tree as HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from runtime import errors
from runtime.api.problems import MAX_BODY_BYTES, Dialect, internal_problem, problem


def subclasses(root: type[errors.CotenantError]) -> Iterator[type[errors.CotenantError]]:
    yield root
    for child in root.__subclasses__():
        yield from subclasses(child)


TREE = [kind for kind in subclasses(errors.CotenantError) if kind.__module__.startswith(errors.__name__)]
FLAT = (Dialect.TEI, Dialect.WEAVIATE)
"""Dialects whose `error` is a text."""
REQUEST_ERRORS = [kind for kind in TREE if issubclass(kind, errors.RequestError)]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [vars(kind)["code"] for kind in TREE if kind is not errors.InvalidRequest]
    assert len(set(codes)) == len(codes)
    # The two of one code: InvalidRequest is what a RequestError of no further kind is called on the wire.
    assert errors.InvalidRequest.code == errors.RequestError.code


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("kind", TREE)
def test_every_error_renders_in_every_dialect(kind: type[errors.CotenantError], dialect: Dialect) -> None:
    answer = problem(kind("what went wrong"), dialect)
    error = orjson.loads(answer.body)["error"]
    assert 400 <= answer.status < 600
    if dialect in FLAT:
        assert error == "what went wrong"
        return
    assert (error["message"], error["code"], error["type"]) == ("what went wrong", kind.code, kind.kind)
    assert error["param"] == kind.param


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("message", ["x" * 10_000, "😀" * 5_000, '"\\\n' * 5_000], ids=["plain", "wide", "escaped"])
def test_an_endless_message_is_cut(message: str, dialect: Dialect) -> None:
    answer = problem(errors.InvalidRequest(message), dialect)
    assert len(answer.body) < MAX_BODY_BYTES
    error = orjson.loads(answer.body)["error"]
    assert (error if dialect in FLAT else error["message"]).endswith("…")


@pytest.mark.parametrize(
    ("kind", "openai", "infinity", "tei", "others"),
    [
        (errors.InvalidRequest, 400, 422, 422, 400),
        (errors.TooManyInputs, 400, 422, 422, 400),
        (errors.TooManyDocuments, 400, 422, 422, 400),
        (errors.InvalidEncoding, 400, 422, 422, 400),
        (errors.EmptyInput, 422, 422, 400, 400),
        (errors.InvalidDimensions, 400, 400, 422, 400),
        (errors.TokenIdsNotAccepted, 400, 400, 422, 400),
        (errors.InputTooLong, 400, 400, 422, 400),
        (errors.UnknownPrompt, 400, 400, 422, 400),
        (errors.InvalidJson, 400, 400, 400, 400),
        (errors.ModelRequired, 400, 400, 400, 400),
        (errors.ModelNotFound, 404, 404, 404, 404),
        (errors.UnsupportedCapability, 400, 400, 424, 400),
        (errors.UnsupportedMediaType, 415, 415, 415, 415),
        (errors.BodyTooLarge, 413, 413, 413, 413),
        (errors.QueueFull, 429, 429, 429, 429),
        (errors.ModelLoading, 503, 503, 503, 503),
        (errors.ModelFailed, 503, 503, 503, 503),
        (errors.DoesNotFit, 503, 503, 503, 503),
        (errors.OutOfMemory, 503, 503, 424, 503),
        (errors.ForwardFailed, 500, 500, 424, 500),
        (errors.BodyTimeout, 408, 408, 408, 408),
        (errors.NonFiniteOutput, 500, 500, 424, 500),
    ],
)
def test_statuses_by_dialect(
    kind: type[errors.CotenantError], openai: int, infinity: int, tei: int, others: int
) -> None:
    assert problem(kind("no"), Dialect.OPENAI).status == openai
    assert problem(kind("no"), Dialect.INFINITY).status == infinity
    assert problem(kind("no"), Dialect.TEI).status == tei
    for dialect in (Dialect.COHERE, Dialect.VOYAGE, Dialect.VLLM, Dialect.WEAVIATE):
        assert problem(kind("no"), dialect).status == others


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (errors.EmptyInput, "Empty"),
        (errors.InvalidRequest, "Validation"),
        (errors.InvalidJson, "Validation"),
        (errors.ModelNotFound, "Validation"),
        (errors.BodyTooLarge, "Validation"),
        (errors.UnsupportedCapability, "Backend"),
        (errors.QueueFull, "Overloaded"),
        (errors.BodyTimeout, "Overloaded"),
        (errors.ModelLoading, "Unhealthy"),
        (errors.Draining, "Unhealthy"),
        (errors.ModelFailed, "Unhealthy"),
        (errors.DoesNotFit, "Unhealthy"),
        (errors.OutOfMemory, "Backend"),
        (errors.ForwardFailed, "Backend"),
    ],
)
def test_tei_s_clients_get_a_text_and_a_type(kind: type[errors.CotenantError], expected: str) -> None:
    body = orjson.loads(problem(kind("no"), Dialect.TEI).body)
    assert body == {"error": "no", "error_type": expected}


def test_what_other_clients_read_stands_beside_the_error() -> None:
    error = {"message": "no", "type": "invalid_request_error", "param": "documents", "code": "too_many_documents"}
    bodies = {d: orjson.loads(problem(errors.TooManyDocuments("no"), d).body) for d in Dialect if d not in FLAT}
    assert bodies.pop(Dialect.INFINITY)["detail"][0]["loc"] == ["body", "documents"]
    assert bodies == {
        Dialect.OPENAI: {"error": error},
        Dialect.VLLM: {"error": error},
        Dialect.COHERE: {"error": error, "message": "no", "detail": "no"},
        Dialect.VOYAGE: {"error": error, "detail": "no"},
    }
    assert orjson.loads(problem(errors.TooManyDocuments("no"), Dialect.WEAVIATE).body) == {"error": "no"}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, {b"retry-after": b"1", b"retry-after-ms": b"0"}),
        (0.25, {b"retry-after": b"1", b"retry-after-ms": b"250"}),
        (2.1, {b"retry-after": b"3", b"retry-after-ms": b"2100"}),
        (30, {b"retry-after": b"30", b"retry-after-ms": b"30000"}),
    ],
)
def test_capacity_errors_say_when_to_try_again(seconds: float, expected: dict[bytes, bytes]) -> None:
    answer = problem(errors.QueueFull("full", retry_after_s=seconds), Dialect.OPENAI)
    assert dict(answer.headers) == expected


def test_every_capacity_error_has_a_default_wait() -> None:
    for kind in subclasses(errors.CapacityError):
        promised = b"retry-after" in dict(problem(kind("later"), Dialect.OPENAI).headers)
        assert promised


@pytest.mark.parametrize("kind", [*REQUEST_ERRORS, errors.DoesNotFit, errors.ModelFailed])
def test_permanent_refusals_say_not_to_try_again(kind: type[errors.CotenantError]) -> None:
    scheme = {b"www-authenticate": b"Bearer"} if kind is errors.Unauthenticated else {}
    assert dict(problem(kind("no"), Dialect.OPENAI).headers) == {b"x-should-retry": b"false"} | scheme


@pytest.mark.parametrize("kind", [errors.ForwardFailed, errors.OutOfMemory, errors.QueueFull])
def test_what_may_pass_leaves_retrying_to_the_client(kind: type[errors.CotenantError]) -> None:
    assert b"x-should-retry" not in dict(problem(kind("no"), Dialect.OPENAI).headers)


def test_a_bug_shows_only_where_to_look() -> None:
    answer = internal_problem("id-7", Dialect.OPENAI)
    body = orjson.loads(answer.body)["error"]
    assert answer.status == 500
    assert (body["code"], body["type"]) == ("internal_error", "server_error")
    assert "id-7" in body["message"]


KINDS: dict[str, list[type[errors.CotenantError]]] = {
    "invalid_request_error": [errors.InvalidJson, errors.InvalidRequest, errors.BodyTooLarge, errors.ModelRequired],
    "not_found_error": [errors.ModelNotFound, errors.RouteNotFound],
    "overloaded_error": [errors.QueueFull, errors.ModelLoading, errors.NoRoomNow, errors.Draining],
    "rate_limit_error": [errors.RateLimited],
    "server_error": [errors.ForwardFailed, errors.NonFiniteOutput, errors.OutOfMemory, errors.CotenantError],
    "timeout_error": [errors.DeadlineExceeded],
    "authentication_error": [errors.Unauthenticated],
    "permission_error": [errors.Forbidden, errors.AdminRefused],
}
"""OpenAI's `type`, which its clients show."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_of_the_type_that_openai_s_clients_know(kind: str) -> None:
    for each in KINDS[kind]:
        assert orjson.loads(problem(each("message"), Dialect.OPENAI).body)["error"]["type"] == kind
