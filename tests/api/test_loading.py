"""The terminal's view of models that load."""

from __future__ import annotations

import asyncio
import io

from rich.console import Console

from runtime.api.loading import show_loading
from tests.fakes import FakeEngine, spec, status


def screen(*states: list[str]) -> str:
    """What a terminal shows of two models, `a` and `b`, that go through `states` before they are loaded."""
    engine = FakeEngine(spec("a"), spec("b"))
    console = Console(file=io.StringIO(), force_terminal=True, width=80)

    async def load() -> None:
        for pair in states:
            engine.statuses = [
                status(model, state=state, detail="no files") for model, state in zip(engine.specs, pair, strict=True)
            ]
            await asyncio.sleep(0)

    async def show() -> None:
        await show_loading(engine, asyncio.create_task(load()), console)

    asyncio.run(show())
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


def test_every_model_has_a_line_with_its_state() -> None:
    shown = screen(["loading", "loading"], ["ready", "loading"], ["ready", "ready"])
    last = shown[shown.rindex("a: ") :]
    assert last.startswith("a: ready")
    assert "b: ready" in last


def test_a_failure_says_why() -> None:
    assert "b: failed: no files" in screen(["loading", "loading"], ["ready", "failed"])


def test_a_failure_to_load_at_all_ends_the_view() -> None:
    async def fail() -> None:
        raise RuntimeError("no device")

    async def show() -> asyncio.Task[None]:
        loaded = asyncio.create_task(fail())
        await show_loading(FakeEngine(), loaded, Console(file=io.StringIO()))
        return loaded

    assert isinstance(asyncio.run(show()).exception(), RuntimeError)
