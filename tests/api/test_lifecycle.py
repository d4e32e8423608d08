"""A serving process from the port's opening to its end, over a fake engine."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from runtime.api import lifecycle
from runtime.api.lifecycle import summary
from runtime.api.listening import listen
from runtime.errors import ConfigurationError, StartupError
from runtime.registry import ServerSettings
from tests.api.living import CLIENTS, ROOT, WAIT_S, LivingEngine, Play, embed, get, send, until
from tests.fakes import spec, status


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
def test_a_signal_lets_the_requests_in_flight_finish(
    number: signal.Signals, play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

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
    assert engine.events[:3] == ["start", "begin_retire", "begin_drain"]
    assert engine.events[-1] == "stop"
    assert f"{number.name}: ending once the requests in flight are answered" in caplog.text


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
from tests.api.living import LivingEngine

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


@pytest.mark.parametrize(("host", "warnings"), [("0.0.0.0", 1), ("127.0.0.1", 0)])
def test_a_server_without_keys_that_others_reach_says_so(
    host: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    # The port is in use, so that nothing listens beyond this machine.
    with listen("127.0.0.1", 0) as taken:
        engine = LivingEngine(settings=ServerSettings(host=host, port=taken.getsockname()[1]))
        with pytest.raises(ConfigurationError, match="Address already in use"):
            asyncio.run(lifecycle.serve_engine(engine, None, time.perf_counter()))
    assert caplog.text.count("no API key is set: whoever reaches 0.0.0.0 may use this server") == warnings
