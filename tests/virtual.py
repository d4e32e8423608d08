"""The engine on a simulated device in virtual time, and jobs for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from runtime.batch import Batch
from runtime.clock import VirtualClock
from runtime.devices.base import Concurrency
from runtime.devices.simulated import Fault, SimulatedCost, SimulatedDevice
from runtime.engine import Engine
from runtime.errors import CotenantError
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.simulation.backend import SimulatedBackend
from runtime.simulation.event_loop import VirtualLoop
from runtime.simulation.lanes import virtual_machinery
from runtime.work import Job, Lane, Result, Task

T = TypeVar("T")

COST = SimulatedCost(fixed_ms=2.0, ms_per_token=0.1, weight_bytes=1_000, bytes_per_token=1, load_s=1.0)
ONE_LANE = Concurrency(lanes=1, flights=1)
MEMORY_BYTES = 1_000_000


@dataclass
class Stage:
    """An engine with its models loaded, and the batches that landed since."""

    engine: Engine
    device: SimulatedDevice
    clock: VirtualClock
    batches: list[Batch] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return self.clock.now_s()


def play(
    act: Callable[[Stage], Awaitable[T]],
    specs: Sequence[ModelSpec],
    *,
    concurrency: Concurrency = ONE_LANE,
    faults: Sequence[Fault] = (),
    costs: dict[str, SimulatedCost] | None = None,
    **settings: float | None,
) -> T:
    """What `act` gives, on a stage of these models; the faults begin after the loads. `settings`: RuntimeConfig's."""
    clock = VirtualClock()
    device = SimulatedDevice(clock, concurrency, MEMORY_BYTES)
    backend = SimulatedBackend(device, dict.fromkeys([spec.id for spec in specs], COST) | (costs or {}))
    config = RuntimeConfig.model_validate({"models": tuple(specs), **settings})

    async def scene() -> T:
        batches: list[Batch] = []
        engine = Engine(config, backend, virtual_machinery(clock, batches.append))
        await engine.start()
        await engine.wait_loaded()
        device.faults = faults
        device.tokens = 0
        try:
            return await act(Stage(engine, device, clock, batches))
        finally:
            await engine.stop()

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(scene())


def spec(name: str, **fields: object) -> ModelSpec:
    return ModelSpec.model_validate({"id": name, "task": "embed", "max_batch_tokens": 512, **fields})


def job(
    model: str, *sizes: int, lane: Lane = Lane.ONLINE, deadline_s: float | None = None, tenant: str = "default"
) -> Job:
    """Inputs of so many tokens."""
    inputs = [range(size) for size in sizes]
    return Job(id="job", model=model, task=Task.EMBED, inputs=inputs, lane=lane, deadline_s=deadline_s, tenant=tenant)


async def outcome(stage: Stage, one: Job) -> tuple[Result | CotenantError, float]:
    """What became of a job, and after how many milliseconds."""
    begun_s = stage.now_s
    try:
        result: Result | CotenantError = await stage.engine.run(one)
    except CotenantError as error:
        result = error
    return result, (stage.now_s - begun_s) * 1000
