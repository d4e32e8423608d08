"""Doubles whose answers can be worked out by hand."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import Draining, InvalidDimensions, ModelNotFound, ModelRequired, UnsupportedCapability
from runtime.registry import ModelSpec, RuntimeConfig, ServerSettings
from runtime.work import Input, Job, Lane, Picture, Result, Task, Timings
from runtime.worker import ModelStatus

WIDTH = 4
TIMINGS = Timings(prepare_ms=1.25, queue_ms=2.5, device_ms=30.75, deliver_ms=0.5, total_ms=35.0)


def vector(text: str) -> NDArray[np.float32]:
    """`(4,)`: the text's length, its spaces, a third (which no short decimal equals), minus one."""
    return np.array([len(text), text.count(" "), 1 / 3, -1.0], dtype=np.float32)


def matrix(text: str) -> NDArray[np.float32]:
    """`(tokens, 4)`: the text's vector once for each token, with its place in front."""
    return np.stack([np.concatenate(([place], vector(text)[1:])) for place in range(tokens(text))]).astype(np.float32)


def written(item: Input) -> str:
    """What the fake reads in an input: a picture's size, a list's numbers, a text itself."""
    return f"{item.width} x {item.height}" if isinstance(item, Picture) else str(item)


def tokens(text: str) -> int:
    """Its words, and two special tokens."""
    return len(text.split()) + 2


def spec(name: str = "owner/letters", **fields: Any) -> ModelSpec:
    """A model of that id."""
    return ModelSpec.model_validate({"id": name, **fields})


def task_of(spec: ModelSpec) -> Task:
    """What the fake makes of a model."""
    return Task.EMBED if spec.task == "auto" else Task(spec.task)


def status(spec: ModelSpec, **changes: Any) -> ModelStatus:
    """A ready model on the CPU."""
    ready = ModelStatus(
        id=spec.id,
        name=spec.name,
        aliases=spec.aliases,
        task=task_of(spec),
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


class FakeEngine:
    """Embeds with `vector`, or with `matrix` where a model is of multi-vectors; at once or when `gate` opens."""

    def __init__(self, *specs: ModelSpec, settings: ServerSettings | None = None) -> None:
        self.specs = specs or (spec(),)
        self.config = RuntimeConfig(models=self.specs, server=settings or ServerSettings(port=0))
        self.metering = FakeMetering()
        self.ready = True
        self.draining = False
        self.statuses: list[ModelStatus] = [status(spec) for spec in self.specs]
        self.jobs: list[Job] = []
        self.cancelled: list[str] = []
        """Ids of jobs whose waiting was cancelled."""
        self.failure: Exception | None = None
        self.truncated_inputs = 0
        self.gate: asyncio.Event | None = None

    def describe(self) -> Sequence[ModelStatus]:
        return self.statuses

    def resolve(self, name: str | None, task: Task | None) -> ModelSpec:
        names = ", ".join(spec.name for spec in self.specs)
        if name is None:
            able = [spec for spec in self.specs if task in (None, task_of(spec))]
            if len(able) > 1:
                raise ModelRequired(f"name a model: {names}")
            if not able:
                raise UnsupportedCapability(f"no model here can {task}")
            return able[0]
        for candidate in self.specs:
            if name in candidate.names:
                if task not in (None, task_of(candidate)):
                    raise UnsupportedCapability(f"{candidate.name} can {task_of(candidate)}, not {task}")
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
        texts = [written(item) for item in job.inputs]
        row = matrix if job.task is Task.MULTI_VECTOR else vector
        return Result(
            model=job.model,
            rows=[row(text)[..., : job.dimensions] for text in texts],
            tokens=sum(map(tokens, texts)),
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
