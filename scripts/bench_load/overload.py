"""Four times as many requests as the server can do, each with a deadline: who is refused, how soon, who is late."""

import asyncio
import math
import random
import time
from collections.abc import Iterator
from itertools import cycle

from scripts.bench_load.case import Case, Figures
from scripts.bench_load.corpus import SEED
from scripts.bench_load.figures import latency_ms, quantile, rate_per_s, within
from scripts.bench_load.load import Exchange, Load
from scripts.bench_load.target import PreparedRequest

TEXTS_A_REQUEST = 8
DEADLINE_MS = 1_000
IN_FLIGHT_AT_CAPACITY = 4
TIMES_CAPACITY = 4.0
PHASE_SHARE = 3
"""Idle latency and capacity are measured for a third of the time each, before the overload itself."""
RECOVERY_S = 3.0


async def overload(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
    """Idle latency, then capacity, then the overload, then one client alone. Refusals are figures and not faults."""
    requests = cycle(list(_requests(case)))
    seconds = case.pace.seconds / PHASE_SHARE
    idle = await load.phase(seconds).closed_loop(requests, 1)
    at_capacity = load.phase(seconds)
    busy = await at_capacity.closed_loop(requests, IN_FLIGHT_AT_CAPACITY)
    capacity_per_s = rate_per_s(busy, at_capacity.span) / TEXTS_A_REQUEST
    flooded = load.phase(case.pace.seconds)
    due_s = _arrivals_s(case.round, TIMES_CAPACITY * capacity_per_s, flooded.span.end_s)
    async with asyncio.TaskGroup() as clients:
        flood = clients.create_task(flooded.open_loop(requests, due_s))
        alone = clients.create_task(_afterwards(load, requests, flooded.span.end_s))
    measured = within(flood.result(), flooded.span)
    answered_s = max((each.end_s for each in measured), default=flooded.span.end_s)
    idle_ms = latency_ms(idle, 0.50)
    figures = {
        "idle_p50_ms": idle_ms,
        "capacity_per_s": capacity_per_s,
        "offered_per_s": len(measured) / flooded.span.seconds,
        "accepted_per_s": rate_per_s(measured, flooded.span) / TEXTS_A_REQUEST,
        "accepted_p50_ms": latency_ms(measured, 0.50),
        "accepted_p99_ms": latency_ms(measured, 0.99),
        **_refusals(measured),
        "recovered_ms": _recovered_ms(alone.result(), flooded.span.end_s, 2 * idle_ms),
        "first_over_idle": _first_ms(alone.result(), answered_s) / idle_ms,
    }
    return figures, [each for each in [*idle, *busy, *measured, *alone.result()] if not each.refused]


async def _afterwards(load: Load, requests: Iterator[PreparedRequest], begin_s: float) -> list[Exchange]:
    await asyncio.sleep(begin_s - time.perf_counter())
    return await load.phase(RECOVERY_S).closed_loop(requests, 1)


def _recovered_ms(exchanges: list[Exchange], since_s: float, most_ms: float) -> float:
    """After how long the first request began that was answered within `most_ms`; infinite: none was."""
    begun_s = [each.begin_s for each in exchanges if not each.fault and (each.end_s - each.begin_s) * 1e3 <= most_ms]
    return (min(begun_s, default=math.inf) - since_s) * 1e3


def _first_ms(exchanges: list[Exchange], since_s: float) -> float:
    """What the first request took that began once the overload was answered; infinite: it was refused, or none came."""
    first = next((each for each in exchanges if each.begin_s >= since_s), None)
    return math.inf if first is None or first.fault else (first.end_s - first.begin_s) * 1e3


def _refusals(exchanges: list[Exchange]) -> Figures:
    refused = [each for each in exchanges if each.refused and each.status != 504]
    took_ms = [(each.end_s - each.begin_s) * 1e3 for each in refused]
    return {
        "refused": len(refused),
        "refused_p50_ms": quantile(took_ms, 0.50),
        "refused_p95_ms": quantile(took_ms, 0.95),
        "without_retry_after": sum(each.retry_after_s is None for each in refused),
        "expired": sum(each.status == 504 for each in exchanges),
    }


def _requests(case: Case) -> Iterator[PreparedRequest]:
    for texts in case.corpus.requests:
        for start in range(0, len(texts), TEXTS_A_REQUEST):
            yield case.target.urgent(texts[start : start + TEXTS_A_REQUEST], DEADLINE_MS)


def _arrivals_s(round_number: int, rate_per_s: float, end_s: float) -> Iterator[float]:
    chooser = random.Random(SEED + round_number)
    due_s = time.perf_counter()
    while due_s < end_s:
        yield due_s
        due_s += chooser.expovariate(rate_per_s)
