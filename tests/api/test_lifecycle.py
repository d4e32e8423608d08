"""A serving process from the port's opening to its end, over a fake engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
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
from runtime.api.lifecycle import summary
from runtime.api.listening import listen
from runtime.errors import ConfigurationError, StartupError
from runtime.registry import ModelSpec, ServerSettings
from tests.fakes import FakeEngine, spec, status

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

    def begin_drain(self) -> None:
        self.events.append("begin_drain")
        self.draining, self.ready = True, False

    async def stop(self) -> None:
        self.events.append("stop")


Scene = Callable[[LivingEngine, str], Awaitable[None]]
Play = Callable[[LivingEngine, Scene], str]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    """Serve an engine while a scene, given the engine and the URL, goes on; then what was printed."""

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


def test_the_port_answers_while_models_load(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        assert (await get(f"{url}/health"))[0] == 200
        code, answer = await get(f"{url}/ready")
        assert (code, answer["status"], answer["models"][0]["state"]) == (503, "not_ready", "loading")
        assert engine.events == ["start"]
        engine.finish_loading()
        await asyncio.sleep(0)
        assert (await get(f"{url}/ready"))[0] == 200
        send(signal.SIGTERM)

    line = play(LivingEngine(), scene)
    assert re.fullmatch(
        r"cotenant is ready at http://127\.0\.0\.1:\d+ with 1 model \(owner/letters\) in \d+\.\d s\n", line
    )


def test_the_line_names_the_served_models_and_the_real_address(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        addresses.append(url)
        engine.finish_loading()
        await get(f"{url}/ready")
        send(signal.SIGTERM)

    addresses: list[str] = []
    line = play(LivingEngine(spec("a", served_name="first"), spec("b")), scene)
    assert line.startswith(f"cotenant is ready at {addresses[0]} with 2 models (first, b) in ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_requests_in_flight_finish(number: signal.Signals, play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        engine.gate = asyncio.Event()
        engine.finish_loading()
        requests = [asyncio.create_task(embed(url)) for _ in range(CLIENTS)]
        await until(lambda: len(engine.jobs) == CLIENTS)
        send(number)
        await until(lambda: "stop" in engine.events)
        assert not engine.ready
        assert not any(request.done() for request in requests)
        engine.gate.set()
        assert await asyncio.gather(*requests) == [200] * CLIENTS

    engine = LivingEngine()
    play(engine, scene)
    assert engine.events[:2] == ["start", "begin_drain"]
    assert engine.events[-1] == "stop"


def test_a_signal_while_models_load_ends_the_process_without_a_ready_line(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        await get(f"{url}/health")
        send(signal.SIGTERM)

    engine = LivingEngine()
    assert play(engine, scene) == ""
    assert engine.events[-1] == "stop"


def test_a_failed_model_is_named_and_the_others_are_served(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        engine.finish_loading(b="failed")
        assert (await get(f"{url}/ready"))[0] == 503
        assert await embed(url, "a") == 200
        send(signal.SIGTERM)

    line = play(LivingEngine(spec("a"), spec("b")), scene)
    assert line.startswith("cotenant is not ready: b failed: why b is as it is; it serves 1 of 2 models (a) in ")


def test_a_failed_model_that_is_not_required_does_not_hold_readiness() -> None:
    statuses = [status(spec("a")), status(spec("b", required=False), state="failed", detail="no files")]
    assert summary(statuses, "http://h:1", 2.04) == "cotenant is ready at http://h:1 with 1 of 2 models (a) in 2.0 s"


def test_the_process_ends_where_no_model_can_be_loaded(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        engine.finish_loading(a="failed", b="failed")

    engine = LivingEngine(spec("a"), spec("b"))
    with pytest.raises(StartupError, match="no model could be loaded: a failed: why a is as it is; b failed: why b"):
        play(engine, scene)
    assert engine.events == ["start", "begin_drain", "stop"]


def test_the_process_ends_where_the_device_cannot_be_opened(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        engine.device_error = ConfigurationError("no device cuda")
        engine.loaded.set()

    engine = LivingEngine()
    with pytest.raises(ConfigurationError, match="no device cuda"):
        play(engine, scene)
    assert engine.events == ["start", "begin_drain", "stop"]


def test_a_port_in_use_is_refused_before_any_model_loads(play: Play) -> None:
    with listen("127.0.0.1", 0) as listener:
        engine = LivingEngine(settings=ServerSettings(port=listener.getsockname()[1]))
        with pytest.raises(ConfigurationError, match=r"can't listen on 127\.0\.0\.1 port \d+: Address already in use"):
            asyncio.run(lifecycle.serve_engine(engine, None, time.perf_counter()))
    assert engine.events == []


def test_signals_have_their_own_handlers_again_afterwards(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        send(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    play(LivingEngine(), scene)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = """
import asyncio, time
from runtime.api.lifecycle import serve_engine
from tests.api.test_lifecycle import LivingEngine

class StuckEngine(LivingEngine):
    def begin_drain(self):
        print("draining", flush=True)

    async def stop(self):
        await asyncio.Event().wait()

engine = StuckEngine()
engine.finish_loading()
asyncio.run(serve_engine(engine, None, time.perf_counter()))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("cotenant is ready")
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "draining\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 128 + signal.SIGTERM
        finally:
            process.kill()
