"""The end of a serving process: red at once, bulk refused, a delay, and what systemd is told."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from runtime.api.notification import READY, notify
from runtime.registry import ServerSettings
from tests.api.living import WAIT_S, LivingEngine, Play, embed, get, send, until


def test_with_a_delay_online_work_is_still_taken_once_ready_is_red(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        engine.finish_loading()
        await asyncio.sleep(0)
        send(signal.SIGTERM)
        await until(lambda: engine.retiring)
        code, answer = await get(f"{url}/ready")
        assert (code, answer["status"]) == (503, "draining")
        assert await embed(url) == 200
        assert "begin_drain" not in engine.events

    engine = LivingEngine(settings=ServerSettings(port=0, drain_delay_s=1.0))
    play(engine, scene)
    assert engine.events[:3] == ["start", "begin_retire", "begin_drain"]


def test_a_signal_while_models_load_waits_for_no_delay(play: Play) -> None:
    async def scene(engine: LivingEngine, url: str) -> None:
        await get(f"{url}/health")
        send(signal.SIGTERM)

    play(LivingEngine(settings=ServerSettings(port=0, drain_delay_s=10 * WAIT_S)), scene)


@pytest.mark.parametrize("abstract", [False, True])
def test_a_supervisor_is_told(abstract: bool, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind("\0" + name if abstract else name)
        supervisor.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)

        async def scene(engine: LivingEngine, url: str) -> None:
            engine.finish_loading()
            assert await asyncio.to_thread(supervisor.recv, 100) == b"READY=1"
            send(signal.SIGTERM)

        play(LivingEngine(), scene)
        assert supervisor.recv(100) == b"STOPPING=1"


def test_a_supervisor_that_is_gone_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify(READY)
    assert "NOTIFY_SOCKET can't be told READY=1: No such file or directory" in caplog.text
