"""What a request says never reaches the log or the metrics, however it ends."""

from __future__ import annotations

import io
import logging
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from runtime.api.access import JsonFormatter
from runtime.api.app import build_app
from runtime.engine import Engine
from runtime.models.base import Model
from tests.doubles import CountingModel, DoubleBackend
from tests.engines import running

MARKER = "zebra-in-the-bathtub"
GOOD, BAD = 90, 10


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that is logged from DEBUG on, as JSON lines with tracebacks."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter())
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Engine, DoubleBackend, httpx2.AsyncClient]]:
    async with running("a", "b") as (engine, backend):
        transport = httpx2.ASGITransport(app=build_app(engine))
        async with httpx2.AsyncClient(transport=transport, base_url="http://cotenant") as client:
            yield engine, backend, client


def bad_bodies() -> Iterator[dict[str, Any]]:
    """Ten ways to fail, each with the marker where it hurts."""
    yield {"content": f'{{"input": "{MARKER}'}
    for body in (
        {"input": MARKER, "model": MARKER},
        {"input": MARKER, "model": "a", "truncate": MARKER},
        {"input": MARKER, "model": "a", "encoding_format": MARKER},
        {"input": MARKER, "model": "a", "dimensions": MARKER},
        {"input": {"text": MARKER}, "model": "a"},
        {"input": f"{MARKER} poison", "model": "a"},
        {"input": f"{MARKER} bug", "model": "b"},
        {"input": [MARKER, [MARKER]], "model": "a"},
    ):
        yield {"json": body}
    yield {"content": MARKER.encode(), "headers": {"content-type": MARKER}}


def poisoned(texts: list[str]) -> BaseException | None:
    return ValueError(f"can't run {texts}") if any("poison" in text for text in texts) else None


@pytest.mark.anyio
async def test_a_hundred_requests_leave_no_word_of_theirs_in_the_log(
    served: tuple[Engine, DoubleBackend, httpx2.AsyncClient], log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, backend, client = served
    backend.models["a"].fail_on = poisoned
    with_bug(backend.models["b"], monkeypatch)
    statuses = []
    for number in range(GOOD):
        body = {"input": [MARKER, f"{MARKER} {number}"], "model": "a", "user": MARKER}
        statuses.append((await client.post("/v1/embeddings", json=body)).status_code)
    assert statuses == [200] * GOOD
    refused = [await client.post("/embeddings", **request) for request in bad_bodies()]
    assert len(refused) == BAD
    assert all(answer.status_code >= 400 for answer in refused)
    assert refused[6].json()["error"]["code"] == "forward_failed"
    assert refused[7].json()["error"]["code"] == "internal_error"
    assert not [answer.text for answer in refused if MARKER in answer.text]
    written = log.getvalue()
    assert written.count("cotenant.access") == GOOD + BAD
    assert "LookupError" in written
    assert MARKER not in written
    assert MARKER not in engine.metering.render().decode()


def with_bug(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make preparation fail in a way that nobody foresaw, with the input in the error and in its cause."""
    assert isinstance(model, CountingModel)

    def prepare(job: Any) -> Any:
        try:
            raise KeyError(job.inputs)
        except KeyError as error:
            raise LookupError(f"no {job.inputs}") from error

    monkeypatch.setattr(model, "prepare", prepare)


def series(engine: Engine) -> int:
    return sum(not line.startswith("#") for line in engine.metering.render().decode().splitlines())


@pytest.mark.anyio
async def test_random_names_make_no_series(served: tuple[Engine, DoubleBackend, httpx2.AsyncClient]) -> None:
    engine, _, client = served
    chance = random.Random(7)

    async def ask(times: int) -> None:
        for _ in range(times):
            name = f"model-{chance.getrandbits(64):x}"
            for path in ("/v1/embeddings", "/embeddings", f"/m/{name}/v1/embeddings"):
                headers = {"x-model-id": name, "x-request-id": name, "user-agent": name}
                body = {"input": "a", "model": name, "user": name}
                assert (await client.post(path, json=body, headers=headers)).status_code == 404

    await ask(10)
    after_10 = series(engine)
    await ask(490)
    assert series(engine) == after_10
