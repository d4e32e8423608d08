"""SIGHUP: the configuration is read again, and its models are served from then on. An invalid one changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from runtime.errors import CotenantError
from runtime.registry import RuntimeConfig

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

    def __init__(self, engine: Reconfigurable, read: Read) -> None:
        """`read`: the configuration as it stands. Raises ConfigurationError."""
        self._engine = engine
        self._read = read
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
            config = await asyncio.to_thread(self._read)
            ignored = ignored_changes(self._engine.config, config)
            if ignored:
                log.warning("these changes need a restart: %s", ", ".join(ignored))
            await self._engine.reconfigure(config)
        except CotenantError as error:
            log.error("the registry was refused and nothing has changed: %s", error.message)
        except Exception:
            log.exception("the registry could not be read again")
        else:
            log.info("the registry was read again: %d models", len(config.models))


def ignored_changes(present: RuntimeConfig, wanted: RuntimeConfig) -> list[str]:
    """Keys outside `models` that differ: they are settings of the process."""
    keys = (key for key in RuntimeConfig.model_fields if key != "models")
    return [key for key in keys if getattr(present, key) != getattr(wanted, key)]
