"""Jobs a second and CPU time a job of the engine alone, with 1 and with 64 models: no HTTP, no tokenizer, no forward.

Two workloads, each with one model and with many in alternating turns, all in one process on one core:

- waves: 2,048 jobs are queued while the device is held, then all run. A queue has 2,048 jobs or 32, and either fills
  its batches of 32, so both sides form as many batches and only the number of models differs.
- loop: 64 clients ask again as soon as they are answered. With 64 models each queue has one job at the most, so that
  every batch is of one job: what a batch costs by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import uvloop

from runtime.clock import REAL_CLOCK
from runtime.devices.base import Concurrency
from runtime.devices.process import prepare_process
from runtime.devices.simulated import Run, SimulatedDevice
from runtime.engine import Engine
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.simulation.backend import FREE, SimulatedBackend
from runtime.work import Job, Task

INPUT_TOKENS = 16
BATCH_JOBS = 32


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn came to."""

    jobs_per_s: float
    cpu_us: float
    """Of the whole process, for a job."""
    jobs_per_batch: float


class HeldDevice(SimulatedDevice):
    """Takes no time, but for batches that land while it is held."""

    def __init__(self) -> None:
        super().__init__(REAL_CLOCK, Concurrency(lanes=1, flights=1), 1 << 30)
        self.is_free = threading.Event()
        self.is_free.set()

    def finish(self, run: Run) -> None:
        """See SimulatedDevice.finish."""
        self.is_free.wait()
        super().finish(run)


class Stand:
    """An engine with so many models."""

    def __init__(self, models: int) -> None:
        self._ids = [f"model-{number}" for number in range(models)]
        self._device = HeldDevice()
        specs = [ModelSpec(id=name, task="embed", max_batch_tokens=BATCH_JOBS * INPUT_TOKENS) for name in self._ids]
        config = RuntimeConfig(models=tuple(specs), max_queue_ms=1e9)
        self.engine = Engine(config, SimulatedBackend(self._device, dict.fromkeys(self._ids, FREE)))

    async def wave(self, jobs: int) -> None:
        """Queue so many jobs, then answer them."""
        self._device.is_free.clear()
        asked = [asyncio.create_task(self.engine.run(job)) for job in itertools.islice(self._jobs(), jobs)]
        await asyncio.sleep(0)  # each of them has run once, and is in its queue
        self._device.is_free.set()
        await asyncio.gather(*asked)

    async def loop(self, clients: int, jobs: int) -> None:
        """Answer so many jobs for clients that ask one after another."""
        left = iter(range(jobs))

        async def client(job: Job) -> None:
            for _ in left:
                await self.engine.run(job)

        await asyncio.gather(*map(client, itertools.islice(self._jobs(), clients)))

    async def timed(self, work: Awaitable[None], jobs: int) -> Turn:
        """What `work`, which is so many jobs, takes."""
        batches = self._batches()
        gc.collect()  # whoever fills a generation does not pay for the turn before
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        await work
        took_s, took_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        return Turn(jobs / took_s, took_cpu_s / jobs * 1e6, jobs / (self._batches() - batches))

    def _jobs(self) -> itertools.cycle[Job]:
        """A job of each model, over and over."""
        inputs = [range(INPUT_TOKENS)]
        return itertools.cycle([Job(id=name, model=name, task=Task.EMBED, inputs=inputs) for name in self._ids])

    def _batches(self) -> float:
        families = self.engine.metering.registry.collect()
        samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == "cotenant_batch_tokens_count")


def row(name: str, models: int, turns: Sequence[Turn]) -> str:
    """A line of the table: medians, and the range of what is compared."""
    cpu_us = [turn.cpu_us for turn in turns]
    return (
        f"{name:6} {models:6} {statistics.median(turn.jobs_per_s for turn in turns):8,.0f}"
        f" {max(turn.jobs_per_s for turn in turns):8,.0f} {statistics.median(cpu_us):8.1f}"
        f" ({min(cpu_us):.1f}-{max(cpu_us):.1f}) {statistics.median(turn.jobs_per_batch for turn in turns):8.1f}"
    )


async def measure(options: argparse.Namespace) -> None:
    """Prints a line for each workload and number of models, and the ratio of CPU time."""
    stands = {models: Stand(models) for models in (1, options.models)}
    for stand in stands.values():
        await stand.engine.start()
        await stand.engine.wait_loaded()
    workloads: dict[str, Callable[[Stand], Awaitable[None]]] = {
        "waves": lambda stand: stand.wave(options.jobs),
        "loop": lambda stand: stand.loop(options.clients, options.jobs),
    }
    print("work   models   jobs/s     best   CPU us a job (range)   jobs a batch")
    for name, work in workloads.items():
        turns: dict[int, list[Turn]] = {models: [] for models in stands}
        for _ in range(options.turns + 1):
            for models, stand in stands.items():
                turns[models].append(await stand.timed(work(stand), options.jobs))
        for models, taken in turns.items():
            print(row(name, models, taken[1:]))
        ratios = [many.cpu_us / one.cpu_us for one, many in zip(*turns.values(), strict=True)][1:]
        print(f"{name:6}  ratio of CPU time {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    for stand in stands.values():
        await stand.engine.stop()


def main() -> None:
    """Measures on one core: the lane's thread and the loop's take turns there as they do under the GIL."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench_spine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=2_048, help="of a turn; also those in flight in a wave")
    parser.add_argument("--clients", type=int, default=64, help="of the loop")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    prepare_process()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    uvloop.run(measure(options))


if __name__ == "__main__":
    main()
