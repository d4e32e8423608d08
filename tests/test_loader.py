"""What a load measures of a model, on a device and a clock that a test sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from runtime.engine import Engine
from runtime.loader import SPREAD_ALWAYS_TOKENS, Loaded, Loader
from runtime.machinery import Machinery
from runtime.models.base import Flight, Model
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.work import Prepared, Task
from tests.doubles import CountingModel, DoubleBackend
from tests.engines import job
from tests.residents import Clock, RoomDevice

TOKEN_MS = 0.5


class ManyCores(RoomDevice):
    """A batch takes half as long on all of its cores, but for what they wait for each other."""

    def __init__(self, clock: Clock, wait_ms: float) -> None:
        super().__init__(clock)
        self.spreads_lone_batches = True
        self.wait_ms = wait_ms
        self.alone = False
        self.now = clock

    @contextmanager
    def working(self, alone: bool) -> Iterator[None]:
        self.alone = alone
        yield

    def run(self, tokens: int) -> None:
        on_one_ms = tokens * TOKEN_MS
        self.now.pass_by((on_one_ms / 2 + self.wait_ms if self.alone else on_one_ms) / 1000)


class TimedModel(CountingModel):
    """Takes what its device says."""

    def __init__(self, device: ManyCores) -> None:
        super().__init__()
        self.device = device

    def example(self) -> str:
        return "four"

    def launch(self, items: Sequence[Prepared]) -> Flight:
        self.device.run(sum(item.tokens for item in items))
        return super().launch(items)


class TimedBackend(DoubleBackend):
    """Loads timed models."""

    def __init__(self, device: ManyCores) -> None:
        super().__init__(device)
        self.many_cores = device

    def load(self, spec: ModelSpec, task: Task, device: object) -> Model:
        return TimedModel(self.many_cores)


@pytest.mark.parametrize(
    ("wait_ms", "spread_from_tokens"), [(0.5, 0), (3.0, 2 * 4), (10.0, 2 * 16), (20.0, SPREAD_ALWAYS_TOKENS)]
)
def test_a_lone_batch_gets_all_cores_from_the_size_on_that_is_quicker_so(
    wait_ms: float, spread_from_tokens: int
) -> None:
    """Tried at one, four and sixteen examples; from half-way between the last that lost and the first that won."""
    assert loaded_on(ManyCores(Clock(1_000.0), wait_ms)).spread_from_tokens == spread_from_tokens


def test_nothing_is_tried_where_a_lone_batch_has_no_more_cores_than_others() -> None:
    device = ManyCores(Clock(1_000.0), wait_ms=20.0)
    device.spreads_lone_batches = False
    assert loaded_on(device).spread_from_tokens == 0
    assert not device.alone


def loaded_on(device: ManyCores) -> Loaded:
    with ThreadPoolExecutor(1) as pool:
        return Loader(TimedBackend(device), device, pool).load(ModelSpec(id="a", task="embed"), Task.EMBED, 512)


@pytest.mark.anyio
@pytest.mark.parametrize(("spread_from_tokens", "alone"), [(5, True), (6, False)])
async def test_a_lone_batch_below_that_size_stays_on_one_core(spread_from_tokens: int, alone: bool) -> None:
    clock = Clock(1_000.0)
    device = ManyCores(clock, wait_ms=0.0)
    config = RuntimeConfig(models=(ModelSpec(id="a", task="embed"),))
    engine = Engine(config, TimedBackend(device), Machinery(clock=clock))
    await engine.start()
    await engine.wait_loaded()
    engine._router.by_id("a").spread_from_tokens = spread_from_tokens
    await engine.run(job("a", "fives"))
    assert device.alone == alone
    await engine.stop()
