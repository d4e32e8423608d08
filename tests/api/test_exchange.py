"""One exchange, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from runtime.api import exchange
from runtime.api.body import BodyLimits
from runtime.api.exchange import Exchange
from runtime.errors import BodyTooLarge, RequestCancelled

DISCONNECT: Message = {"type": "http.disconnect"}


def chunk(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


class Wire:
    """A server's side of one exchange: messages to receive, and what was sent."""

    def __init__(self, *incoming: Message, headers: dict[bytes, bytes] | None = None) -> None:
        self.incoming = list(incoming)
        self.received = 0
        self.sent: list[Message] = []
        self.hung_up = asyncio.Event()
        scope = {"method": "POST", "path": "/", "headers": list((headers or {}).items())}
        self.exchange = Exchange(scope, self.receive, self.send)

    async def receive(self) -> Message:
        self.received += 1
        if self.incoming:
            return self.incoming.pop(0)
        await self.hung_up.wait()
        return DISCONNECT

    async def send(self, message: Message) -> None:
        self.sent.append(message)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_body_is_joined_from_its_chunks() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"ab"), chunk(b"cd"), chunk(b"", more=False))
        assert await wire.exchange.read_body(BodyLimits(4)) == b"abcd"

    run(check)


def test_an_announced_body_is_refused_unread() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"abcde", more=False), headers={b"content-length": b"5"})
        with pytest.raises(BodyTooLarge):
            await wire.exchange.read_body(BodyLimits(4))
        assert wire.received == 0

    run(check)


def test_an_unannounced_body_is_refused_at_the_byte_that_is_too_many() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"abc"), chunk(b"de"), chunk(b"fg", more=False))
        with pytest.raises(BodyTooLarge):
            await wire.exchange.read_body(BodyLimits(4))
        assert wire.received == 2

    run(check)


def test_a_hang_up_within_the_body_cancels_the_request() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"abc"), DISCONNECT)
        with pytest.raises(RequestCancelled):
            await wire.exchange.read_body(BodyLimits(100))

    run(check)


def test_an_answer_is_one_start_and_one_body_with_its_length() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"", more=False), headers={b"x-request-id": b"id-7"})
        await wire.exchange.read_body(BodyLimits(1))
        await wire.exchange.respond(200, [(b"x-a", b"b")], b"{}")
        start, body = wire.sent
        assert start["headers"] == [
            (b"content-type", b"application/json"),
            (b"content-length", b"2"),
            (b"x-a", b"b"),
            (b"x-request-id", b"id-7"),
        ]
        assert body == {"type": "http.response.body", "body": b"{}"}

    run(check)


def test_an_answer_ends_after_the_unread_body() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"ab"), chunk(b"cd", more=False))
        await wire.exchange.respond(413, [], b"{}")
        assert wire.sent[1:] == [
            {"type": "http.response.body", "body": b"{}", "more_body": True},
            {"type": "http.response.body"},
        ]
        assert wire.incoming == []

    run(check)


def test_what_exceeds_the_linger_is_discarded_while_the_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LINGER_BYTES", 0)

    async def check() -> None:
        wire = Wire(chunk(b"ab"), chunk(b"cd"), chunk(b"ef"))
        drained = asyncio.Event()
        end: Message = {"type": "http.response.body"}

        async def receive() -> Message:
            if not wire.incoming:
                drained.set()
            return await wire.receive()

        async def send(message: Message) -> None:
            if message == end:
                await drained.wait()  # as a server does whose queue of unread body is full
            await wire.send(message)

        answered = Exchange({"method": "POST", "path": "/", "headers": []}, receive, send)
        async with asyncio.timeout(20):
            await answered.respond(413, [], b"{}")
        assert wire.sent[-1] == end

    run(check)


def test_work_goes_on_while_the_client_waits() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"", more=False))
        await wire.exchange.read_body(BodyLimits(1))
        assert await wire.exchange.while_connected(asyncio.sleep(0, "done")) == "done"
        assert not wire.exchange.disconnected

    run(check)


def test_a_hang_up_cancels_the_work() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"", more=False))
        await wire.exchange.read_body(BodyLimits(1))
        cancelled = asyncio.Event()

        async def work() -> None:
            wire.hung_up.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        with pytest.raises(RequestCancelled):
            await wire.exchange.while_connected(work())
        assert cancelled.is_set()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0  # the task itself is free to go on

    run(check)


def test_a_cancel_from_the_server_stays_a_cancel() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"", more=False))
        await wire.exchange.read_body(BodyLimits(1))
        request = asyncio.create_task(wire.exchange.while_connected(asyncio.sleep(60)))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert request.cancelled()

    run(check)


def test_a_cancel_from_the_server_wins_over_a_hang_up() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"", more=False))
        await wire.exchange.read_body(BodyLimits(1))

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                request.cancel()

        request = asyncio.create_task(wire.exchange.while_connected(work()))
        wire.hung_up.set()
        with pytest.raises(asyncio.CancelledError):
            await request

    run(check)


def test_the_work_s_own_error_comes_through() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"", more=False))
        await wire.exchange.read_body(BodyLimits(1))

        async def work() -> None:
            raise ValueError("its own")

        with pytest.raises(ValueError, match="its own"):
            await wire.exchange.while_connected(work())

    run(check)


def test_a_part_has_a_body_of_its_own_and_never_hears_of_a_hang_up() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"whole", more=False))
        assert await wire.exchange.read_body(BodyLimits(100)) == b"whole"
        part = wire.exchange.part(b"part")
        assert await part.read_body(BodyLimits(1)) == b"part"
        wire.hung_up.set()
        assert await part.while_connected(asyncio.sleep(0.01, 7)) == 7
        with pytest.raises(RequestCancelled):
            await wire.exchange.while_connected(asyncio.sleep(30))
        assert (part.request_id, part.disconnected) == (wire.exchange.request_id, False)

    run(check)


def test_a_body_that_was_handed_back_is_read_again() -> None:
    async def check() -> None:
        wire = Wire(chunk(b"whole", more=False))
        wire.exchange.body = await wire.exchange.read_body(BodyLimits(100))
        assert await wire.exchange.read_body(BodyLimits(100)) == b"whole"

    run(check)
