"""An engine whose memory, models' sizes and clock a test sets: who is loaded, who leaves, who waits."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from runtime.clock import VirtualClock
from runtime.devices.base import Device, Memory
from runtime.engine import Engine
from runtime.errors import UnsupportedModel
from runtime.footprint import Footprint
from runtime.machinery import Machinery
from runtime.models.base import Model
from runtime.registry import ModelSpec, RuntimeConfig, ServerSettings
from runtime.work import MAXSIM_ID, Task
from tests.doubles import FACTS, CountingModel, DoubleBackend, StillDevice

BASE_BYTES = 100
LOAD_S = 2.0
SERVER = ServerSettings(drain_timeout_s=10.0)


class RoomDevice(StillDevice):
    """As much memory as a test says, of which the process holds BASE_BYTES."""

    def __init__(self, clock: Clock, total_bytes: int = 1_000_000) -> None:
        super().__init__()
        self.clock = clock
        self.total_bytes = total_bytes
        self.free_bytes = total_bytes - BASE_BYTES

    def memory(self) -> Memory:
        return Memory(total_bytes=self.total_bytes, free_bytes=self.free_bytes, used_by_us_bytes=BASE_BYTES)


class Clock(VirtualClock):
    """Seconds that pass when a test says so."""

    def pass_by(self, seconds: float) -> None:
        self.set(self.now_s() + seconds)


class ResidentModel(CountingModel):
    """Knows its size, and whether it was closed or parked."""

    def __init__(self, weight_bytes: int, parkable: bool) -> None:
        super().__init__()
        self.facts = dataclasses.replace(FACTS, weight_bytes=weight_bytes, activation_bytes_per_token=1)
        self.closed = False
        self.parked = False
        self.parkable = parkable

    def close(self) -> None:
        self.closed = True

    def park(self) -> bool:
        self.parked = self.parkable
        return self.parkable

    def unpark(self) -> None:
        self.parked = False


class RoomBackend(DoubleBackend):
    """Loads models of given sizes; every load takes LOAD_S on the clock, and may have to wait at a gate."""

    def __init__(self, device: RoomDevice, clock: Clock, sizes: Mapping[str, int]) -> None:
        super().__init__(device)
        self.clock = clock
        self.sizes = dict(sizes)
        self.loads: list[str] = []
        self.gate: threading.Event | None = None
        self.load_begun = threading.Semaphore(0)
        self.parkable = False
        self.host_bytes = 0
        """What each model keeps in the process, also while it is parked."""
        self.failure: Exception | None = None
        self.warm_up_failure: Exception | None = None
        self.batch_s = 0.0
        """What each batch takes on the clock."""
        self.room = device
        self.resident: dict[str, ResidentModel] = {}

    def predict(self, spec: ModelSpec, device: Device, budget_tokens: int) -> Footprint:
        if spec.id == MAXSIM_ID:
            return Footprint()
        return Footprint(
            weight_bytes=self.sizes[spec.id],
            host_bytes=self.host_bytes,
            activation_bytes=budget_tokens,
            budget_tokens=budget_tokens,
        )

    def load(self, spec: ModelSpec, task: Task, device: Device) -> Model:
        if spec.id == MAXSIM_ID:
            raise UnsupportedModel("the doubles have none")
        self.loads.append(spec.id)
        self.load_begun.release()
        if self.gate is not None:
            assert self.gate.wait(30)
        if self.failure is not None:
            raise self.failure
        self.clock.pass_by(LOAD_S)
        model = self.resident[spec.id] = ResidentModel(self.sizes[spec.id], self.parkable)
        model.fail_on = self._run
        return model

    def _run(self, texts: list[str]) -> Exception | None:
        if self.batch_s:
            self.clock.pass_by(self.batch_s)
        return self.warm_up_failure


@asynccontextmanager
async def residents(
    sizes: Mapping[str, int], *, budget_bytes: int = 10**7, keys: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Engine, RoomBackend, Clock]]:
    """Models of these sizes on a device whose limit is `budget_bytes`; `keys`: more keys for every model."""
    clock = Clock(1_000.0)
    backend = RoomBackend(RoomDevice(clock, 10**8), clock, sizes)
    models = tuple(ModelSpec.model_validate({"id": name, **(keys or {})}) for name in sizes)
    config = RuntimeConfig(models=models, memory_budget=budget_bytes, **{"server": SERVER, **settings})
    engine = Engine(config, backend, Machinery(clock=clock))
    await engine.start()
    await engine.wait_loaded()
    try:
        yield engine, backend, clock
    finally:
        if backend.gate is not None:
            backend.gate.set()
        await engine.stop()


def states(engine: Engine) -> dict[str, str]:
    """Every model's state."""
    return {status.id: status.state for status in engine.describe()}
