"""The loader thread's work: predict, load, warm up, measure, park, let go. One at a time, never on the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from runtime.backend import Backend
from runtime.devices.base import Device
from runtime.errors import CotenantError, ModelFailed
from runtime.footprint import Footprint
from runtime.models.base import EXAMPLE_TEXT, Model
from runtime.registry import ModelSpec
from runtime.scheduling import CostLine
from runtime.work import Job, Pair, Prepared, Task

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

WARM_UP_SHARES = (0.05, 0.5, 1.0)
"""Parts of the batch budget at which a fresh model is timed and its workspace measured."""
SPREAD_GAIN = 0.95
"""All cores are worth it where they take no more than this part of what one takes."""
SPREAD_ALWAYS_TOKENS = 128
"""From here on they are taken to be: a load beside other work would find no core free to prove it."""
SPREAD_TRIES = 5
SPREAD_SECONDS = 0.5
"""For each size; slow models are clear after two tries."""
REPEATS = 2
"""The first run of a size also pays for memory and kernels; the best counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model that is ready to serve, and what was measured of it."""

    task: Task
    model: Model
    footprint: Footprint
    cost: CostLine
    spread_from_tokens: int
    """Of the least batch that all cores do sooner than one; 0: all of them are."""
    unit_ms: float
    """Predicted device time of one usual input, which can't be cut."""


@dataclass(slots=True)
class _Measured:
    """What warm-up runs said: (tokens, milliseconds) and, where the device can tell, (tokens, bytes)."""

    times: list[tuple[int, float]]
    peaks: list[tuple[int, int]]
    unit_tokens: int
    """Of one usual input."""
    spread_from_tokens: int


class Loader:
    """Runs everything that touches checkpoints in one thread."""

    def __init__(self, backend: Backend, device: Device, pool: ThreadPoolExecutor) -> None:
        """`pool`: of one thread."""
        self._backend = backend
        self._device = device
        self._pool = pool

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work`'s outcome, from the loader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))

    # -- in the loader thread -----------------------------------------------------------------------------------

    def task_of(self, spec: ModelSpec) -> Task:
        """What the model's files say it does. Raises SourceNotFound."""
        return self._backend.task_of(spec)

    def wanted_tokens(self, spec: ModelSpec) -> int:
        """The largest batch where memory allows it."""
        return wanted_tokens(spec, self._device)

    def predict(self, spec: ModelSpec) -> Footprint:
        """Bytes that `spec` will take, before anything is loaded. Raises SourceNotFound, UnsupportedModel."""
        return self._backend.predict(spec, self._device, self.wanted_tokens(spec))

    def load(self, spec: ModelSpec, task: Task | None, budget_tokens: int) -> Loaded:
        """Load, warm up with batches of up to `budget_tokens`, measure. A failure leaves nothing behind."""
        task = task or self._backend.task_of(spec)
        model = self._backend.load(spec, task, self._device)
        try:
            measured = self._warm_up(model, spec, task, budget_tokens)
        except BaseException:
            model.close()
            raise
        # What reading the checkpoint and trying layouts took: for a small model half as much as its weights.
        self._device.release_cache()
        cost = CostLine.fit(measured.times)
        return Loaded(
            task=task,
            model=model,
            footprint=self._footprint(model, spec, measured.peaks),
            cost=cost,
            spread_from_tokens=measured.spread_from_tokens,
            unit_ms=cost.predict_ms(measured.unit_tokens),
        )

    def park(self, model: Model) -> bool:
        """Offload `model`; False where it can't be."""
        parked = model.park()
        self._device.release_cache()
        return parked

    def unpark(self, model: Model) -> None:
        """Bring an offloaded model back."""
        model.unpark()

    def let_go(self, model: Model) -> None:
        """Close `model`. Its memory goes back with `sweep`, once nobody refers to it."""
        model.close()

    def sweep(self) -> None:
        """Collect what only cycles hold (a tokenizer is megabytes outside Python), then hand freed memory back.

        By itself the collector would come after some sixty loads. It holds the GIL for about 10 ms a model in memory,
        since it passes over what `settle_process` settled.
        """
        gc.collect()
        self._device.release_cache()

    def _footprint(self, model: Model, spec: ModelSpec, peaks: Sequence[tuple[int, int]]) -> Footprint:
        """Weights as they are; workspace by the measured line, or where none was measured by what was predicted."""
        budget = self.wanted_tokens(spec)
        predicted = self.predict(spec)
        if peaks:
            fixed, per_token = activation_line(peaks)
            workspace = fixed + int(per_token * budget)
        else:
            fixed = 0
            workspace = max(predicted.activation_bytes, model.facts.activation_bytes_per_token * budget)
        return Footprint(
            weight_bytes=model.facts.weight_bytes,
            graph_bytes=model.facts.graph_bytes,
            host_bytes=predicted.host_bytes,
            activation_bytes=workspace,
            fixed_bytes=fixed,
            budget_tokens=budget,
            measured=True,
        )

    def _warm_up(self, model: Model, spec: ModelSpec, task: Task, budget: int) -> _Measured:
        """Run a few sizes: what scheduling and admission start from."""
        probe_input = Pair(EXAMPLE_TEXT, EXAMPLE_TEXT) if task is Task.RERANK else model.example()
        probe = model.prepare(Job(id="warm-up", model=spec.id, task=task, inputs=[probe_input]))[0]
        measured = _Measured([], [], probe.tokens, self._spread_from_tokens(model, probe, budget))
        for share in WARM_UP_SHARES:
            items = [probe] * max(1, int(budget * share) // probe.tokens)
            tokens = len(items) * probe.tokens
            self._device.start_peak()
            measured.times.append((tokens, min(self._time_ms(model, items) for _ in range(REPEATS))))
            peak = self._device.peak_bytes()
            if peak is not None:
                measured.peaks.append((tokens, peak))
        return measured

    def _spread_from_tokens(self, model: Model, probe: Prepared, budget: int) -> int:
        """See Loaded. Small batches mostly wait for the last of the cores, a hundred times in a forward."""
        too_small, count = 0, 1
        while self._device.spreads_lone_batches and count * probe.tokens < min(SPREAD_ALWAYS_TOKENS, budget):
            on_one_ms, on_all_ms = self._on_one_and_on_all_ms(model, [probe] * count)
            if on_all_ms <= SPREAD_GAIN * on_one_ms:
                break
            too_small, count = count * probe.tokens, 4 * count
        return min(2 * too_small, SPREAD_ALWAYS_TOKENS)  # half-way to the next size, which was better or not tried

    def _on_one_and_on_all_ms(self, model: Model, items: list[Prepared]) -> tuple[float, float]:
        """The best of some tries, taken in turns: what disturbs the machine then disturbs both."""
        now_s = self._device.clock.now_s
        give_up_s = now_s() + SPREAD_SECONDS
        tries: list[tuple[float, float]] = []
        while len(tries) < REPEATS or (len(tries) < SPREAD_TRIES and now_s() < give_up_s):
            tries.append((self._time_ms(model, items), self._time_ms(model, items, alone=True)))
        on_one_ms, on_all_ms = (min(times) for times in zip(*tries, strict=True))
        return on_one_ms, on_all_ms

    def _time_ms(self, model: Model, items: list[Prepared], alone: bool = False) -> float:
        now_s = self._device.clock.now_s
        started_s = now_s()
        with self._device.working(alone):
            model.launch(items).land()
        return (now_s() - started_s) * 1000.0


def wanted_tokens(spec: ModelSpec, device: Device) -> int:
    """The largest batch of a model on `device` where memory allows it."""
    return spec.max_batch_tokens or device.default_batch_tokens


def activation_line(peaks: Sequence[tuple[int, int]]) -> tuple[int, float]:
    """`(a, b)` of workspace = a + b x tokens: the slope between the smallest and the largest batch, under no point."""
    (least, low), (most, high) = min(peaks), max(peaks)
    slope = max((high - low) / (most - least), 0.0) if most > least else 0.0
    return max(int(max(peak - slope * tokens for tokens, peak in peaks)), 0), slope


def as_problem(error: Exception) -> CotenantError:
    """What kept a model from loading, in the tree; without the traceback, which holds on to the half-loaded model."""
    if isinstance(error, CotenantError):
        return type(error)(error.message, param=error.param, retry_after_s=error.retry_after_s)
    return ModelFailed(f"{type(error).__name__}: {str(error)[:300]}")
