"""Doubles whose answers can be worked out by hand."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import Draining, InvalidDimensions, ModelNotFound, ModelRequired
from runtime.registry import ModelSpec, RuntimeConfig, ServerSettings
from runtime.work import BatchWatcher, Job, Lane, Result, Task, Timings
from runtime.worker import ModelStatus

WIDTH = 4
TIMINGS = Timings(prepare_ms=1.25, queue_ms=2.5, device_ms=30.75, deliver_ms=0.5, total_ms=35.0)


def vector(text: str) -> NDArray[np.float32]:
    """`(4,)`: the text's length, its spaces, a third (which no short decimal equals), minus one."""
    return np.array([len(text), text.count(" "), 1 / 3, -1.0], dtype=np.float32)


def tokens(text: str) -> int:
    """Its words, and two special tokens."""
    return len(text.split()) + 2


def spec(name: str = "owner/letters", **fields: Any) -> ModelSpec:
    """A model of that id."""
    return ModelSpec.model_validate({"id": name, **fields})


def status(spec: ModelSpec, **changes: Any) -> ModelStatus:
    """A ready model on the CPU."""
    ready = ModelStatus(
        id=spec.id,
        name=spec.name,
        aliases=spec.aliases,
        task=Task.EMBED if spec.task == "auto" else Task(spec.task),
        required=spec.required,
        state="ready",
        detail=None,
        device="cpu",
        backend="torch",
        dtype="float32",
        execution="packed",
        execution_reason=None,
        dimensions=WIDTH,
        head=None,
        modalities=("text",),
        max_tokens=256,
        max_batch_tokens=512,
        prompts=("query",),
        weight_bytes=1000,
        activation_bytes=200,
        loaded_s=0.5,
        queue_items=dict.fromkeys(Lane, 0),
        queue_tokens=dict.fromkeys(Lane, 0),
        results_pending=0,
    )
    return dataclasses.replace(ready, **changes)


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One request as the metrics saw it."""

    surface: str
    model: str
    task: str
    status: int


class FakeMetering:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []

    def render(self) -> bytes:
        return b"# HELP fake A metric\n"

    def observe_request(self, surface: str, model: str, task: str, status: int, seconds: float) -> None:
        assert seconds >= 0
        self.observations.append(Observation(surface, model, task, status))

    def observe_render(self, model: str, seconds: float) -> None:
        assert seconds > 0


class FakeEngine:
    """Embeds with `vector`, at once or when `gate` opens."""

    def __init__(self, *specs: ModelSpec, settings: ServerSettings | None = None) -> None:
        self.specs = specs or (spec(),)
        self.config = RuntimeConfig(models=self.specs, server=settings or ServerSettings(port=0))
        self.metering = FakeMetering()
        self.ready = True
        self.draining = False
        self.retiring = False
        self.statuses: list[ModelStatus] = [status(spec) for spec in self.specs]
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []
        """Ids of jobs whose waiting was cancelled."""
        self.failure: Exception | None = None
        self.truncated_inputs = 0
        self.gate: asyncio.Event | None = None

    def describe(self) -> Sequence[ModelStatus]:
        return self.statuses

    def watch_batches(self, watcher: BatchWatcher) -> None:
        self.watcher = watcher

    def resolve(self, name: str | None, task: Task | None) -> ModelSpec:
        names = ", ".join(spec.name for spec in self.specs)
        if name is None:
            if len(self.specs) > 1:
                raise ModelRequired(f"name a model: {names}")
            return self.specs[0]
        for candidate in self.specs:
            if name in candidate.names:
                return candidate
        raise ModelNotFound(f"no such model; served: {names}")

    async def run(self, job: Job) -> Result:
        self.jobs.append(job)
        if self.draining:
            raise Draining("the server is shutting down")
        if self.failure is not None:
            raise self.failure
        if job.dimensions is not None and job.dimensions > WIDTH:
            raise InvalidDimensions(f"dimensions must be from 1 to {WIDTH}")
        await self._wait(job)
        return Result(
            model=job.model,
            rows=[vector(text)[: job.dimensions] for text in map(str, job.inputs)],
            tokens=sum(map(tokens, map(str, job.inputs))),
            truncated_inputs=self.truncated_inputs,
            timings=TIMINGS,
        )

    async def _wait(self, job: Job) -> None:
        if self.gate is None:
            return
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
