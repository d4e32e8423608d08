"""An engine with a beginning and an end, a process around it, and what tests ask of both."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from runtime.api import lifecycle, server
from runtime.errors import ConfigurationError
from runtime.registry import ModelSpec, ServerSettings
from tests.fakes import FakeEngine, status

ROOT = Path(__file__).parent.parent.parent
WAIT_S = 20.0
CLIENTS = 16


class LivingEngine(FakeEngine):
    """A fake engine with a beginning and an end, which writes down what happened."""

    def __init__(self, *specs: ModelSpec, settings: ServerSettings | None = None) -> None:
        super().__init__(*specs, settings=settings)
        self.ready = False
        self.statuses = [status(model, state="loading", loaded_s=None) for model in self.specs]
        self.loaded = asyncio.Event()
        self.device_error: ConfigurationError | None = None
        self.events: list[str] = []

    async def start(self) -> None:
        self.events.append("start")

    async def wait_loaded(self) -> None:
        await self.loaded.wait()
        if self.device_error is not None:
            raise self.device_error

    def finish_loading(self, **states: str) -> None:
        """Give every model its state, by id; the others are ready."""
        self.statuses = [
            status(model, state=states.get(model.id, "ready"), detail=f"why {model.id} is as it is")
            for model in self.specs
        ]
        self.ready = not states
        self.loaded.set()

    def begin_retire(self) -> None:
        self.events.append("begin_retire")
        self.retiring, self.ready = True, False

    def begin_drain(self) -> None:
        self.events.append("begin_drain")
        self.draining, self.ready = True, False

    async def stop(self) -> None:
        self.events.append("stop")


Scene = Callable[[LivingEngine, str], Awaitable[None]]
Play = Callable[[LivingEngine, Scene], str]


async def get(url: str) -> tuple[int, Any]:
    """Status and JSON."""

    def fetch() -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return await asyncio.to_thread(fetch)


async def embed(url: str, model: str | None = None) -> int:
    """The status of one embedding request."""
    body = json.dumps({"input": "some text", "model": model}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"content-type": "application/json"})

    def post() -> int:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return int(answer.status)

    return await asyncio.to_thread(post)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def player(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    """A way to serve an engine while a scene, given the engine and the URL, goes on; it returns what was printed."""

    async def both(engine: LivingEngine, scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(CLIENTS))
        bound: asyncio.Future[str] = loop.create_future()

        async def serve(
            app: ASGIApp, settings: ServerSettings, stop: asyncio.Event, *, on_bound: server.OnBound
        ) -> None:
            def note(host: str, port: int) -> None:
                bound.set_result(f"http://{host}:{port}")
                on_bound(host, port)

            await server.serve(app, settings, stop, on_bound=note)

        monkeypatch.setattr(lifecycle, "serve", serve)
        async with asyncio.timeout(WAIT_S):
            serving = asyncio.create_task(lifecycle.serve_engine(engine, None, time.perf_counter()))
            await scene(engine, await bound)
            await serving

    def play(engine: LivingEngine, scene: Scene) -> str:
        asyncio.run(both(engine, scene))
        return capsys.readouterr().out

    return play
