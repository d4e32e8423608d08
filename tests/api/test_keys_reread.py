"""SIGHUP and the keys file: a change is named, since it needs a restart, and a broken one changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtime.api.rereading import Rereading
from runtime.registry import RuntimeConfig, ServerSettings


class Registry:
    """An engine that only remembers what it was told."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self.taken = 0

    async def reconfigure(self, config: RuntimeConfig) -> None:
        self.taken += 1


def write(path: Path, key: str) -> None:
    path.write_text(f"keys: [{{name: team, key: {key}}}]\n")


def test_changed_keys_are_named_and_broken_ones_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = tmp_path / "keys.yaml"
    write(keys, "first-secret")
    config = RuntimeConfig(server=ServerSettings(keys_file=str(keys)))
    engine = Registry(config)

    async def hang_up() -> list[str]:
        caplog.clear()
        await rereading._read_once()
        return [record.message for record in caplog.records]

    rereading = Rereading(engine, lambda: config)
    with caplog.at_level("INFO"):
        assert asyncio.run(hang_up()) == ["the registry was read again: 0 models"]
        write(keys, "second-secret")
        assert asyncio.run(hang_up())[0] == "these changes need a restart: what server.keys_file holds"
        keys.write_text("{{")
        refusal = asyncio.run(hang_up())
    assert engine.taken == 2
    assert len(refusal) == 1
    assert refusal[0].startswith("the registry was refused and nothing has changed")
    assert "secret" not in caplog.text
