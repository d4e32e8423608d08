"""The fixed workloads: which requests, how many at once, and which figures come out."""

import asyncio
import random
import time
from collections.abc import Iterator
from itertools import count, cycle

from scripts.bench_load.case import Case, Figures, Run
from scripts.bench_load.corpus import SEED
from scripts.bench_load.figures import Measurement, latency_ms, rate_per_s, within
from scripts.bench_load.flood import flood
from scripts.bench_load.load import Exchange, Load, Span
from scripts.bench_load.overload import overload
from scripts.bench_load.processor import CoreWatch
from scripts.bench_load.target import PreparedRequest

INDEX_IN_FLIGHT = 4
MIXED_QUERIES_PER_S = 20.0
HEALTH_POLLS_PER_S = 20.0
LARGE_CLIENTS = 2
LARGE_CHARACTERS = 1_000_000
RERANK_CLIENTS = 4
RERANK_CANDIDATES = 50
# After the span every measured request is waited for; a server that answers none of them ends the run.
DRAIN_LIMIT_S = 120.0
FAULT_SAMPLES = 3


async def measure(case: Case) -> Measurement:
    """Runs one workload against one target.

    Raises:
        TimeoutError: requests due within the span were not answered within `DRAIN_LIMIT_S` after it.
    """
    watch = CoreWatch(case.target.port)
    begin_s = time.perf_counter() + case.pace.warmup_s
    load = Load(case.target, case.dimensions, Span(begin_s, begin_s + case.pace.seconds))
    try:
        async with asyncio.timeout(case.pace.warmup_s + case.pace.seconds + DRAIN_LIMIT_S):
            figures, exchanges = await WORKLOADS[case.workload](case, load)
    finally:
        load.pool.close()
    measured = within(exchanges, load.span)
    faults = [exchange.fault for exchange in measured if exchange.fault]
    return Measurement(
        workload=case.workload,
        target=case.target.name,
        round=case.round,
        figures=figures,
        requests=len(measured),
        faults=len(faults),
        fault_samples=tuple(sorted(set(faults))[:FAULT_SAMPLES]),
        cores=watch.cores(),
    )


def _queries(clients: int) -> Run:
    async def run(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
        requests = cycle([case.target.query(text) for text in case.corpus.queries])
        exchanges = await load.closed_loop(requests, clients)
        measured = within(exchanges, load.span)
        figures = {
            "queries_per_s": rate_per_s(exchanges, load.span),
            "p50_ms": latency_ms(measured, 0.50),
            "p95_ms": latency_ms(measured, 0.95),
            "p99_ms": latency_ms(measured, 0.99),
        }
        return figures, exchanges

    return run


async def _index(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
    requests = cycle([case.target.indexing(texts) for texts in case.corpus.requests])
    exchanges = await load.closed_loop(requests, INDEX_IN_FLIGHT)
    return _index_figures(exchanges, load.span), exchanges


async def _paced(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
    queries = cycle([case.target.query(text) for text in case.corpus.queries])
    exchanges = await load.open_loop(queries, _arrivals_s(case.round))
    return _query_figures(within(exchanges, load.span)), exchanges


async def _mixed(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
    indexing = cycle([case.target.indexing(texts) for texts in case.corpus.requests])
    queries = cycle([case.target.query(text) for text in case.corpus.queries])
    async with asyncio.TaskGroup() as loads:
        bulk = loads.create_task(load.closed_loop(indexing, INDEX_IN_FLIGHT))
        online = loads.create_task(load.open_loop(queries, _arrivals_s(case.round)))
    measured = within(online.result(), load.span)
    figures = {**_query_figures(measured), **_index_figures(bulk.result(), load.span)}
    return figures, [*online.result(), *bulk.result()]


async def _rerank(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
    exchanges = await load.closed_loop(_rerank_requests(case), RERANK_CLIENTS)
    return _rerank_figures(exchanges, load.span), exchanges


async def _rerank_mixed(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
    queries = cycle([case.target.query(text) for text in case.corpus.queries])
    async with asyncio.TaskGroup() as loads:
        reranks = loads.create_task(load.closed_loop(_rerank_requests(case), RERANK_CLIENTS))
        online = loads.create_task(load.open_loop(queries, _arrivals_s(case.round)))
    measured = within(online.result(), load.span)
    figures = {**_query_figures(measured), **_rerank_figures(reranks.result(), load.span)}
    return figures, [*online.result(), *reranks.result()]


async def _health(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
    """Liveness probes while both cores have more to do than they can, and bodies of a megabyte keep coming."""
    indexing = cycle([case.target.indexing(texts) for texts in case.corpus.requests])
    prose = " ".join(case.corpus.texts)
    large = cycle([case.target.query((prose * (LARGE_CHARACTERS // len(prose) + 1))[:LARGE_CHARACTERS])])
    async with asyncio.TaskGroup() as loads:
        bulk = loads.create_task(load.closed_loop(indexing, INDEX_IN_FLIGHT))
        bodies = loads.create_task(load.closed_loop(large, LARGE_CLIENTS))
        polls = loads.create_task(load.open_loop(cycle([case.target.health()]), _every_s(1 / HEALTH_POLLS_PER_S)))
    measured = within(polls.result(), load.span)
    figures = {
        "polls": len(measured),
        "p50_ms": latency_ms(measured, 0.50),
        "p95_ms": latency_ms(measured, 0.95),
        "p99_ms": latency_ms(measured, 0.99),
        "large_per_s": rate_per_s(bodies.result(), load.span),
        **_index_figures(bulk.result(), load.span),
    }
    return figures, [*polls.result(), *bodies.result(), *bulk.result()]


def _every_s(period_s: float) -> Iterator[float]:
    """Evenly, from now on."""
    begin_s = time.perf_counter()
    return (begin_s + number * period_s for number in count())


def _rerank_requests(case: Case) -> Iterator[PreparedRequest]:
    return (case.target.reranking(*candidates) for candidates in case.corpus.candidates(RERANK_CANDIDATES))


def _rerank_figures(exchanges: list[Exchange], span: Span) -> Figures:
    measured = within(exchanges, span)
    return {
        "pairs_per_s": rate_per_s(exchanges, span),
        "rerank_p50_ms": latency_ms(measured, 0.50),
        "rerank_p95_ms": latency_ms(measured, 0.95),
    }


def _query_figures(measured: list[Exchange]) -> Figures:
    return {
        "queries": len(measured),
        "query_p50_ms": latency_ms(measured, 0.50),
        "query_p95_ms": latency_ms(measured, 0.95),
    }


def _index_figures(exchanges: list[Exchange], span: Span) -> Figures:
    tokens_per_s = rate_per_s(exchanges, span, tokens=True)
    reported = {"usage_per_s": tokens_per_s} if tokens_per_s else {}
    return {"texts_per_s": rate_per_s(exchanges, span), **reported}


def _arrivals_s(round_number: int) -> Iterator[float]:
    """A Poisson stream, the same for every target within a round."""
    chooser = random.Random(SEED + round_number)
    due_s = time.perf_counter()
    while True:
        due_s += chooser.expovariate(MIXED_QUERIES_PER_S)
        yield due_s


WORKLOADS: dict[str, Run] = {
    "query-1": _queries(1),
    "query-8": _queries(8),
    "query-32": _queries(32),
    "index": _index,
    "paced": _paced,
    "mixed": _mixed,
    "health": _health,
    "rerank": _rerank,
    "rerank-mixed": _rerank_mixed,
    "overload": overload,
    "flood": flood,
}
RERANKS = frozenset({"rerank", "rerank-mixed", "flood"})
"""Workloads that need a reranker on every server."""
ON_REQUEST = frozenset({"overload", "flood"})
"""Workloads that run only where they are asked for: a server that refuses nothing needs minutes to recover."""
