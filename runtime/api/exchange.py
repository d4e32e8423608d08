"""One HTTP exchange over ASGI: read a bounded body in bounded time, notice a hang-up, send one answer.

Knows no routes and no dialects.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import re
import time
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from runtime.api.body import BodyLimits, Patience
from runtime.api.identity import Caller, unauthenticated
from runtime.errors import RequestCancelled

T = TypeVar("T")
Header = tuple[bytes, bytes]

SANE_ID = re.compile(rb"[\w.:/+=@-]{1,128}")
LINGER_BYTES = 64 * 2**20
LINGER_S = 5.0
"""How much of a refused body is read and thrown away, so that a client which sends all before it reads meets
its answer and not a reset connection."""


class Exchange:
    """A request and its answer. Used by one task, once."""

    __slots__ = (
        "_body_ended",
        "_body_given_up",
        "_declared_bytes",
        "_is_http1",
        "_receive",
        "_send",
        "addressed",
        "answered",
        "body",
        "caller",
        "disconnected",
        "headers",
        "method",
        "path",
        "query",
        "request_id",
        "started",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = time.perf_counter()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: dict[str, str] = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        """The URL's query; of a name that stands twice, the last."""
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.addressed: str | None = scope.get("cotenant.model")
        """The model's name that the path or the port gave; see `addressing`."""
        self.caller: Caller | None = None
        """Whose key the request has, once the app has looked; None: nobody's."""
        self.request_id = request_id(self.headers.get(b"x-request-id", b""))
        self.answered: float | None = None
        """When the answer was sent, where then the rest of the body is waited for."""
        self.status: int | None = None
        """The status once it is on the wire."""
        self.disconnected = False
        self.body: bytes | None = None
        """A body that was read and is to be read again, by whoever answers it."""
        self._body_ended = False
        self._body_given_up = False
        """Nothing more of it is waited for."""
        declared = self.headers.get(b"content-length", b"")
        self._declared_bytes = int(declared) if declared.isdigit() else None
        self._is_http1 = scope.get("http_version", "1.1").startswith("1")
        self._receive = receive
        self._send = send

    def require_caller(self) -> Caller:
        """Whose key the request has. Raises Unauthenticated where it is nobody's."""
        if self.caller is None:
            raise unauthenticated(self.headers)
        return self.caller

    def part(self, body: bytes) -> Exchange:
        """A request within this one, with a body of its own. It never hears of a hang-up: this one does."""
        part = copy.copy(self)
        part.body = body
        part._receive = _silence
        return part

    async def receive(self) -> Message:
        """ASGI's `receive`, which remembers whether the body has ended and the client has gone."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.disconnected = self._body_ended = True
        elif not message.get("more_body", False):
            self._body_ended = True
        return message

    async def send(self, message: Message) -> None:
        """ASGI's `send`, which adds the request's id and reads off what is left of an unread body.

        A server may block for ever when the answer ends while its queue of unread body is full, and closing a
        socket with unread bytes takes the answer back.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
            if self._will_be_cut_off:
                message["headers"].append((b"connection", b"close"))
        elif not self._body_ended and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            self.answered = time.perf_counter()
            await self._linger()
            message = {"type": "http.response.body"}
            if not self._body_ended:
                await self._send_while_discarding(message)
                return
        await self._send(message)

    @property
    def _will_be_cut_off(self) -> bool:
        """Whether the body won't be read to its end after the answer. HTTP/2 has no such header, nor need of it."""
        is_long = (self._declared_bytes or 0) > LINGER_BYTES
        return self._is_http1 and not self._body_ended and (self._body_given_up or is_long)

    async def respond(
        self, status: int, headers: Iterable[Header], body: bytes, media_type: bytes = b"application/json"
    ) -> None:
        """Send an answer whole: one start with `content-length`, one body."""
        fields = [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), *headers]
        await self.send({"type": "http.response.start", "status": status, "headers": fields})
        await self.send({"type": "http.response.body", "body": body})

    async def read_body(self, limits: BodyLimits, deadline_s: float | None = None) -> bytes:
        """The whole body. `deadline_s`: the request's own, if it has one, on `time.perf_counter`'s clock.

        Raises BodyTooLarge as soon as that is known, BodyTimeout or DeadlineExceeded where it does not come in time,
        RequestCancelled on a hang-up.
        """
        if self.body is not None:
            return self.body
        if self._declared_bytes is not None and self._declared_bytes > limits.max_bytes:
            raise limits.too_large()
        patience = Patience(limits, deadline_s)
        timer = patience.timer()
        try:
            async with timer:
                body = await self._read(limits, patience, timer)
        except TimeoutError:
            self._body_given_up = True
            raise patience.refusal(timer) from None
        if self.disconnected:
            raise RequestCancelled("the client hung up while it sent the body")
        return body

    async def _read(self, limits: BodyLimits, patience: Patience, timer: asyncio.Timeout) -> bytes:
        """What comes until the body's end or the client's; `timer` is put off with each chunk."""
        chunks: list[bytes] = []
        size = 0
        while not self._body_ended:
            chunk: bytes = (await self.receive()).get("body", b"")
            size += len(chunk)
            if size > limits.max_bytes:
                raise limits.too_large()
            chunks.append(chunk)
            if chunk and not self._body_ended:
                patience.prolong(timer)
        return b"".join(chunks)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`, which is cancelled when the client hangs up; that raises RequestCancelled.

        The body must have been read. Runs `work` in the caller's own task: a second task costs more than the
        rest of this module.
        """
        task = asyncio.current_task()
        assert task is not None
        watcher = asyncio.create_task(self._cancel_on_disconnect(task))
        try:
            return await work
        except asyncio.CancelledError:
            if self.disconnected and task.uncancel() == 0:
                raise RequestCancelled("the client hung up while it waited") from None
            raise
        finally:
            watcher.cancel()

    async def _cancel_on_disconnect(self, task: asyncio.Task[Any]) -> None:
        while not self.disconnected:
            await self.receive()
        task.cancel()

    async def _linger(self) -> None:
        budget_bytes = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self._body_ended and budget_bytes > 0:
                    budget_bytes -= len((await self.receive()).get("body", b""))

    async def _send_while_discarding(self, message: Message) -> None:
        discard = asyncio.create_task(self._discard())
        try:
            await self._send(message)
        finally:
            discard.cancel()

    async def _discard(self) -> None:
        while not self.disconnected:
            await self.receive()


async def _silence() -> Message:
    """Never ends."""
    return await asyncio.Future()


def request_id(incoming: bytes) -> str:
    """The caller's id if it is short and plain, else a new one."""
    return incoming.decode("ascii") if SANE_ID.fullmatch(incoming) else os.urandom(16).hex()
