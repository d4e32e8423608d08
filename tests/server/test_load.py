"""A real server under load: nobody gets another's vector, memory stays bounded, monsters don't starve a query. Slow."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from tests.server.conftest import MINILM, Server, Start
from tests.server.test_exactness import WORDS, encode, minilm_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOLERANCE = 1e-5
CLIENTS = 64
REQUESTS_EACH = 20
MONSTERS = 20


@pytest.fixture(scope="module")
def server(start: Start, tiny_model: Callable[[str], Path]) -> Server:
    tiny = tiny_model("xlm-roberta-embedder")
    return start([{"id": "minilm", "source": MINILM}, {"id": "tiny", "source": str(tiny)}])


def texts_of(rng: np.random.Generator, count: int, most_words: int) -> list[str]:
    """Texts whose numbers of words are log-uniform, so that short ones are common and long ones are there."""
    lengths = np.exp(rng.uniform(0, np.log(most_words), count)).astype(int)
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


def decoded(item: dict[str, object], as_base64: bool) -> NDArray[np.float32]:
    embedding = item["embedding"]
    if as_base64:
        return np.frombuffer(base64.b64decode(str(embedding)), "<f4")
    return np.asarray(embedding, dtype=np.float32)


@pytest.mark.anyio
async def test_64_clients_on_two_models_get_their_own_exact_vectors(
    server: Server, tiny_model: Callable[[str], Path]
) -> None:
    rng = np.random.default_rng(1)
    texts = texts_of(rng, 300, 200)
    expected = {"minilm": encode(minilm_folder(), texts), "tiny": encode(tiny_model("xlm-roberta-embedder"), texts)}
    singles = {}
    for model in expected:
        answers = [server.client.post("/v1/embeddings", json={"model": model, "input": text}) for text in texts]
        singles[model] = [answer.json()["usage"]["prompt_tokens"] for answer in answers]

    async def client(number: int, http: httpx2.AsyncClient) -> int:
        own = np.random.default_rng(number)
        for _ in range(REQUESTS_EACH):
            model = str(own.choice(["minilm", "tiny"]))
            chosen = [int(i) for i in own.integers(0, len(texts), own.integers(1, 9))]
            dimensions = int(own.choice([0, 0, 16, 48]))
            as_base64 = bool(own.integers(0, 2))
            body = {"model": model, "input": [texts[i] for i in chosen], "dimensions": dimensions}
            body |= {"encoding_format": "base64"} if as_base64 else {}
            answer = (await http.post("/v1/embeddings", json=body)).raise_for_status().json()
            assert [item["index"] for item in answer["data"]] == list(range(len(chosen)))
            assert answer["usage"]["prompt_tokens"] == sum(singles[model][i] for i in chosen)
            for item, i in zip(answer["data"], chosen, strict=True):
                whole = expected[model][i]
                cut = whole[:dimensions] / np.linalg.norm(whole[:dimensions]) if dimensions else whole
                assert np.abs(decoded(item, as_base64) - cut).max() <= TOLERANCE
        return REQUESTS_EACH

    limits = httpx2.Limits(max_connections=CLIENTS)
    async with httpx2.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http:
        done = await asyncio.gather(*[client(number, http) for number in range(CLIENTS)])
    assert sum(done) == CLIENTS * REQUESTS_EACH


@pytest.mark.anyio
async def test_memory_is_as_high_after_3000_requests_as_after_600(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    texts = texts_of(np.random.default_rng(2), 3000, 300)
    peaks: list[int] = []
    gate = asyncio.Semaphore(32)

    async def ask(http: httpx2.AsyncClient, text: str) -> None:
        async with gate:
            answer = await http.post("/v1/embeddings", json={"model": "minilm", "input": text})
            assert answer.status_code == 200
            peaks.append(process.memory_info().rss)

    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as http:
        await asyncio.gather(*[ask(http, text) for text in texts])
    first, rest = max(peaks[:600]), max(peaks[600:])
    print(f"\npeak resident MiB: first 20 % {first / 2**20:.0f}, last 80 % {rest / 2**20:.0f}")
    assert rest <= 1.10 * first


@pytest.mark.anyio
async def test_twenty_megabytes_of_dots_at_once_hold_up_nobody_for_long(server: Server) -> None:
    """Figures are printed; what is asserted is that all are answered and that the tokens are bounded."""

    async def query(http: httpx2.AsyncClient) -> float:
        begin = time.perf_counter()
        (await http.post("/v1/embeddings", json={"model": "minilm", "input": "a short query"})).raise_for_status()
        return (time.perf_counter() - begin) * 1000

    async with httpx2.AsyncClient(base_url=server.url, timeout=120) as http:
        idle = [await query(http) for _ in range(40)]
        begin = time.perf_counter()
        body = {"model": "minilm", "input": "." * 1_000_000}
        monsters = [asyncio.create_task(http.post("/v1/embeddings", json=body)) for _ in range(MONSTERS)]
        beside = []
        while not all(monster.done() for monster in monsters):
            beside.append(await query(http))
        seconds = time.perf_counter() - begin
    answers = [await monster for monster in monsters]
    print(
        f"\n{MONSTERS} monsters in {seconds:.2f} s; query p95 idle {np.percentile(idle, 95):.1f} ms, "
        f"beside them {np.percentile(beside, 95):.1f} ms (n {len(beside)})"
    )
    assert [answer.status_code for answer in answers] == [200] * MONSTERS
    assert {answer.json()["usage"]["prompt_tokens"] for answer in answers} == {256}
