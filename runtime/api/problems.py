"""The one place where the error tree becomes HTTP: status, headers and body, a dialect at a time."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import orjson

from runtime.api.exchange import Header
from runtime.errors import (
    BodyTimeout,
    CapacityError,
    CotenantError,
    DeadlineExceeded,
    DoesNotFit,
    EmptyInput,
    ExecutionError,
    InputTooLong,
    InvalidDimensions,
    InvalidRequest,
    ModelFailed,
    QueueFull,
    RateLimited,
    RequestError,
    TokenIdsNotAccepted,
    Unauthenticated,
    UnknownPrompt,
    UnsupportedCapability,
)

MAX_BODY_BYTES = 2048

BAD_REQUEST_EVERYWHERE = (InvalidDimensions, TokenIdsNotAccepted, InputTooLong, UnknownPrompt)
"""Kinds of InvalidRequest that are 400 in every dialect: the body fits the schema, the model can't oblige."""

PERMANENT = (RequestError, DoesNotFit, ModelFailed)
"""What the same request will meet again: clients that know `x-should-retry` then stop at once."""


class Dialect(enum.StrEnum):
    """Whose conventions an answer follows; also the `surface` label in metrics."""

    OPENAI = "openai"
    INFINITY = "infinity"
    TEI = "tei"
    COHERE = "cohere"
    """Jina's clients too."""
    VOYAGE = "voyage"
    VLLM = "vllm"
    WEAVIATE = "weaviate"


BAD_REQUEST_ALWAYS = frozenset({Dialect.COHERE, Dialect.VOYAGE, Dialect.VLLM, Dialect.WEAVIATE})
"""Dialects that know no 422."""

UNAVAILABLE = (CapacityError, ModelFailed, DoesNotFit)
TEI_KINDS: tuple[tuple[str, tuple[type[CotenantError], ...]], ...] = (
    ("Empty", (EmptyInput,)),
    ("Backend", (UnsupportedCapability,)),
    ("Validation", (RequestError,)),
    ("Overloaded", (QueueFull, RateLimited, DeadlineExceeded, BodyTimeout)),
    ("Unhealthy", UNAVAILABLE),
    ("Backend", (CotenantError,)),
)
"""TEI's `error_type`, the first whose classes fit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes on the wire, whatever server sends it."""

    status: int
    headers: tuple[Header, ...]
    body: bytes
    media_type: bytes = b"application/json"


def problem(error: CotenantError, dialect: Dialect) -> Answer:
    """The answer to a request that ended in `error`; its body is under 2 KiB whatever the message."""
    message = error.message
    status = status_of(error, dialect)
    while len(body := orjson.dumps(body_of(error, message, dialect))) >= MAX_BODY_BYTES:
        message = message[: len(message) * 3 // 4] + "…"
    return Answer(status, tuple(headers_of(error)), body)


def internal_problem(request_id: str, dialect: Dialect) -> Answer:
    """The answer where a bug ended the request: it names only where to look."""
    message = f"internal error; the server's log has it under the request id {request_id}"
    return problem(CotenantError(message), dialect)


def status_of(error: CotenantError, dialect: Dialect) -> int:
    """The error's own status, but what the dialect's clients expect for schema errors, and TEI's 424."""
    if dialect is Dialect.TEI:
        return tei_status(error)
    if isinstance(error, InvalidRequest) and dialect in BAD_REQUEST_ALWAYS:
        return 400
    schema_error = isinstance(error, InvalidRequest) and not isinstance(error, BAD_REQUEST_EVERYWHERE)
    return 422 if schema_error and dialect is Dialect.INFINITY else error.status


def tei_status(error: CotenantError) -> int:
    """TEI 1.9's: 400 for an empty batch, 422 for other bad input, 424 where the model can't or fails."""
    if isinstance(error, InvalidRequest):
        return 400 if isinstance(error, EmptyInput) else 422
    if isinstance(error, UnsupportedCapability | ExecutionError) and not isinstance(error, UNAVAILABLE):
        return 424
    return error.status


def headers_of(error: CotenantError) -> list[Header]:
    """When to try again (RFC 9110 `Retry-After`, whole seconds; OpenAI's `retry-after-ms`), or never; 401's scheme."""
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", b"Bearer"), (b"x-should-retry", b"false")]
    if isinstance(error, PERMANENT):
        return [(b"x-should-retry", b"false")]
    if error.retry_after_s is None:
        return []
    seconds = max(error.retry_after_s, 0.0)
    return [
        (b"retry-after", b"%d" % max(math.ceil(seconds), 1)),
        (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)),
    ]


def body_of(error: CotenantError, message: str, dialect: Dialect) -> dict[str, Any]:
    """OpenAI's error object with what the dialect's clients read beside it; TEI's and Weaviate's flat texts."""
    if dialect is Dialect.TEI:
        return {"error": message, "error_type": tei_kind(error)}
    if dialect is Dialect.WEAVIATE:
        return {"error": message}
    body: dict[str, Any] = {"error": {"message": message, "type": error.kind, "param": error.param, "code": error.code}}
    if dialect is Dialect.COHERE:
        body["message"] = message
    if dialect in (Dialect.COHERE, Dialect.VOYAGE):
        body["detail"] = message
    elif dialect is Dialect.INFINITY and isinstance(error, InvalidRequest):
        location = ["body", error.param] if error.param else ["body"]
        body["detail"] = [{"type": error.code, "loc": location, "msg": message}]
    return body


def tei_kind(error: CotenantError) -> str:
    """TEI's `error_type`."""
    return next(kind for kind, classes in TEI_KINDS if isinstance(error, classes))
