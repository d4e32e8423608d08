"""A key whose tokens are spent: told before any picture is fetched, and still free to count its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.api.fetching import Fetcher
from runtime.registry import ServerSettings
from tests.fakes import FakeEngine, spec, status
from tests.test_pictures import encoded

ADDRESS = "https://pictures.example/page.png"
LIMIT = 20
PICTURE = encoded(Image.new("RGB", (6, 4)))
WITH_PICTURES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": [ADDRESS], "modality": "image"}),
    ("/v2/embed", {"images": [ADDRESS]}),
    ("/v1/multi-vector", {"input": [{"image": ADDRESS}]}),
    ("/v1/rerank", {"query": "a", "documents": [{"image": ADDRESS}]}),
    ("/v1/maxsim", {"query": "a", "documents": [{"image": ADDRESS}]}),
    ("/v1/similarity_map", {"query": "a", "image": ADDRESS}),
]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were fetched, each of which holds a picture."""
    asked: list[str] = []

    async def fetch(self: Fetcher, address: str) -> bytes:
        asked.append(address)
        return PICTURE

    monkeypatch.setattr(Fetcher, "fetch", fetch)
    return asked


@pytest.fixture
def limited(tmp_path: Path) -> TestClient:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys: [{{name: a, key: a-key, tokens_per_minute: {LIMIT}}}]")
    settings = ServerSettings(keys_file=str(keys), allow_image_hosts=("pictures.example",))
    engine = FakeEngine(spec("pages", task="multi_vector"), settings=settings)
    engine.statuses = [status(engine.specs[0], modalities=("text", "image"))]
    return TestClient(build_app(engine), headers={"x-api-key": "a-key"})


def spend(client: TestClient) -> None:
    """All tokens of this minute."""
    words = "word " * LIMIT
    assert client.post("/v1/embeddings", json={"model": "pages", "input": words}).status_code == 200


@pytest.mark.parametrize(("path", "body"), WITH_PICTURES, ids=[path for path, _ in WITH_PICTURES])
def test_nothing_is_fetched_for_a_key_whose_tokens_are_spent(
    limited: TestClient, fetched: list[str], path: str, body: dict[str, Any]
) -> None:
    assert limited.post(path, json={"model": "pages", **body}).status_code == 200
    assert fetched == [ADDRESS]
    spend(limited)
    response = limited.post(path, json={"model": "pages", **body})
    assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limited")
    assert fetched == [ADDRESS]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"inputs": "a b c"}),
        ("/tokenize", {"prompt": "a b c"}),
        ("/v1/tokenize", {"text": "a b c"}),
        ("/decode", {"ids": [65, 66]}),
        ("/detokenize", {"tokens": [65, 66]}),
    ],
)
def test_counting_tokens_costs_none_and_is_never_refused(limited: TestClient, path: str, body: dict[str, Any]) -> None:
    for _ in range(LIMIT):
        assert limited.post(path, json={"model": "pages", **body}).status_code == 200
    spend(limited)
    assert limited.post(path, json={"model": "pages", **body}).status_code == 200


def test_a_request_that_was_let_in_is_answered_whatever_its_own_jobs_spend(limited: TestClient) -> None:
    """A rerank by MaxSim takes three jobs; the first alone is beyond the limit."""
    body = {"model": "pages", "query": "a", "documents": ["word " * LIMIT, "b"]}
    assert limited.post("/v1/rerank", json=body).status_code == 200
    assert limited.post("/v1/rerank", json=body).status_code == 429
