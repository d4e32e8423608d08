"""How long a body is waited for, on a clock that jumps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from starlette.types import Message

from runtime.api.body import BodyLimits
from runtime.api.exchange import Exchange
from runtime.clock import VirtualClock
from runtime.errors import BodyTimeout, BodyTooLarge, CotenantError, DeadlineExceeded
from runtime.simulation.event_loop import VirtualLoop

LIMITS = BodyLimits(100, stall_s=60.0, total_s=300.0)


def read(gaps_s: Iterable[float], byte: bytes = b"a", deadline_s: float | None = None) -> tuple[object, float]:
    """What comes of a body that is sent byte by byte with so many seconds before each, and when. The end comes at once.

    `deadline_s`: seconds from the start.
    """
    coming: list[tuple[float, Message]] = [
        (gap_s, {"type": "http.request", "body": byte, "more_body": True}) for gap_s in gaps_s
    ]
    coming.append((0.0, {"type": "http.request", "body": b"", "more_body": False}))

    async def receive() -> Message:
        gap_s, message = coming.pop(0)
        await asyncio.sleep(gap_s)
        return message

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def outcome() -> tuple[object, float]:
        exchange = Exchange({"method": "POST", "path": "/", "headers": []}, receive, send)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        until_s = None if deadline_s is None else time.perf_counter() + deadline_s
        try:
            found: object = await exchange.read_body(LIMITS, until_s)
        except CotenantError as error:
            found = error
        return found, loop.time() - began_s

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(VirtualClock())) as runner:
        return runner.run(outcome())


def test_a_slow_body_that_never_stalls_is_read() -> None:
    assert read([50.0] * 5) == (b"aaaaa", 250.0)


def test_a_body_that_stalls_ends_after_that_long_without_a_byte() -> None:
    error, elapsed_s = read([50.0, 50.0, 1000.0])
    assert isinstance(error, BodyTimeout)
    assert error.message == "nothing more of the body came for 60 s"
    assert elapsed_s == 160.0


def test_a_body_of_which_no_byte_ever_comes_ends_too() -> None:
    error, elapsed_s = read([1000.0])
    assert isinstance(error, BodyTimeout)
    assert elapsed_s == 60.0


def test_a_message_without_a_byte_is_no_progress() -> None:
    error, elapsed_s = read([50.0, 1000.0], byte=b"")
    assert isinstance(error, BodyTimeout)
    assert elapsed_s == 60.0


def test_a_body_that_goes_on_for_ever_ends_after_the_whole_time() -> None:
    error, elapsed_s = read([50.0] * 90)
    assert isinstance(error, BodyTimeout)
    assert error.message == "the body was not there after the 300 s that it may take"
    assert elapsed_s == 300.0


def test_the_deadline_ends_a_body_before_either_limit() -> None:
    error, elapsed_s = read([1.0] * 90, deadline_s=9.5)
    assert isinstance(error, DeadlineExceeded)
    assert 9 < elapsed_s <= 9.5


def test_a_deadline_that_has_passed_ends_what_is_not_there() -> None:
    error, elapsed_s = read([1.0], deadline_s=-1.0)
    assert isinstance(error, DeadlineExceeded)
    assert elapsed_s == 0.0


def test_a_body_that_is_there_is_read_whatever_the_deadline() -> None:
    async def check() -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"a", "more_body": False}

        async def send(message: Message) -> None:
            raise AssertionError(message)

        exchange = Exchange({"method": "POST", "path": "/", "headers": []}, receive, send)
        assert await exchange.read_body(LIMITS, time.perf_counter() - 1.0) == b"a"

    asyncio.run(check())


def test_the_size_ends_a_slow_body_too() -> None:
    error, elapsed_s = read([1.0] * 300)
    assert isinstance(error, BodyTooLarge)
    assert elapsed_s == 101.0
