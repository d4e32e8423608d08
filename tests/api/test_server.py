"""Listening: the port, and what can be wrong with it."""

from __future__ import annotations

import asyncio
import importlib.util
import socket

import pytest
from starlette.types import Receive, Scope, Send

from runtime.api import server
from runtime.api.listening import listen
from runtime.api.server import serve
from runtime.errors import ConfigurationError
from runtime.registry import ServerSettings
from tests.api.live import SERVERS, WAIT_S, HttpServer


async def absent(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that nobody calls."""


def test_port_0_takes_a_free_one() -> None:
    with listen("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert host == "127.0.0.1"
    assert port > 0


def test_a_port_in_use_is_a_configuration_error() -> None:
    with (
        listen("127.0.0.1", 0) as listener,
        pytest.raises(ConfigurationError, match=r"127\.0\.0\.1 port \d+: Address already in use"),
    ):
        listen(*listener.getsockname())


def test_a_host_without_an_address_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="no-such-host"):
        listen("no-such-host.invalid", 0)


def test_uvicorn_that_is_not_installed_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"cotenant\[uvicorn\]"):
        asyncio.run(serve(absent, ServerSettings(port=0, http="uvicorn"), asyncio.Event()))


@pytest.mark.parametrize("http", SERVERS)
def test_a_request_that_never_ends_does_not_hold_the_stop(http: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GRACE_MARGIN_S", 0.1)
    settings = ServerSettings(port=0, http=http, drain_timeout_s=0)
    asyncio.run(stop_with_a_request_in_flight(settings))


async def stop_with_a_request_in_flight(settings: ServerSettings) -> None:
    stop, started = asyncio.Event(), asyncio.Event()
    port = asyncio.get_running_loop().create_future()

    async def stuck(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            started.set()
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve(stuck, settings, stop, on_bound=lambda _, bound: port.set_result(bound)))
    async with asyncio.timeout(WAIT_S):
        _, writer = await asyncio.open_connection("127.0.0.1", await port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await started.wait()
        stop.set()
        await serving
        writer.close()
