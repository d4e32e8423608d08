"""Clients of a real server that hang up: what they wanted is never run, queues are empty, and counters know them."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.server.conftest import MINILM, Server, Start
from tests.server.scraping import models, total, totals, until, waiting
from tests.server.test_exactness import real_texts

CLIENTS = 200
HANG_UP_S = 0.05
BATCH_TOKENS = 512
LONG_TEXTS = 2_000
LONG_TOKENS = 256
"""Of each: the model's limit. None of the 200 clients' texts has as many."""


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    """One lane, and nobody is told that the wait is too long."""
    return start(
        [{"id": "minilm", "source": MINILM, "max_batch_tokens": BATCH_TOKENS}], cpu_lanes=1, max_queue_ms=10_000_000
    )


async def ask_and_hang_up(server: Server, text: str) -> None:
    """Send a whole request, wait, and close the connection without having read a byte."""
    address = urlsplit(server.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps({"model": "minilm", "input": text}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    await writer.drain()
    await asyncio.sleep(HANG_UP_S)
    writer.close()
    await writer.wait_closed()


def hung_up(server: Server) -> tuple[float, float]:
    """As requests and as jobs are counted."""
    return total(server, "cotenant_requests_total", code="499"), total(server, "cotenant_jobs_cancelled_total")


def run(server: Server) -> tuple[float, float]:
    """Inputs that were run, and their tokens."""
    items, tokens = totals(server, "cotenant_batch_items_total", "cotenant_batch_tokens_sum")
    return items, tokens


def idle(server: Server) -> bool:
    return waiting(server) == (0, 0) and models(server)["minilm"]["results_pending"] == 0


@pytest.mark.anyio
async def test_200_who_hang_up_behind_a_long_request_cost_the_device_nothing(server: Server) -> None:
    before = run(server)
    # Longer than what the lane that is kept for queries takes, shorter than the texts of the long request.
    texts = [f"{text} {'and ' * 40}" for text in real_texts(CLIENTS, 60)]
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        body = {"model": "minilm", "input": ["a long text of many words " * 100] * LONG_TEXTS}
        long = asyncio.create_task(http.post("/v1/embeddings", json=body, headers={"x-lane": "online"}))
        await asyncio.to_thread(until, lambda: run(server) > before)
        await asyncio.gather(*[ask_and_hang_up(server, text) for text in texts])
        await asyncio.to_thread(until, lambda: hung_up(server) == (CLIENTS, CLIENTS))
        assert waiting(server)[0] > 0
        long.cancel()
        await asyncio.to_thread(until, lambda: hung_up(server) == (CLIENTS + 1, CLIENTS + 1))
    assert idle(server)
    tokens_then = run(server)[1]
    assert server.client.post("/v1/embeddings", json={"model": "minilm", "input": "x"}).status_code == 200
    items, tokens = (after - earlier for after, earlier in zip(run(server), before, strict=True))
    # The last text is the only one that isn't one of the long request's.
    assert tokens - 3 == (items - 1) * LONG_TOKENS
    assert items < LONG_TEXTS
    assert run(server)[1] - tokens_then <= BATCH_TOKENS + 3
