"""SIGHUP and the keys file: changed keys count from then on, all at once; a broken file changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from runtime.api.app import build_app
from runtime.api.identity import Guard
from runtime.api.rereading import Rereading
from runtime.errors import ModelLoading
from runtime.registry import RuntimeConfig, ServerSettings
from runtime.work import Lane
from tests.fakes import FakeEngine

pytestmark = pytest.mark.anyio

TEAM = "{name: team, key: team-secret, lane: bulk}"
SHOP = "{name: shop, key: shop-secret, tokens_per_minute: 4}"
LIMIT = 4


class Registry(FakeEngine):
    """An engine whose registry is read again: it only remembers how often."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings=settings)
        self.taken = 0
        self.refusal: ModelLoading | None = None

    async def reconfigure(self, config: RuntimeConfig) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.taken += 1


class Served:
    """An app over a keys file, and SIGHUPs to it."""

    def __init__(self, path: Path, **settings: str) -> None:
        self.path = path
        self.write(TEAM, SHOP)
        self.engine = Registry(ServerSettings.model_validate({"keys_file": str(path), **settings}))
        guard = Guard(self.engine.config.server)
        self.config = self.engine.config
        self.rereading = Rereading(self.engine, lambda: self.config, guard)
        transport = httpx2.ASGITransport(build_app(self.engine, guard))
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://test")

    def write(self, *entries: str) -> None:
        self.path.write_text(f"keys: [{', '.join(entries)}]\n")

    async def hang_up(self) -> None:
        self.rereading.begin()
        assert self.rereading._task is not None
        await self.rereading._task

    async def ask(self, key: str, text: str = "a") -> int:
        answer = await self.client.post("/v1/embeddings", json={"input": text}, headers={"x-api-key": key})
        return answer.status_code


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path / "keys.yaml")


async def test_added_removed_and_changed_keys_count_from_then_on(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert [await served.ask(key) for key in ("team-secret", "shop-secret", "new-secret")] == [200, 200, 401]
    assert served.engine.jobs[0].lane is Lane.BULK
    served.write("{name: team, key: team-secret, models: [no/other]}", "{name: new, key: new-secret}")
    assert await served.ask("new-secret") == 401
    await served.hang_up()
    assert [await served.ask(key) for key in ("team-secret", "shop-secret", "new-secret")] == [403, 401, 200]
    messages = [record.message for record in caplog.records if record.name == "cotenant.registry"]
    assert messages == ["the API keys have changed: 2 are known now", "the registry was read again: 1 models"]
    assert "secret" not in caplog.text


async def test_a_changed_quota_counts_from_then_on_and_a_renewed_key_keeps_its_count(served: Served) -> None:
    spent = "word " * LIMIT
    assert [await served.ask("shop-secret", spent), await served.ask("shop-secret")] == [200, 429]
    served.write("{name: shop, key: renewed-secret, tokens_per_minute: 4}")
    await served.hang_up()
    assert await served.ask("renewed-secret") == 429
    served.write("{name: shop, key: renewed-secret, tokens_per_minute: 4000}")
    await served.hang_up()
    assert await served.ask("renewed-secret") == 200


async def test_a_request_in_flight_ends_well_though_its_key_is_gone(served: Served) -> None:
    served.engine.gate = asyncio.Event()
    waiting = asyncio.create_task(served.ask("shop-secret"))
    while not served.engine.jobs:
        await asyncio.sleep(0)
    served.write(TEAM)
    await served.hang_up()
    assert await served.ask("shop-secret") == 401
    served.engine.gate.set()
    assert await waiting == 200


@pytest.mark.parametrize("text", ["{{", "keys: []", "keys: [{name: a}]", f"keys: [{TEAM}, {TEAM}]", None])
async def test_a_broken_file_is_refused_whole_and_the_old_keys_stay(
    served: Served, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    served.path.unlink() if text is None else served.path.write_text(text)
    await served.hang_up()
    assert [await served.ask(key) for key in ("team-secret", "shop-secret", "")] == [200, 200, 401]
    assert served.engine.taken == 0
    [refusal] = [record.message for record in caplog.records]
    assert refusal.startswith("the configuration was refused and nothing has changed: ")
    assert "secret" not in refusal


async def test_keys_and_models_change_together_or_not_at_all(served: Served) -> None:
    served.write(SHOP)
    served.engine.refusal = ModelLoading("the device is still being opened")
    await served.hang_up()
    assert await served.ask("team-secret") == 200
    served.engine.refusal = None
    await served.hang_up()
    assert (await served.ask("team-secret"), served.engine.taken) == (401, 1)


async def test_another_file_needs_a_restart_and_never_opens_the_server(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.config = served.config.model_copy(update={"server": ServerSettings()})
    served.path.unlink()
    await served.hang_up()
    assert caplog.records[0].message == "these changes need a restart: server.keys_file"
    assert [await served.ask(key) for key in ("team-secret", "")] == [200, 401]
    assert served.engine.taken == 1


async def test_the_keys_of_the_settings_stay_beside_those_of_the_file(tmp_path: Path) -> None:
    served = Served(tmp_path / "keys.yaml", api_key="of-the-settings")
    served.write(SHOP)
    await served.hang_up()
    assert [await served.ask(key) for key in ("of-the-settings", "team-secret")] == [200, 401]
