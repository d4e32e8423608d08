"""The engine in virtual time under random arrivals, hang-ups, deadlines and faults: nothing is lost or overtaken."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.batch import Batch
from runtime.devices.base import Concurrency
from runtime.devices.simulated import Fault
from runtime.errors import CotenantError
from runtime.work import Lane, Result
from tests.virtual import Stage, job, play, spec

BUDGET = 512
MODELS = ("a", "b", "c")
TENANTS = ("search", "index")


@dataclass(frozen=True)
class Request:
    """A job that is asked at some time, and whether its client waits for the answer."""

    at_ms: float
    model: str
    lane: Lane
    tenant: str
    sizes: tuple[int, ...]
    hang_up_ms: float | None
    deadline_ms: float | None


requests = st.builds(
    Request,
    at_ms=st.floats(0, 500),
    model=st.sampled_from(MODELS),
    lane=st.sampled_from(Lane),
    tenant=st.sampled_from(TENANTS),
    sizes=st.lists(st.integers(0, 700) | st.integers(1, 40), min_size=1, max_size=12).map(tuple),
    hang_up_ms=st.none() | st.floats(0, 300),
    deadline_ms=st.none() | st.floats(1, 2_000),
)
faults = st.builds(
    Fault,
    kind=st.sampled_from(["out_of_memory", "error", "slow"]),
    model=st.none() | st.sampled_from(MODELS),
    from_tokens=st.integers(0, 600),
    of_one_input=st.booleans(),
    after=st.integers(0, 5),
    times=st.integers(1, 10),
)
concurrencies = st.builds(
    Concurrency,
    lanes=st.integers(1, 3),
    flights=st.integers(1, 2),
    spare_lanes=st.integers(0, 1),
    small_tokens=st.just(32),
)

Outcome = Result | CotenantError | TimeoutError


async def ask(stage: Stage, request: Request) -> Outcome:
    begun_s = stage.now_s
    await asyncio.sleep(request.at_ms / 1000)
    deadline_s = None if request.deadline_ms is None else stage.now_s + request.deadline_ms / 1000
    one = job(request.model, *request.sizes, lane=request.lane, deadline_s=deadline_s, tenant=request.tenant)
    work = stage.engine.run(one)
    try:
        async with asyncio.timeout(None if request.hang_up_ms is None else request.hang_up_ms / 1000):
            return await work
    except (CotenantError, TimeoutError) as error:
        assert deadline_s is None or stage.now_s <= max(deadline_s, begun_s) + 1e-6
        return error


@settings(max_examples=15)
@given(st.lists(requests, min_size=1, max_size=30), concurrencies, st.lists(faults, max_size=3))
def test_every_request_has_one_true_outcome_in_order_and_within_the_budgets(
    asked: list[Request], concurrency: Concurrency, faults: Sequence[Fault]
) -> None:
    async def act(stage: Stage) -> list[Outcome]:
        outcomes = await asyncio.gather(*(ask(stage, request) for request in asked))
        await asyncio.sleep(60)  # what was under way when its client left has landed by now
        for status in stage.engine.describe():
            assert sum(status.queue_items.values()) == sum(status.queue_tokens.values()) == status.results_pending == 0
        assert stage.device.memory().used_by_us_bytes == len(MODELS) * 1_000
        check_batches(stage, concurrency)
        return outcomes

    specs = [spec(name, max_batch_tokens=BUDGET) for name in MODELS]
    outcomes = play(act, specs, concurrency=concurrency, faults=faults)
    for request, outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, Result):
            assert [int(row[0]) for row in outcome.rows] == list(request.sizes)
        elif isinstance(outcome, TimeoutError):
            assert request.hang_up_ms is not None
        elif outcome.code in ("deadline_exceeded", "queue_full"):
            assert request.deadline_ms is not None
        else:
            assert outcome.code in ("out_of_memory", "forward_failed")
            assert faults


def check_batches(stage: Stage, concurrency: Concurrency) -> None:
    """First in, first out within each line for each tenant; no batch over its budget; no input twice."""
    taken: dict[tuple[str, Lane, bool, str], list[tuple[float, int]]] = defaultdict(list)
    seen: set[int] = set()

    # Batches are noted as they land: of two that were formed at one moment, the later line may land first.
    def formed(batch: Batch) -> tuple[float, float, int]:
        return batch.taken_s, batch.entries[0].queued_s, batch.entries[0].index

    for batch in sorted(stage.batches, key=formed):
        assert batch.entries
        budget = concurrency.spare_batch_tokens if batch.spare else BUDGET
        assert batch.tokens <= budget or len(batch.entries) == 1
        assert not batch.spare or (batch.small and batch.lane is Lane.ONLINE)
        seen.update(map(id, batch.entries))
        for entry in batch.entries:
            line = (batch.worker.spec.id, batch.lane, batch.small, entry.tenant)
            taken[line].append((entry.queued_s, entry.index))
    assert len(seen) == sum(len(batch.entries) for batch in stage.batches)
    for order in taken.values():
        starts = [queued_s for queued_s, _ in order]
        assert starts == sorted(starts)


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from(MODELS), st.integers(1, 300)), min_size=1, max_size=20),
    st.integers(1, 3),
)
def test_nothing_starves_beside_endless_online_work(bulk: list[tuple[str, int]], lanes: int) -> None:
    """However much is asked online, bulk work keeps a tenth of the device."""

    async def act(stage: Stage) -> float:
        async def endless() -> None:
            while True:
                await stage.engine.run(job("a", 100))

        people = [asyncio.create_task(endless()) for _ in range(8 * lanes)]
        await asyncio.sleep(1.0)
        begun_s = stage.now_s
        await asyncio.gather(*(stage.engine.run(job(model, size, lane=Lane.BULK)) for model, size in bulk))
        took_s = stage.now_s - begun_s
        for each in people:
            each.cancel()
        await asyncio.gather(*people, return_exceptions=True)
        return took_s

    took_s = play(act, [spec(name) for name in MODELS], concurrency=Concurrency(lanes=lanes, flights=1))
    needs_ms = sum(2.0 + 0.1 * size for _, size in bulk)
    assert took_s * 1000 <= 12 * needs_ms + 1_500


def test_two_flights_never_pay_for_the_batch_before_them() -> None:
    async def act(stage: Stage) -> tuple[float, float]:
        await stage.engine.run(job("a", *[256] * 40, lane=Lane.BULK))
        return sum(batch.device_ms for batch in stage.batches), stage.device.busy_ms

    charged_ms, busy_before_ms = play(act, [spec("a")], concurrency=Concurrency(lanes=1, flights=2))
    assert charged_ms > 1_000
    assert charged_ms < busy_before_ms


def test_an_idle_device_waits_for_company_only_when_told_to() -> None:
    async def act(stage: Stage) -> list[int]:
        async def late(wait_ms: float) -> None:
            await asyncio.sleep(wait_ms / 1000)
            await stage.engine.run(job("a", 10))

        await asyncio.gather(*(late(wait_ms) for wait_ms in (0.0, 0.5, 1.5, 20.0)))
        return [len(batch.entries) for batch in stage.batches]

    assert play(act, [spec("a")]) == [1, 2, 1]
    assert play(act, [spec("a")], idle_wait_ms=2.0) == [3, 1]


def test_a_model_of_lower_priority_number_goes_first_whatever_its_due_time() -> None:
    async def act(stage: Stage) -> list[str]:
        first = asyncio.create_task(stage.engine.run(job("a", 500)))
        await asyncio.sleep(0.001)
        await asyncio.gather(first, *(stage.engine.run(job(name, 10)) for name in ("b", "c")))
        return [batch.worker.spec.id for batch in stage.batches]

    urgent, soon = spec("b", slo_ms=10), spec("c", slo_ms=1_000)
    assert play(act, [spec("a"), urgent, soon]) == ["a", "b", "c"]
    assert play(act, [spec("a"), urgent, soon.model_copy(update={"priority": -1})]) == ["a", "c", "b"]


def test_an_idle_model_that_wakes_neither_starves_nor_is_starved() -> None:
    """Beside a model that was indexed for long, a second one gets half from its first batch on, and no more."""

    async def act(stage: Stage) -> list[str]:
        async def endless(model: str) -> None:
            while True:
                await stage.engine.run(job(model, *[100] * 20, lane=Lane.BULK))

        tasks = [asyncio.create_task(endless("awake")) for _ in range(3)]
        await asyncio.sleep(30.0)
        stage.batches.clear()
        tasks += [asyncio.create_task(endless("sleeper")) for _ in range(3)]
        await asyncio.sleep(5.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [batch.worker.spec.id for batch in stage.batches]

    order = play(act, [spec("awake"), spec("sleeper")])
    for length in (8, 20, len(order)):
        assert abs(order[:length].count("sleeper") - length / 2) <= max(2, 0.1 * length)
    assert max(len(list(run)) for _, run in itertools.groupby(order)) <= 3
