"""Devices, models and backends whose answers can be worked out by hand. No torch.

A text's tokens are its characters; its vector is (tokens, sum of character codes, 1).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.devices.base import Concurrency, Device, Download, Memory
from runtime.footprint import Footprint
from runtime.models.base import Flight, Model, ModelFacts, Vocabulary
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.work import Job, Prepared, Row, Task

FACTS = ModelFacts(
    dimensions=3,
    max_tokens=64,
    dtype="float32",
    execution="packed",
    execution_reason="a double",
    prompts=(),
    weight_bytes=1_000,
    activation_bytes_per_token=1,
)


def vector(text: str) -> NDArray[np.float32]:
    """What CountingModel answers for `text`."""
    return np.array([len(text), sum(map(ord, text)), 1], dtype=np.float32)


class StillDevice(Device):
    """Lanes and flights as asked for; a memory that never changes."""

    def __init__(self, lanes: int = 1, spare_lanes: int = 0, flights: int = 1) -> None:
        self.name = "still"
        self.description = "a double"
        self.concurrency = Concurrency(
            lanes=lanes, flights=flights, spare_lanes=spare_lanes, small_tokens=8 * spare_lanes
        )
        self.default_batch_tokens = 32
        self.default_dtype = "float32"
        self.index_errors_are_fatal = False
        self.released = 0

    def memory(self) -> Memory:
        return Memory(total_bytes=1_000_000, free_bytes=900_000, used_by_us_bytes=100_000)

    def upload(self, arrays: Mapping[str, NDArray[np.int32]]) -> dict[str, Any]:
        return dict(arrays)

    def download(self, rows: Sequence[Any]) -> Download:
        raise AssertionError("the double's models make their rows on the host")

    def enter_lane(self, spare: bool) -> None:
        pass

    @contextmanager
    def working(self, alone: bool) -> Iterator[None]:
        yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def release_cache(self) -> None:
        self.released += 1

    def settle_weights(self, module: Any) -> None:
        pass


class HostFlight(Flight):
    """Rows that are made when they are landed."""

    def __init__(self, land: Callable[[], list[Row]]) -> None:
        self._land = land

    def land(self) -> list[Row]:
        return self._land()


class CountingModel(Model):
    """Counts batches; can be told to wait at a gate and to fail on some texts."""

    def __init__(self) -> None:
        self.facts = FACTS
        self.batches: list[list[str]] = []
        self.gate: threading.Event | None = None
        self.fail_on: Callable[[list[str]], BaseException | None] = lambda texts: None
        self.started = threading.Semaphore(0)
        self.words: Vocabulary | None = None

    def vocabulary(self) -> Vocabulary:
        return self.words or super().vocabulary()

    def prepare(self, job: Job) -> list[Prepared]:
        return [Prepared(token_ids=np.array([ord(c) for c in str(text)], dtype=np.int32)) for text in job.inputs]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        texts = ["".join(map(chr, item.token_ids)) for item in items]
        self.batches.append(texts)
        self.started.release()
        if self.gate is not None:
            assert self.gate.wait(30)
        error = self.fail_on(texts)
        if error is not None:
            raise error
        return HostFlight(lambda: [vector(text) for text in texts])

    def close(self) -> None:
        pass


class DoubleBackend:
    """Gives CountingModels by id; one whose id starts with `broken` can't be loaded."""

    def __init__(self, device: StillDevice | None = None) -> None:
        self.device = device or StillDevice()
        self.models: dict[str, CountingModel] = {}

    def open_device(self, config: RuntimeConfig) -> Device:
        return self.device

    def predict(self, spec: ModelSpec, device: Device, budget_tokens: int) -> Footprint:
        return Footprint(weight_bytes=2_000_000 if spec.id.startswith("huge") else 1_000, activation_bytes=32)

    def task_of(self, spec: ModelSpec) -> Task:
        return Task.EMBED

    def load(self, spec: ModelSpec, task: Task, device: Device) -> Model:
        if spec.id.startswith("broken"):
            raise ValueError("the files are torn")
        return self.models.setdefault(spec.id, CountingModel())
