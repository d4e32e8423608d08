"""A device made of arithmetic: a clock, a memory, a cost line for each model, and faults by script. No torch.

The engine, its ledger and its policy run on it as on any other. With a virtual clock a day of traffic takes as long as
its events; with the real one it keeps time by sleeping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.clock import Clock
from runtime.devices.base import Concurrency, Device, Download, Memory

REMEMBERED_RUNS = 256
"""At least so many of a stream, the latest; far more than are ever ahead."""

FaultKind = Literal["out_of_memory", "error", "slow", "stuck_load"]


class SimulatedOutOfMemory(Exception):
    """The simulated memory is used up."""


class SimulatedFailure(Exception):
    """A batch that fails by script."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """Something that goes wrong by script."""

    kind: FaultKind
    model: str | None = None
    """None: any model."""
    from_tokens: int = 0
    """Batches, or single inputs with `of_one_input`, of at least so many tokens."""
    of_one_input: bool = False
    after: int = 0
    """So many matching batches (or loads) go well first."""
    times: int | None = None
    """How often it happens; None: for ever."""
    factor: float = 10.0
    """How much longer a slow batch or a stuck load takes."""
    _met: int = 0

    def strikes(self, model: str, sizes: Sequence[int]) -> bool:
        """Whether it happens to this batch of inputs of so many tokens; counts it."""
        tokens = max(sizes, default=0) if self.of_one_input else sum(sizes)
        if self.model not in (None, model) or tokens < self.from_tokens:
            return False
        self._met += 1
        happened = self._met - self.after
        return happened > 0 and (self.times is None or happened <= self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCost:
    """What a model's batches and its load take of the device."""

    fixed_ms: float
    ms_per_token: float
    weight_bytes: int = 0
    bytes_per_token: int = 0
    """Workspace of a batch."""
    load_s: float = 1.0


@dataclass(slots=True)
class Run:
    """A batch on the device: from launch until it is landed it holds its workspace."""

    model: str
    workspace_bytes: int
    ready_s: float


@dataclass(slots=True)
class _Usage:
    weights: dict[str, int] = field(default_factory=dict)
    workspace: int = 0

    def bytes(self) -> int:
        return sum(self.weights.values()) + self.workspace


class _Stream:
    """When batches run, one after another.

    A load warms its model up in a time to come while the present goes on, so a batch takes the first gap that holds it.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[float, float]] = []
        """Beginnings and ends, in order."""

    def free_s(self, now_s: float, run_s: float) -> float:
        """When a batch of `run_s` could begin."""
        return self._gap(now_s, run_s)[1]

    def take(self, now_s: float, run_s: float) -> float:
        """Run a batch in the first gap; when it ends."""
        place, begin_s = self._gap(now_s, run_s)
        self._taken.insert(place, (begin_s, begin_s + run_s))
        if len(self._taken) > 2 * REMEMBERED_RUNS:
            del self._taken[:REMEMBERED_RUNS]
        return begin_s + run_s

    def _gap(self, now_s: float, run_s: float) -> tuple[int, float]:
        """The first gap's place among the runs, and its beginning."""
        place = len(self._taken)
        while place and self._taken[place - 1][1] > now_s:
            place -= 1
        begin_s = now_s
        while place < len(self._taken):
            taken_s, free_s = self._taken[place]
            if begin_s + run_s <= taken_s:
                break
            begin_s = max(begin_s, free_s)
            place += 1
        return place, begin_s


class SimulatedDevice(Device):
    """Streams that run one batch after another, and a memory that can run out."""

    def __init__(
        self,
        clock: Clock,
        concurrency: Concurrency,
        memory_bytes: int,
        faults: Sequence[Fault] = (),
        held_bytes: int = 0,
    ) -> None:
        """`held_bytes`: of the memory, what the process holds without any model."""
        self.name = "simulated"
        self.description = f"{concurrency.lanes} simulated lanes"
        self.concurrency = concurrency
        self.default_batch_tokens = 16_384
        self.default_dtype = "float32"
        self.index_errors_are_fatal = False
        self.clock = clock
        self.busy_ms = 0.0
        """Device time of all batches so far."""
        self.tokens = 0
        """Tokens of all batches that were launched."""
        self.faults = faults
        self._memory_bytes = memory_bytes
        self._usage = _Usage({"": held_bytes} if held_bytes else {})
        self._streams = [_Stream() for _ in range(concurrency.threads)]
        self._loaded_s: dict[str, float] = {}
        """Since when each model is here; of one that is still on its way, a time to come."""

    def load(self, model: str, cost: SimulatedCost) -> None:
        """Bring a model's weights here. Blocks for the load's time. Raises SimulatedOutOfMemory."""
        self._book(cost.weight_bytes)
        slow = self._struck("stuck_load", model, ())
        self.clock.wait_until(self.clock.now_s() + cost.load_s * (slow.factor if slow else 1.0))
        self._usage.weights[model] = cost.weight_bytes
        self._loaded_s[model] = self.clock.now_s()

    def unload(self, model: str) -> None:
        """Let a model's weights go."""
        self._usage.weights.pop(model, None)
        self._loaded_s.pop(model, None)

    def holds(self, model: str) -> bool:
        """Whether a model's weights are here now."""
        return self._loaded_s.get(model, math.inf) <= self.clock.now_s()

    def start(self, model: str, cost: SimulatedCost, sizes: Sequence[int]) -> Run:
        """Launch a batch of inputs of so many tokens. Raises SimulatedOutOfMemory and SimulatedFailure."""
        if self._struck("out_of_memory", model, sizes):
            raise SimulatedOutOfMemory
        if self._struck("error", model, sizes):
            raise SimulatedFailure
        tokens = sum(sizes)
        workspace_bytes = cost.bytes_per_token * tokens
        self._book(workspace_bytes)
        self._usage.workspace += workspace_bytes
        slow = self._struck("slow", model, sizes)
        run_ms = (cost.fixed_ms + cost.ms_per_token * tokens) * (slow.factor if slow else 1.0)
        now_s, run_s = self.clock.now_s(), run_ms / 1000.0
        stream = min(self._streams, key=lambda each: each.free_s(now_s, run_s))
        self.busy_ms += run_ms
        self.tokens += tokens
        return Run(model, workspace_bytes, stream.take(now_s, run_s))

    def finish(self, run: Run) -> None:
        """Wait for a batch and free its workspace."""
        self.clock.wait_until(run.ready_s)
        self._usage.workspace -= run.workspace_bytes

    def memory(self) -> Memory:
        """Weights and workspace of now."""
        used = self._usage.bytes()
        return Memory(total_bytes=self._memory_bytes, free_bytes=self._memory_bytes - used, used_by_us_bytes=used)

    def upload(self, arrays: Mapping[str, NDArray[np.int32]]) -> dict[str, Any]:
        """The arrays themselves."""
        return dict(arrays)

    def download(self, rows: Sequence[Any]) -> Download:
        """Rows are made on the host."""
        raise RuntimeError("a simulated model makes its rows on the host")

    def enter_lane(self, spare: bool) -> None:
        """Lanes need nothing."""

    @contextmanager
    def working(self, alone: bool) -> Iterator[None]:
        """Nothing to hold."""
        yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        """The simulated kind alone."""
        return isinstance(error, SimulatedOutOfMemory)

    def release_cache(self) -> None:
        """There is no cache."""

    def settle_weights(self, module: Any) -> None:
        """There are no weights."""

    def _book(self, more_bytes: int) -> None:
        if self._usage.bytes() + more_bytes > self._memory_bytes:
            raise SimulatedOutOfMemory

    def _struck(self, kind: FaultKind, model: str, sizes: Sequence[int]) -> Fault | None:
        return next((fault for fault in self.faults if fault.kind == kind and fault.strikes(model, sizes)), None)
