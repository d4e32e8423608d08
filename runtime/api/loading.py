"""Shows models load on a terminal: a line for each, with its state and a clock. Elsewhere the log's lines do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from runtime.api.contract import Engine

if TYPE_CHECKING:
    from runtime.worker import ModelStatus

REFRESH_S: Final = 0.2
WAITING: Final = ("unloaded", "loading")
COLUMNS: Final = (SpinnerColumn(), TextColumn("{task.description}: {task.fields[state]}"), TimeElapsedColumn())


async def show_loading(engine: Engine, loaded: asyncio.Task[None], console: Console) -> None:
    """Show every model's state until `loaded` is done, however it ends."""
    with Progress(*COLUMNS, console=console) as progress:
        lines = {status.id: progress.add_task(status.name, total=1, state="") for status in engine.describe()}
        while not loaded.done():
            _show(progress, lines, engine.describe())
            await asyncio.wait({loaded}, timeout=REFRESH_S)
        _show(progress, lines, engine.describe())


def _show(progress: Progress, lines: dict[str, TaskID], statuses: Sequence[ModelStatus]) -> None:
    for status in statuses:
        why = f": {status.detail}" if status.state == "failed" else ""
        # A line whose task is complete stops its clock.
        progress.update(lines[status.id], state=status.state + why, completed=int(status.state not in WAITING))
