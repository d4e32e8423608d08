"""Whatever is posted: no 5xx, no hang, small errors that don't repeat it, and JSON where it is good."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import httpx2
import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from starlette.testclient import TestClient

from runtime.api.app import build_app
from tests.api.bodies import MARKER, Request, posts, requests
from tests.fakes import FakeEngine, spec

QUICK = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SOAK = settings(QUICK, max_examples=10_000, derandomize=False, phases=[Phase.generate, Phase.shrink], print_blob=True)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[TestClient]:
    engine = FakeEngine(
        spec("owner/letters"),
        spec("owner/rows", task="multi_vector", aliases=("letters",)),
        spec("owner/ranker", task="rerank"),
        spec("owner/moods", task="classify"),
    )
    engine.statuses[1] = replace(engine.statuses[1], modalities=("text", "image"))
    with TestClient(build_app(engine)) as client:
        yield client


def hold(client: TestClient | httpx2.Client, request: Request) -> int:
    """Send it and hold the answer against the promise; its status."""
    response = client.post(request.path, content=request.body, headers=request.headers, params=request.query)
    status = response.status_code
    assert status < 500 or status in (503, 504), response.text  # not now, or not in the time that it gave
    assert response.headers["x-request-id"]
    if status >= 400:
        assert len(response.content) < 2048
        assert MARKER not in response.text
        assert "error" in orjson.loads(response.content)
    elif response.headers["content-type"] == "application/json":
        orjson.loads(response.content)
    return status


@QUICK
@given(request_=requests())
def test_300_bodies(fuzzed: TestClient, request_: Request) -> None:
    hold(fuzzed, request_)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@SOAK
@given(request_=requests())
def test_10_000_bodies(fuzzed: TestClient, request_: Request) -> None:
    hold(fuzzed, request_)


def test_every_route_is_among_them_and_good_bodies_are_answered(fuzzed: TestClient) -> None:
    """So that what is made up reaches further than the first check."""
    answered = set()
    for path, media in posts().items():
        named = {**media["example"], "model": "owner/letters"}
        for body in (media["example"], named):
            request = Request(path, orjson.dumps(body), {"content-type": "application/json"}, {})
            if hold(fuzzed, request) == 200:
                answered.add(path)
    assert set(posts()) - answered == {"/embed_sparse"}
