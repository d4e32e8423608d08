"""Runs a scenario: the real engine on a simulated device, asked by simulated clients, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Coroutine, Iterator

from runtime.batch import Batch
from runtime.clock import VirtualClock
from runtime.devices.simulated import Fault, SimulatedDevice
from runtime.engine import Engine
from runtime.errors import CotenantError
from runtime.registry import RuntimeConfig, parse_bytes
from runtime.simulation.backend import SimulatedBackend
from runtime.simulation.event_loop import VirtualLoop
from runtime.simulation.figures import Figures
from runtime.simulation.lanes import virtual_machinery
from runtime.simulation.policies import POLICIES, REPLACEMENTS
from runtime.simulation.scenario import PolicyName, ReplacementName, Scenario, Traffic
from runtime.work import Job, Task

LEAST_BACK_OFF_S = 0.1
"""Before a client of a closed loop that was refused asks again, at least."""


def simulate(
    scenario: Scenario, policy: PolicyName | None = None, replacement: ReplacementName | None = None
) -> Figures:
    """What comes of a scenario; `policy` and `replacement` in place of its own. One seed gives the same figures."""
    scenario = scenario.model_copy(update={"replacement": replacement or scenario.replacement})
    clock = VirtualClock()
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(Simulation(scenario, policy or scenario.policy, clock).run())


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, policy: PolicyName, clock: VirtualClock) -> None:
        self.figures = Figures(counted_s=max(scenario.duration_s - scenario.settle_s, 1e-9))
        self._scenario = scenario
        self._clock = clock
        self._kind_of = {name: model.id for model in scenario.models for name in model.ids}
        self._ids = {model.id: model.ids for model in scenario.models}
        self._costs = {name: model.cost for model in scenario.models for name in model.ids}
        self._device = SimulatedDevice(
            clock, scenario.device.concurrency, parse_bytes(scenario.device.memory), self._faults(loading=True)
        )
        self._begun_s = float("inf")
        """When the traffic begins to count."""
        self._numbers = itertools.count()
        self._asking: set[asyncio.Task[None]] = set()
        self.engine = Engine(
            self._config(),
            SimulatedBackend(self._device, self._costs),
            virtual_machinery(clock, self._observe, POLICIES[policy], REPLACEMENTS[scenario.replacement]),
        )

    async def run(self) -> Figures:
        """From the first load to the last second of traffic."""
        await self.engine.start()
        await self.engine.wait_loaded()
        self._device.faults = self._faults(loading=False)
        self._begun_s = self._clock.now_s() + self._scenario.settle_s
        streams = [asyncio.create_task(each) for each in self._streams()]
        await asyncio.sleep(self._scenario.duration_s)
        for task in (*streams, *self._asking):
            task.cancel()
        await asyncio.gather(*streams, *self._asking, return_exceptions=True)
        self._begun_s = float("inf")
        self.figures.verdicts = self._verdicts()
        self.figures.ceilings = {status.id: status.max_batch_tokens or 0 for status in self.engine.describe()}
        await self.engine.stop()
        return self.figures

    # -- clients ------------------------------------------------------------------------------------------------

    def _streams(self) -> Iterator[Coroutine[None, None, None]]:
        for position, traffic in enumerate(self._scenario.traffic):
            chance = random.Random(f"{self._scenario.seed} {position}")
            if traffic.rate_per_s > 0:
                yield self._at_random(traffic, chance)
            if traffic.burst is not None:
                yield self._in_bursts(traffic, traffic.burst.every_s, traffic.burst.requests, chance)
            for number in range(traffic.clients):
                yield self._one_after_another(traffic, random.Random(f"{self._scenario.seed} {position} {number}"))

    async def _at_random(self, traffic: Traffic, chance: random.Random) -> None:
        await asyncio.sleep(traffic.from_s)
        while self._goes_on(traffic):
            await asyncio.sleep(chance.expovariate(traffic.rate_per_s))
            self._begin(traffic, chance)

    async def _in_bursts(self, traffic: Traffic, every_s: float, requests: int, chance: random.Random) -> None:
        await asyncio.sleep(traffic.from_s)
        while self._goes_on(traffic):
            for _ in range(requests):
                self._begin(traffic, chance)
            await asyncio.sleep(every_s)

    async def _one_after_another(self, traffic: Traffic, chance: random.Random) -> None:
        await asyncio.sleep(traffic.from_s)
        while self._goes_on(traffic):
            error = await self._ask(traffic, chance)
            if error is not None:
                await asyncio.sleep(max(error.retry_after_s or 0.0, LEAST_BACK_OFF_S))

    def _goes_on(self, traffic: Traffic) -> bool:
        since_s = self._clock.now_s() - self._begun_s + self._scenario.settle_s
        return traffic.until_s is None or since_s < traffic.until_s

    def _begin(self, traffic: Traffic, chance: random.Random) -> None:
        task = asyncio.create_task(self._ask_once(traffic, chance))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_once(self, traffic: Traffic, chance: random.Random) -> None:
        await self._ask(traffic, chance)

    async def _ask(self, traffic: Traffic, chance: random.Random) -> CotenantError | None:
        """One request and what became of it; the error that it ended in."""
        asked_s = self._clock.now_s()
        job = self._job(traffic, chance)
        found = self._device.holds(job.model)
        error, outcome = None, ""
        try:
            async with asyncio.timeout(None if traffic.hang_up_ms is None else traffic.hang_up_ms / 1000.0):
                await self.engine.run(job)
        except TimeoutError:
            outcome = "hung_up"
        except CotenantError as raised:
            error, outcome = raised, raised.code
        if asked_s >= self._begun_s:
            self.figures.asked += 1
            self.figures.found += found
            figures = self.figures.of(traffic.model, traffic.lane)
            if outcome:
                figures.outcomes[outcome] += 1
            else:
                figures.delays_ms.append((self._clock.now_s() - asked_s) * 1000.0)
        return error

    def _job(self, traffic: Traffic, chance: random.Random) -> Job:
        ids = self._ids[traffic.model]
        model = ids[0]
        if len(ids) > 1:
            ranks = range(1, len(ids) + 1)
            model = chance.choices(ids, cum_weights=list(itertools.accumulate(rank**-traffic.zipf for rank in ranks)))[
                0
            ]
        deadline_s = None if traffic.deadline_ms is None else self._clock.now_s() + traffic.deadline_ms / 1000.0
        return Job(
            id=str(next(self._numbers)),
            model=model,
            task=Task.EMBED,
            inputs=[range(self._tokens(traffic, chance)) for _ in range(traffic.inputs)],
            lane=traffic.lane,
            deadline_s=deadline_s,
        )

    def _tokens(self, traffic: Traffic, chance: random.Random) -> int:
        if not traffic.spread:
            return traffic.tokens
        return max(1, round(traffic.tokens * chance.lognormvariate(0.0, traffic.spread)))

    # -- the engine's parts -------------------------------------------------------------------------------------

    def _config(self) -> RuntimeConfig:
        scenario = self._scenario
        return RuntimeConfig(
            max_queue_ms=scenario.max_queue_ms,
            max_bulk_queue_ms=scenario.max_bulk_queue_ms,
            idle_wait_ms=scenario.idle_wait_ms,
            models=tuple(spec for model in scenario.models for spec in model.specs()),
        )

    def _observe(self, batch: Batch) -> None:
        if batch.landed_s >= self._begun_s:
            figures = self.figures.of(self._kind_of[batch.worker.spec.id], batch.lane)
            figures.batches += 1
            figures.inputs += len(batch.entries)
            figures.tokens += batch.tokens
            figures.device_ms += batch.device_ms

    def _faults(self, loading: bool) -> list[Fault]:
        """Those of loads while models are loaded, the others after: warming up is not what they are about."""
        return [each.fault() for each in self._scenario.faults if (each.kind == "stuck_load") == loading]

    def _verdicts(self) -> dict[str, int]:
        counted: Counter[str] = Counter()
        for family in self.engine.metering.registry.collect():
            if family.name == "cotenant_admission_decisions":
                for sample in family.samples:
                    if sample.name.endswith("_total"):
                        counted[sample.labels["decision"]] += int(sample.value)
        return dict(counted)
