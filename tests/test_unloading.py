"""A real model that is unloaded leaves nothing behind, though its library's objects refer to each other in circles."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.engine import Engine
from runtime.registry import ModelSpec, RuntimeConfig

pytestmark = pytest.mark.anyio


def parts(engine: Engine) -> list[weakref.ref[Any]]:
    """The loaded model, its network, and what holds its tokenizer."""
    model: Any = engine._router.by_id("m").model
    return [weakref.ref(part) for part in (model, model._network, model._reference, model._reference[0].tokenizer)]


@pytest.mark.parametrize("name", ["bert-embedder", "mpnet-embedder", "bert-reranker"])
async def test_network_and_tokenizer_are_gone_once_the_model_is_unloaded(
    tiny_model: Callable[[str], Path], name: str
) -> None:
    engine = Engine(RuntimeConfig(models=(ModelSpec(id="m", source=str(tiny_model(name))),)))
    await engine.start()
    await engine.wait_loaded()
    try:
        kept = parts(engine)
        assert all(part() is not None for part in kept)
        await engine.admin.unload("m")
        assert [part() for part in kept] == [None] * len(kept)
    finally:
        await engine.stop()
