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


TREE = [kind for kind in subclasses(errors.CotenantError) if kind.__module__ == errors.__name__]
NESTED = [dialect for dialect in Dialect if dialect is not Dialect.TEI]
"""Dialects whose `error` is an object."""
REQUEST_ERRORS = [kind for kind in TREE if issubclass(kind, errors.RequestError)]


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [vars(kind)["code"] for kind in TREE if kind is not errors.InvalidRequest]
    assert len(set(codes)) == len(codes)
    # The two of one code: InvalidRequest is what a RequestError of no further kind is called on the wire.
    assert errors.InvalidRequest.code == errors.RequestError.code


@pytest.mark.parametrize("dialect", NESTED)
@pytest.mark.parametrize("kind", TREE)
def test_every_error_renders_in_every_dialect(kind: type[errors.CotenantError], dialect: Dialect) -> None:
    answer = problem(kind("what went wrong"), dialect)
    body = orjson.loads(answer.body)["error"]
    assert 400 <= answer.status < 600
    assert (body["message"], body["code"], body["type"]) == ("what went wrong", kind.code, kind.kind)
    assert body["param"] == kind.param


@pytest.mark.parametrize("dialect", NESTED)
@pytest.mark.parametrize("message", ["x" * 10_000, "😀" * 5_000, '"\\\n' * 5_000], ids=["plain", "wide", "escaped"])
def test_an_endless_message_is_cut(message: str, dialect: Dialect) -> None:
    answer = problem(errors.InvalidRequest(message), dialect)
    assert len(answer.body) < MAX_BODY_BYTES
    assert orjson.loads(answer.body)["error"]["message"].endswith("…")


@pytest.mark.parametrize(
    ("kind", "openai", "infinity"),
    [
        (errors.InvalidRequest, 400, 422),
        (errors.TooManyInputs, 400, 422),
        (errors.InvalidEncoding, 400, 422),
        (errors.EmptyInput, 422, 422),
        (errors.InvalidDimensions, 400, 400),
        (errors.TokenIdsNotAccepted, 400, 400),
        (errors.InputTooLong, 400, 400),
        (errors.UnknownPrompt, 400, 400),
        (errors.InvalidJson, 400, 400),
        (errors.ModelNotFound, 404, 404),
        (errors.UnsupportedMediaType, 415, 415),
        (errors.BodyTooLarge, 413, 413),
        (errors.QueueFull, 429, 429),
        (errors.ModelLoading, 503, 503),
        (errors.ForwardFailed, 500, 500),
    ],
)
def test_statuses_by_dialect(kind: type[errors.CotenantError], openai: int, infinity: int) -> None:
    assert problem(kind("no"), Dialect.OPENAI).status == openai
    assert problem(kind("no"), Dialect.INFINITY).status == infinity


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
    assert dict(problem(kind("no"), Dialect.OPENAI).headers) == {b"x-should-retry": b"false"}


@pytest.mark.parametrize("kind", [errors.ForwardFailed, errors.OutOfMemory, errors.QueueFull])
def test_what_may_pass_leaves_retrying_to_the_client(kind: type[errors.CotenantError]) -> None:
    assert b"x-should-retry" not in dict(problem(kind("no"), Dialect.OPENAI).headers)


def test_a_bug_shows_only_where_to_look() -> None:
    answer = internal_problem("id-7", Dialect.OPENAI)
    body = orjson.loads(answer.body)["error"]
    assert answer.status == 500
    assert (body["code"], body["type"]) == ("internal_error", "server_error")
    assert "id-7" in body["message"]
