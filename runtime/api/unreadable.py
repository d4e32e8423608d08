"""The answer to what a server's parser can't read as HTTP: like any other refusal, with a body and a request's id."""

from __future__ import annotations

import logging
from dataclasses import replace

from runtime.api.exchange import Header, request_id
from runtime.api.problems import Answer, Dialect, problem
from runtime.errors import RequestError

LOG = logging.getLogger("cotenant.api")


def unreadable(status: int) -> Answer:
    """The whole of it, for a connection that ends with it. `status`: the parser's own, from 400 up."""
    made = request_id(b"")
    LOG.info("request %s can't be read as HTTP: status %d", made, status)
    refusal = problem(RequestError("this can't be read as HTTP"), Dialect.OPENAI)
    headers: tuple[Header, ...] = (
        (b"content-type", refusal.media_type),
        (b"content-length", b"%d" % len(refusal.body)),
        (b"connection", b"close"),
        (b"x-request-id", made.encode()),
    )
    return replace(refusal, status=status, headers=(*headers, *refusal.headers))
