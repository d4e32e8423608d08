"""Over HTTP, every score and every order equal `CrossEncoder.predict` for that pair alone, in any dialect."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder

from tests.server.conftest import MAX_LENGTH, Server, Shared
from tests.server.test_exactness import real_texts

LOGIT_TOLERANCE = 1e-5
QUERY = "how does a class body see the names of its module"


@dataclass
class Case:
    """A server with a reranker, a classifier and an embedder, and the references."""

    server: Server
    documents: list[str]
    reranker: CrossEncoder
    classifier: CrossEncoder

    def logits(self, documents: Sequence[str]) -> NDArray[np.float32]:
        pairs = [(QUERY, document) for document in documents]
        rows = self.reranker.predict(
            pairs, batch_size=1, show_progress_bar=False, activation_fn=torch.nn.Identity(), convert_to_numpy=True
        )
        return np.asarray(rows, dtype=np.float32)

    def post(self, path: str, **body: Any) -> Any:
        response = self.server.client.post(path, json={"query": QUERY, **body})
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture(scope="module")
def case(shared: Shared) -> Case:
    names = ("tiny/reranker", "multi-class-classifier")
    reranker, classifier = (
        CrossEncoder(str(shared.folders[name]), device="cpu", local_files_only=True) for name in names
    )
    reranker.max_seq_length = classifier.max_seq_length = MAX_LENGTH
    return Case(shared.server, ["", *real_texts(60, 400), "word " * 3000], reranker, classifier)


def test_logits_and_order_equal_the_reference_pair_by_pair(case: Case) -> None:
    expected = case.logits(case.documents)
    results = case.post("/v1/rerank", documents=case.documents, raw_scores=True)["results"]
    found = np.empty_like(expected)
    for result in results:
        found[result["index"]] = result["relevance_score"]
    assert np.abs(found - expected).max() <= LOGIT_TOLERANCE
    order = [result["index"] for result in results]
    assert order == np.argsort(-found, kind="stable").tolist()
    # Where the reference tells two documents apart by more than the tolerance, so do we.
    ranked = expected[order]
    assert (np.maximum.accumulate(ranked[::-1])[::-1] - ranked <= 2 * LOGIT_TOLERANCE).all()


def test_scores_are_sigmoids_and_equal_alone_and_in_company_in_every_dialect(case: Case) -> None:
    documents = case.documents[:20]
    expected = 1 / (1 + np.exp(-case.logits(documents).astype(np.float64)))
    of_tei = {item["index"]: item["score"] for item in case.post("/rerank", texts=documents)}
    of_voyage = {
        item["index"]: item["relevance_score"]
        for item in case.post("/v1/rerank", documents=documents, top_k=20)["data"]
    }
    of_vllm = [item["score"] for item in case.post("/score", queries=QUERY, documents=documents)["data"]]
    of_weaviate = [item["score"] for item in case.post("/rerank", documents=documents, property="")["scores"]]
    alone = [case.post("/rerank", texts=[document])[0]["score"] for document in documents]
    for scores in ([of_tei[n] for n in range(20)], [of_voyage[n] for n in range(20)], of_vllm, of_weaviate, alone):
        np.testing.assert_allclose(scores, expected, atol=LOGIT_TOLERANCE / 4, rtol=0)


def test_a_thousand_documents_and_one_more(case: Case) -> None:
    documents = [f"document {index % 50}" for index in range(1000)]
    response = case.server.client.post("/rerank", json={"query": QUERY, "texts": documents})
    assert sorted(item["index"] for item in response.json()) == list(range(1000))
    assert response.headers["x-rerank-candidates"] == "1000"
    assert float(response.headers["x-device-ms"]) > 0
    assert float(response.headers["x-cost-usd"]) > 0
    over = case.server.client.post("/rerank", json={"query": QUERY, "texts": [*documents, "one more"]})
    assert over.status_code == 422
    assert over.json()["error_type"] == "Validation"


def test_a_lone_surrogate_hurts_nobody_beside_it(case: Case) -> None:
    good = {"query": QUERY, "texts": case.documents[:8]}
    bad = b'{"query":"a","texts":["b","\\ud800"]}'
    expected = case.post("/rerank", **good)
    client = case.server.client

    def send(index: int) -> Any:
        if index % 2:
            return client.post("/rerank", content=bad, headers={"content-type": "application/json"}).status_code
        return client.post("/rerank", json=good).json()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(16)))
    assert answers[1::2] == [400] * 8
    for answer in answers[::2]:
        assert [item["index"] for item in answer] == [item["index"] for item in expected]
        found, wanted = ([item["score"] for item in each] for each in (answer, expected))
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


def test_limits_of_the_halves_cut_them(case: Case) -> None:
    whole = case.documents[-1]
    scores = {
        limit: case.post("/v2/rerank", documents=[text], max_tokens_per_doc=limit)["results"][0]["relevance_score"]
        for limit, text in ((5, whole), (6, whole), (0, whole))
    }
    longer = case.post("/v2/rerank", documents=[whole + " more"], max_tokens_per_doc=5)["results"][0]
    assert longer["relevance_score"] == pytest.approx(scores[5], abs=1e-6)
    assert len({round(score, 7) for score in scores.values()}) == 3


def test_classes_equal_the_reference(case: Case) -> None:
    pairs = [(QUERY, document) for document in case.documents[:10]]
    expected = case.classifier.predict(pairs, batch_size=1, show_progress_bar=False, apply_softmax=True)
    labels = ("entailment", "neutral", "contradiction")
    answer = case.post("/predict", inputs=[list(pair) for pair in pairs])
    for labelled, row in zip(answer, np.asarray(expected), strict=True):
        scores = {item["label"]: item["score"] for item in labelled}
        np.testing.assert_allclose([scores[label] for label in labels], row, atol=LOGIT_TOLERANCE, rtol=0)
        assert [item["score"] for item in labelled] == sorted(scores.values(), reverse=True)
    [row] = case.post("/classify?format=vllm", input=["one text"])["data"]
    assert sum(row["probs"]) == pytest.approx(1.0)
    assert row["label"] == labels[int(np.argmax(row["probs"]))]


def test_each_model_refuses_what_it_can_t_do(case: Case) -> None:
    body = {"query": QUERY, "texts": ["a"]}
    statuses = {
        name: case.server.client.post(f"/rerank?model={name}", json=body).status_code
        for name in ("tiny/reranker", "bert-embedder", "multi-class-classifier")
    }
    assert statuses == {"tiny/reranker": 200, "bert-embedder": 200, "multi-class-classifier": 424}
