"""SIGHUP: configuration and API keys are read again; an invalid one of them changes neither models nor keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from pydantic import BaseModel

from runtime.api.identity import Guard
from runtime.api.keys import Key, read_keys
from runtime.errors import CotenantError
from runtime.registry import RuntimeConfig, Section

log = logging.getLogger("cotenant.registry")

Read = Callable[[], RuntimeConfig]


class Reconfigurable(Protocol):
    """An engine whose models can be exchanged while it serves."""

    @property
    def config(self) -> RuntimeConfig: ...

    async def reconfigure(self, config: RuntimeConfig) -> None:
        """Serve the models of `config` from now on. Raises CotenantError, and then nothing has changed."""


class Rereading:
    """One reading after another; what comes while one is under way is done once more after it."""

    def __init__(self, engine: Reconfigurable, read: Read, guard: Guard) -> None:
        """`read`: the configuration as it stands. Raises ConfigurationError. `guard`: who learns of changed keys.

        Raises ConfigurationError where the API keys can't be read.
        """
        self._engine = engine
        self._read = read
        self._guard = guard
        self._keys = read_keys(engine.config.server)
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def begin(self) -> None:
        """Read again, now or after the reading that is under way. Call on the event loop."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_until_told())

    async def _read_until_told(self) -> None:
        while self._again:
            self._again = False
            await self._read_once()

    async def _read_once(self) -> None:
        try:
            config, keys = await asyncio.to_thread(self._read_both)
            ignored = ignored_changes(self._engine.config, config)
            if ignored:
                log.warning("these changes need a restart: %s", ", ".join(ignored))
            await self._engine.reconfigure(config)
            self._take(keys)
        except CotenantError as error:
            log.error("the configuration was refused and nothing has changed: %s", error.message)
        except Exception:
            log.exception("the registry could not be read again")
        else:
            log.info("the registry was read again: %d models", len(config.models))

    def _read_both(self) -> tuple[RuntimeConfig, list[Key]]:
        """The configuration and the API keys. A keys file elsewhere is a setting of the process, and is not read."""
        config, server = self._read(), self._engine.config.server
        moved = config.server.keys_file != server.keys_file
        return config, self._keys if moved else read_keys(server)

    def _take(self, keys: list[Key]) -> None:
        """Let the guard know the keys, if they are others than before. Nothing here can fail."""
        if keys != self._keys:
            self._guard.replace(keys)
            log.info("the API keys have changed: %d are known now", len(keys))
        self._keys = keys


def ignored_changes(present: RuntimeConfig, wanted: RuntimeConfig) -> list[str]:
    """Keys outside `models` that differ, such as `server.port`: they are settings of the process."""
    return [key for name in RuntimeConfig.model_fields if name != "models" for key in _differing(present, wanted, name)]


def _differing(present: BaseModel, wanted: BaseModel, name: str) -> Iterator[str]:
    """The key, or those of its section that differ. Values may be secrets and are not shown."""
    before, after = getattr(present, name), getattr(wanted, name)
    if before == after:
        return
    if not isinstance(before, Section):
        yield name
        return
    for key in type(before).model_fields:
        if getattr(before, key) != getattr(after, key):
            yield f"{name}.{key}"
