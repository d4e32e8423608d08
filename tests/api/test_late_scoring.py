"""Late-interaction models on the routes that score, and similarity maps; over fakes, whose sums are done by hand."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.registry import ServerSettings
from runtime.work import MAXSIM_ID, Lane, MatrixPair, Picture, Task
from tests.api.test_picture_inputs import DATA_URI, PNG
from tests.fakes import FakeEngine, matrix, maxsim, spec, status

MODEL = "org/late"
QUERY = "a b"
DOCUMENTS = ["c", "d e f", "", "d e f"]


def score(document: str, query: str = QUERY) -> float:
    return maxsim(MatrixPair(matrix(query), matrix(document)))


ORDER = sorted(range(len(DOCUMENTS)), key=lambda index: -score(DOCUMENTS[index]))


@pytest.fixture
def engine() -> FakeEngine:
    """A late-interaction model that sees, one that doesn't, and an embedder."""
    engine = FakeEngine(
        spec(MODEL, task="multi_vector"), spec("org/words", task="multi_vector"), spec("org/first"), price=3.6
    )
    engine.statuses = [status(each) for each in engine.specs]
    engine.statuses[0] = status(engine.specs[0], modalities=("text", "image"))
    return engine


def ask(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_gives_raw_maxsim_with_ties_in_their_order(client: TestClient, engine: FakeEngine, path: str) -> None:
    answer = ask(client, path, query=QUERY, documents=DOCUMENTS)
    assert [result["index"] for result in answer["results"]] == ORDER
    assert [result["relevance_score"] for result in answer["results"]] == [score(DOCUMENTS[i]) for i in ORDER]
    # Tokens that the model read: the query's and each different document's, once.
    assert answer["usage"]["total_tokens"] == 4 + 3 + 5 + 2
    documents, query, compared = engine.jobs
    assert (query.task, query.prompt_name, query.inputs) == (Task.MULTI_VECTOR, "query", [QUERY])
    assert (documents.prompt_name, documents.inputs) == ("document", ["c", "d e f", ""])
    assert (compared.model, len(compared.inputs)) == (MAXSIM_ID, 4)


def test_what_follows_documents_that_are_too_long_for_the_online_lane_runs_in_bulk(
    client: TestClient, engine: FakeEngine
) -> None:
    engine.most_online = 2
    ask(client, "/rerank", query=QUERY, documents=DOCUMENTS)
    assert [job.lane for job in engine.jobs] == [Lane.ONLINE, Lane.BULK, Lane.BULK]


def test_the_other_dialects_and_score_say_the_same(client: TestClient) -> None:
    of_tei = ask(client, f"/rerank?model={MODEL}", query=QUERY, texts=DOCUMENTS)
    assert [(item["index"], item["score"]) for item in of_tei] == [(i, score(DOCUMENTS[i])) for i in ORDER]
    of_vllm = ask(client, "/score", queries=QUERY, documents=DOCUMENTS)["data"]
    assert [item["score"] for item in of_vllm] == [score(document) for document in DOCUMENTS]
    pairs = ask(client, "/v1/score", queries=["a", "a"], documents=["b", "c d"])["data"]
    assert [item["score"] for item in pairs] == [score("b", "a"), score("c d", "a")]


@pytest.mark.parametrize(
    "picture",
    [
        {"image": DATA_URI},
        {"content": [{"type": "image_url", "image_url": {"url": DATA_URI}}]},
        {"image_url": DATA_URI},
    ],
)
def test_documents_may_be_pages(client: TestClient, engine: FakeEngine, picture: dict[str, Any]) -> None:
    documents = ["c", picture, picture]
    answer = ask(client, "/v1/rerank", query=QUERY, documents=documents, return_documents=True)
    assert engine.jobs[0].inputs == ["c", Picture(PNG, 6, 4)]
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    assert scores == {0: score("c"), 1: score("6 x 4"), 2: score("6 x 4")}
    shown = {result["index"]: result["document"]["text"] for result in answer["results"]}
    assert shown == {0: "c", 1: None, 2: None}
    data = ask(client, "/score", queries=QUERY, documents=documents)["data"]
    assert [item["score"] for item in data] == [scores[index] for index in range(3)]


def test_what_it_cost_is_the_sum_of_the_three_jobs(client: TestClient, engine: FakeEngine) -> None:
    engine.truncated_inputs = 1
    headers = client.post("/rerank", json={"model": MODEL, "query": QUERY, "documents": DOCUMENTS}).headers
    assert float(headers["x-device-ms"]) == pytest.approx(3 * 12.5)
    assert headers["x-compute-tokens"] == "14"
    assert headers["x-truncated-inputs"] == "3", "one of each, says the fake"
    assert headers["x-compute-characters"] == str(len(QUERY) + len("cd e f"))
    assert [account for account, *_ in engine.metering.costs] == [(MODEL, "rerank", "online", "default")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "org/words", "documents": [{"image": DATA_URI}]}, "documents"),
        ({"model": "org/first", "documents": [{"image": DATA_URI}]}, "documents"),
        ({"documents": [{"content": [{"text": "a"}, {"image": DATA_URI}]}]}, "documents"),
        ({"prompt_name": "query"}, "prompt_name"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc"),
    ],
)
def test_what_it_can_t_do_is_refused_before_any_work(
    client: TestClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "query": QUERY, "documents": DOCUMENTS, **fields}
    response = client.post("/v1/rerank", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_capability", param)
    assert not engine.jobs


def test_a_request_that_names_no_model_does_not_mean_it(client: TestClient) -> None:
    response = client.post("/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS})
    assert response.json()["error"]["code"] == "unsupported_capability"


# -- similarity maps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", [DATA_URI, {"image": DATA_URI}, {"image_url": {"url": DATA_URI}}])
def test_a_map_has_a_grid_a_token(client: TestClient, engine: FakeEngine, image: Any) -> None:
    answer = ask(client, "/v1/similarity_map", query=QUERY, image=image)
    page, query = matrix("6 x 4"), matrix(QUERY)
    maps = np.frombuffer(base64.b64decode(answer["maps"]), "<f4").reshape(answer["shape"])
    assert np.array_equal(maps[:, :, 0], query @ page[:2].T)
    assert (answer["tokens"], answer["grid"], answer["shape"]) == (["[", "a", "b", "]"], [2, 1], [4, 2, 1])
    assert (answer["dtype"], answer["width"], answer["height"]) == ("float32", 6, 4)
    assert answer["score"] == maxsim(MatrixPair(query, page))
    assert answer["usage"]["total_tokens"] == 4 + 5
    assert [(job.prompt_name, job.wants_layouts) for job in engine.jobs] == [("document", True), ("query", True)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"image": None}, "invalid_request"),
        ({"query": None}, "invalid_request"),
        ({"query": ["a"]}, "invalid_request"),
        ({"image": {"text": "a"}}, "invalid_request"),
        ({"image": "no picture"}, "invalid_image"),
        ({"model": "org/words"}, "unsupported_capability"),
        ({"model": "org/first"}, "unsupported_capability"),
        ({"image": "https://example.org/a.png"}, "image_url_not_allowed"),
    ],
)
def test_a_map_of_nothing_is_refused(client: TestClient, engine: FakeEngine, fields: dict[str, Any], code: str) -> None:
    body = {"model": MODEL, "query": QUERY, "image": DATA_URI, **fields}
    response = client.post("/v1/similarity_map", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert not engine.jobs


# -- accounts ---------------------------------------------------------------------------------------------------


@pytest.fixture
def limited(tmp_path: Path) -> FakeEngine:
    """One model and a key that may spend ten tokens a minute."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: a, key: a-key, tenant: shop, tokens_per_minute: 10}]")
    return FakeEngine(spec(MODEL, task="multi_vector"), settings=ServerSettings(port=0, keys_file=str(keys)))


@pytest.mark.parametrize(
    ("path", "body", "charged"),
    [
        ("/v1/rerank", {"documents": DOCUMENTS}, 14),
        ("/v1/maxsim", {"documents": DOCUMENTS}, 14),
        ("/v1/maxsim", {"documents": [matrix(" ".join("abcdefghij")).tolist()]}, 4 + 12),
    ],
)
def test_a_request_that_has_begun_is_finished_and_charged_once(
    limited: FakeEngine, path: str, body: dict[str, Any], charged: int
) -> None:
    client = TestClient(build_app(limited), headers={"authorization": "Bearer a-key"})
    response = client.post(path, json={"model": MODEL, "query": QUERY, **body})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["total_tokens"] == charged
    assert {job.tenant for job in limited.jobs} == {"shop"}
    begun = len(limited.jobs)
    assert client.post(path, json={"model": MODEL, "query": QUERY, **body}).status_code == 429
    assert len(limited.jobs) == begun
