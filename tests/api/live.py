"""The edge over a real socket, served by a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import pytest

from runtime.api import server
from runtime.api.app import build_app
from runtime.api.listening import Listening
from runtime.registry import ServerSettings
from tests.fakes import FakeEngine

T = TypeVar("T")

WAIT_S = 20.0
"""Longest that anything here may take before the test fails."""

HttpServer = Literal["hypercorn", "uvicorn"]
SERVERS: tuple[HttpServer, ...] = ("hypercorn", "uvicorn")


class LiveServer:
    """A server that listens on 127.0.0.1 until its `with` block ends."""

    def __init__(self, engine: FakeEngine, http: HttpServer) -> None:
        self.engine = engine
        self.settings = engine.config.server.model_copy(update={"port": 0, "http": http})
        self.port = 0
        self.listening: Listening
        self.loop = asyncio.new_event_loop()
        self.stop_event: asyncio.Event | None = None
        self.bound = threading.Event()
        self.thread = threading.Thread(target=self._run, name="live-server")
        self.failure: BaseException | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, action: Callable[[], T]) -> T:
        """`action`'s outcome, run on the server's loop."""
        outcome = asyncio.run_coroutine_threadsafe(_call(action), self.loop)
        return outcome.result(WAIT_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition`, looked at on the server's loop, holds."""
        asyncio.run_coroutine_threadsafe(_until(condition), self.loop).result(WAIT_S)

    def stop(self) -> None:
        """Ask the server to end; requests in flight go on."""
        assert self.stop_event is not None
        self.call(self.stop_event.set)

    def _run(self) -> None:
        try:
            with contextlib.closing(self.loop):
                self.loop.run_until_complete(self._serve())
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
        except BaseException as error:
            self.failure = error
        finally:
            self.bound.set()

    async def _serve(self) -> None:
        self.stop_event = asyncio.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "Listening", self._listen)
            await server.serve(build_app(self.engine), self.settings, self.stop_event, on_bound=self._on_bound)

    def _listen(self, settings: ServerSettings) -> Listening:
        self.listening = Listening(settings)
        return self.listening

    def _on_bound(self, host: str, port: int) -> None:
        assert host in ("127.0.0.1", self.settings.uds)
        self.port = port
        self.bound.set()


async def _call(action: Callable[[], T]) -> T:
    return action()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def live_server(engine: FakeEngine, http: HttpServer = "hypercorn") -> Iterator[LiveServer]:
    """A running server."""
    live = LiveServer(engine, http)
    live.thread.start()
    assert live.bound.wait(WAIT_S)
    try:
        yield live
    finally:
        if live.thread.is_alive():
            live.stop()
        live.thread.join(WAIT_S)
        assert not live.thread.is_alive()
    assert live.failure is None
