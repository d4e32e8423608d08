"""POST /v1/maxsim: multi-vectors in every form, what is embedded first, refusals."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from runtime.registry import ServerSettings
from runtime.work import MAXSIM_ID, MatrixPair, Picture, Task
from tests.api.test_picture_inputs import DATA_URI, PNG
from tests.fakes import FakeEngine, matrix, maxsim, spec, status

Array = np.ndarray[Any, Any]
QUERY = np.array([[1, 0, 0], [0, 0.5, 0.25]], dtype=np.float32)
DOCUMENTS = [
    np.array([[0, 1, 0]], dtype=np.float32),
    np.array([[0.5, 0, -1], [0, 0, 1], [1, 1, 1]], dtype=np.float32),
    np.array([[-1, -1, -1], [-0.5, 0, 0]], dtype=np.float32),
]
SCORES = [maxsim(MatrixPair(QUERY, document)) for document in DOCUMENTS]
ORDER = sorted(range(3), key=lambda index: -SCORES[index])


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(
        spec("org/first"), spec("org/late", task="multi_vector"), settings=ServerSettings(max_documents=20)
    )
    engine.statuses = [status(each, modalities=("text", "image")) for each in engine.specs]
    return engine


def packed(array: Array, dtype: str = "float32", key: str = "embedding", **fields: Any) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()).decode()
    return {key: data, "dtype": dtype, "shape": array.shape, **fields}


def post(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/maxsim", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_documents_are_ranked_in_a_rerank_s_shape(client: TestClient, engine: FakeEngine) -> None:
    answer = post(client, query=QUERY.tolist(), documents=[document.tolist() for document in DOCUMENTS])
    assert [result["index"] for result in answer["results"]] == ORDER
    assert [result["relevance_score"] for result in answer["results"]] == [SCORES[index] for index in ORDER]
    assert list(answer) == ["id", "object", "created", "model", "results", "usage", "meta"]
    assert (answer["object"], answer["model"]) == ("rerank", MAXSIM_ID)
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    [job] = engine.jobs
    assert (job.model, job.task, len(job.inputs)) == (MAXSIM_ID, Task.MAXSIM, 3)


@pytest.mark.parametrize("key", ["embedding", "embeddings", "data"])
def test_base64_as_it_was_given_with_ids(client: TestClient, key: str) -> None:
    documents = [packed(document, key=key, id=f"page {index}") for index, document in enumerate(DOCUMENTS)]
    answer = post(client, query=packed(QUERY, key=key), documents=documents, top_n=2)
    assert [(result["index"], result["id"]) for result in answer["results"]] == [(i, f"page {i}") for i in ORDER[:2]]
    assert [result["relevance_score"] for result in answer["results"]] == [SCORES[i] for i in ORDER[:2]]


def test_smaller_numbers_stand_for_what_they_were_made_of(client: TestClient, engine: FakeEngine) -> None:
    unit = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    forms = [
        packed(unit, "float16"),
        packed(np.rint(unit * 127), "int8"),
        packed(np.rint((unit + 1) * 127.5), "uint8"),
    ]
    post(client, query=unit.tolist(), documents=forms)
    for pair, error in zip(engine.jobs[0].inputs, (5e-4, 1 / 254, 1 / 255), strict=True):
        assert isinstance(pair, MatrixPair)
        assert pair.document.dtype == np.float32
        assert np.abs(pair.document - unit).max() <= error * 1.001


def test_several_queries_have_a_list_each(client: TestClient) -> None:
    other = QUERY[:1] * -1
    queries = [{"id": 7, "embedding": QUERY.tolist()}, other.tolist()]
    data = post(client, queries=queries, documents=[document.tolist() for document in DOCUMENTS])["data"]
    assert [(item["index"], item.get("id")) for item in data] == [(0, 7), (1, None)]
    found = [{result["index"]: result["relevance_score"] for result in item["results"]} for item in data]
    assert found[0] == dict(enumerate(SCORES))
    assert found[1] == {i: maxsim(MatrixPair(other, document)) for i, document in enumerate(DOCUMENTS)}


def test_equal_scores_keep_their_order(client: TestClient) -> None:
    documents = [DOCUMENTS[2].tolist(), *[DOCUMENTS[0].tolist()] * 5]
    results = post(client, query=QUERY.tolist(), documents=documents)["results"]
    assert [result["index"] for result in results] == [1, 2, 3, 4, 5, 0]


def test_texts_and_pictures_are_embedded_first_each_as_what_it_is(client: TestClient, engine: FakeEngine) -> None:
    given = matrix("x y z")
    documents = [{"id": "t", "text": "b c"}, {"id": "p", "image": DATA_URI}, packed(given, id="v"), "b c"]
    response = client.post("/v1/maxsim", json={"model": "org/late", "query": "a", "documents": documents})
    answer = response.json()
    embedded = [matrix("b c"), matrix("6 x 4"), given, matrix("b c")]
    expected = {index: maxsim(MatrixPair(matrix("a"), document)) for index, document in enumerate(embedded)}
    assert {result["index"]: result["relevance_score"] for result in answer["results"]} == expected
    assert {result.get("id") for result in answer["results"]} == {"t", "p", "v", None}
    pages, query, compared = engine.jobs
    assert (query.model, query.prompt_name, query.inputs) == ("org/late", "query", ["a"])
    assert (pages.prompt_name, pages.inputs) == ("document", ["b c", Picture(PNG, 6, 4)])
    assert compared.model == MAXSIM_ID
    assert answer["model"] == "org/late"
    # Tokens that the model read, and the rows that were given.
    assert answer["usage"]["total_tokens"] == 3 + 4 + 5 + 5
    assert response.headers["x-compute-tokens"] == "17"
    assert response.headers["x-rerank-candidates"] == "4"
    assert response.headers["x-compute-type"] == "cpu"
    assert float(response.headers["x-device-ms"]) == pytest.approx(3 * 12.5)


def test_the_metrics_know_the_model_or_what_is_built_in(client: TestClient, engine: FakeEngine) -> None:
    post(client, query=QUERY.tolist(), documents=[QUERY.tolist()])
    post(client, model="org/late", query="a", documents=["b"])
    seen = [(each.model, each.task, each.status) for each in engine.metering.observations]
    assert seen == [(MAXSIM_ID, "maxsim", 200), ("org/late", "maxsim", 200)]


GOOD = {"query": [[1.0, 2.0]], "documents": [[[1.0, 2.0]]]}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"query": None}, "invalid_request", "query"),
        ({"queries": [[[1.0, 2.0]]]}, "invalid_request", "query"),
        ({"documents": None}, "invalid_request", "documents"),
        ({"documents": []}, "empty_input", "documents"),
        ({"query": None, "queries": []}, "empty_input", "queries"),
        ({"documents": [[[1.0, 2.0]]] * 21}, "too_many_documents", "documents"),
        ({"query": None, "queries": [[[1.0, 2.0]]] * 3, "documents": [[[1.0, 2.0]]] * 7}, "too_many_documents", None),
        ({"documents": [[[1.0, 2.0, 3.0]]]}, "invalid_request", "documents"),
        ({"documents": [[[1.0, 2.0], [1.0]]]}, "invalid_request", "documents"),
        ({"documents": [[1.0, 2.0]]}, "invalid_request", "documents"),
        ({"documents": [[["1", "2"]]]}, "invalid_request", "documents"),
        ({"documents": [[[None, 1.0]]]}, "invalid_request", "documents"),
        ({"documents": [[[1e30, 1.0]]]}, "invalid_request", "documents"),
        ({"documents": [[[1e300, 1.0]]]}, "invalid_request", "documents"),
        ({"documents": [[]]}, "invalid_request", "documents"),
        ({"documents": [[[]]]}, "invalid_request", "documents"),
        ({"documents": [[[1.0, 2.0]] * 16_385]}, "invalid_request", "documents"),
        ({"documents": [{"embedding": "AAAA"}]}, "invalid_encoding_format", "documents"),
        ({"documents": [{"embedding": "AAAA", "shape": [1, 2]}]}, "invalid_encoding_format", "documents"),
        ({"documents": [{"embedding": "!", "shape": [1, 2]}]}, "invalid_encoding_format", "documents"),
        ({"documents": [{"embedding": "", "shape": [-1, 2]}]}, "invalid_encoding_format", "documents"),
        ({"documents": [{"embedding": "", "shape": [1, 0]}]}, "invalid_request", "documents"),
        ({"documents": [{"embedding": "", "shape": "x"}]}, "invalid_encoding_format", "documents"),
        ({"documents": [packed(np.zeros((1, 2))) | {"shape": [2, 2]}]}, "invalid_encoding_format", "documents"),
        ({"documents": [packed(np.full((1, 2), np.nan, np.float32))]}, "invalid_request", "documents"),
        ({"documents": [packed(np.zeros((1, 2)), "float32") | {"dtype": "ubinary"}]}, "invalid_encoding_format", None),
        ({"documents": [{"id": [], "embedding": [[1.0, 2.0]]}]}, "invalid_request", "documents"),
        ({"documents": [{"id": "x" * 513, "embedding": [[1.0, 2.0]]}]}, "invalid_request", "documents"),
        ({"documents": [{"id": 1}]}, "invalid_request", "documents"),
        ({"documents": ["a"], "model": "org/first"}, "unsupported_capability", "model"),
        ({"model": "nope"}, "model_not_found", "model"),
        ({"top_n": -1}, "invalid_request", "top_n"),
    ],
)
def test_what_is_wrong_is_said_in_words(
    client: TestClient, engine: FakeEngine, fields: dict[str, Any], code: str, param: str | None
) -> None:
    response = client.post("/v1/maxsim", json={**GOOD, **fields})
    error = response.json()["error"]
    assert error["code"] == code, error
    assert response.status_code in (400, 404, 422)
    assert param is None or error["param"] == param
    assert len(response.content) < 2048
    assert all(job.model != MAXSIM_ID for job in engine.jobs)
