"""One model flooded with online requests, and another that is asked for little: what that one's answers take."""

import asyncio
import time
from collections.abc import Iterator
from itertools import count, cycle

from scripts.bench_load.case import Case, Figures
from scripts.bench_load.figures import latency_ms, rate_per_s, within
from scripts.bench_load.load import Exchange, Load

FLOOD_CLIENTS = 48
RERANKS_PER_S = 1.0
RERANK_CANDIDATES = 10
PHASE_SHARE = 3
"""What a rerank takes alone is measured for a third of the time, before the flood."""
RISE_S = 3.0
"""So long the flood rises before the first rerank is sent."""


async def flood(case: Case, load: Load) -> tuple[Figures, list[Exchange]]:
    """Reranks alone, then beside the flood of the embedder. Refusals are figures and not faults."""
    reranks = (case.target.reranking(*candidates) for candidates in case.corpus.candidates(RERANK_CANDIDATES))
    texts = cycle([case.target.online(texts) for texts in case.corpus.requests])
    alone = await load.phase(case.pace.seconds / PHASE_SHARE).closed_loop(reranks, 1)
    flooded = load.phase(case.pace.seconds + RISE_S)
    async with asyncio.TaskGroup() as clients:
        flooding = clients.create_task(flooded.closed_loop(texts, FLOOD_CLIENTS))
        beside = clients.create_task(flooded.open_loop(reranks, _arrivals_s()))
    measured = within(beside.result(), flooded.span)
    figures = {
        "alone_p50_ms": latency_ms(alone, 0.50),
        "reranks": len(measured),
        "refused": sum(each.refused for each in measured),
        "rerank_p50_ms": latency_ms(measured, 0.50),
        "rerank_p95_ms": latency_ms(measured, 0.95),
        "flood_texts_per_s": rate_per_s(flooding.result(), flooded.span),
    }
    return figures, [each for each in [*alone, *measured, *flooding.result()] if not each.refused]


def _arrivals_s() -> Iterator[float]:
    begin_s = time.perf_counter() + RISE_S
    return (begin_s + number / RERANKS_PER_S for number in count())
