"""Clients of a real server that hang up: what they wanted is never run, queues are empty, and counters know them."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.server.conftest import MINILM, Server, Start
from tests.server.scraping import total, until, waiting
from tests.server.test_exactness import real_texts

CLIENTS = 200
HANG_UP_S = 0.05
LONG_BATCH_TOKENS = 16_384


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    """One lane, which one batch can hold for seconds."""
    return start([{"id": "minilm", "source": MINILM, "max_batch_tokens": LONG_BATCH_TOKENS}], cpu_lanes=1)


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


@pytest.mark.anyio
async def test_200_who_hang_up_behind_a_long_batch_cost_the_device_nothing(server: Server) -> None:
    tokens = total(server, "cotenant_batch_tokens_sum")
    cancelled = total(server, "cotenant_jobs_cancelled_total")
    left = total(server, "cotenant_requests_total", code="499")
    # More than a sentence, so that none of them goes into the lane that is kept for queries.
    texts = real_texts(CLIENTS, 400)
    texts = [f"{text} {'and so on ' * 30}" for text in texts]
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        body = {"model": "minilm", "input": ["a long text of many words " * 100] * (LONG_BATCH_TOKENS // 256)}
        long = asyncio.create_task(http.post("/v1/embeddings", json=body))
        await asyncio.to_thread(until, lambda: waiting(server) == (0, 0) and not nothing_pending(server))
        await asyncio.gather(*[ask_and_hang_up(server, text) for text in texts])
        answer = (await long).raise_for_status().json()
    until(lambda: total(server, "cotenant_requests_total", code="499") - left == CLIENTS)
    assert total(server, "cotenant_jobs_cancelled_total") - cancelled == CLIENTS
    assert waiting(server) == (0, 0)
    assert nothing_pending(server)
    assert total(server, "cotenant_batch_tokens_sum") - tokens == answer["usage"]["total_tokens"] == LONG_BATCH_TOKENS


def nothing_pending(server: Server) -> bool:
    (model,) = server.client.get("/admin/models").json()["models"]
    return bool(model["results_pending"] == 0)
