"""A saturated server that also gets bodies of a megabyte answers every poll of its health, and none queues for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat

import httpx2
import numpy as np
import pytest

from tests.server.conftest import MINILM, Server, Start
from tests.server.test_exactness import WORDS

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.timeout(300)]

POLLS = 600
PERIOD_S = 0.05
"""20 a second for half a minute."""
INDEXERS = 8
LARGE_CLIENTS = 4
CLIENTS = INDEXERS + LARGE_CLIENTS
LARGE: dict[str, object] = {"model": "minilm", "input": "word " * 200_000}
"""A megabyte, cut at 256 tokens."""


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    return start([{"id": "minilm", "source": MINILM}])


def indexing() -> Iterator[dict[str, object]]:
    rng = np.random.default_rng(5)
    while True:
        texts = [" ".join(rng.choice(WORDS, length)) for length in rng.integers(5, 60, 32)]
        yield {"model": "minilm", "input": texts, "priority": 1}


async def test_every_poll_is_answered_and_none_waits_for_the_work_that_came_before_it(server: Server) -> None:
    answered = 0
    over = asyncio.Event()

    async def load(http: httpx2.AsyncClient, bodies: Iterator[dict[str, object]]) -> None:
        nonlocal answered
        while not over.is_set():
            answer = await http.post("/v1/embeddings", json=next(bodies))
            assert answer.status_code == 200
            answered += 1

    async def poll(http: httpx2.AsyncClient) -> int:
        """How many other requests were answered while this one waited."""
        before = answered
        assert (await http.get("/health")).status_code == 200
        return answered - before

    limits = httpx2.Limits(max_connections=4 * CLIENTS)
    async with httpx2.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        loads = [asyncio.create_task(load(http, indexing())) for _ in range(INDEXERS)]
        loads += [asyncio.create_task(load(http, repeat(LARGE))) for _ in range(LARGE_CLIENTS)]
        polls = []
        for _ in range(POLLS):
            polls.append(asyncio.create_task(poll(http)))
            await asyncio.sleep(PERIOD_S)
        overtaken = await asyncio.gather(*polls)
        over.set()
        await asyncio.gather(*loads)
    print(f"\n{len(overtaken)} polls beside {answered} requests; overtaken by {max(overtaken)} at the most")
    assert answered > CLIENTS
    # Behind everything that was there before it, a poll would be overtaken by all clients' requests.
    assert np.quantile(overtaken, 0.99) < CLIENTS / 2
