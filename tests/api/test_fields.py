"""Request fields of the reference on every route that takes work: each is honoured, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.work import Job, Lane
from tests.api.bodies import posts, resolved
from tests.fakes import FakeEngine

WITHOUT_JOBS = ("/tokenize", "/v1/tokenize", "/decode", "/detokenize", "/v1/detokenize")
"""They ask a tokenizer only."""
REFUSED = "/embed_sparse"
WORKING = sorted(set(posts()) - {*WITHOUT_JOBS, REFUSED})
VECTORS = ("/v1/embeddings", "/embed", "/embed_all", "/v1/embed", "/v2/embed", "/similarity", "/vectors", "/pooling")
OWN_FORM = ("/embed", "/embed_all", "/v1/embed", "/v2/embed", "/similarity", "/vectors", "/", "/vertex")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine.of_all_tasks()


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    with TestClient(build_app(engine)) as client:
        yield client


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    """The route's example, with what makes MaxSim embed."""
    example: dict[str, Any] = copy.deepcopy(posts()[path]["example"])
    return {**example, **({"query": "a b"} if path == "/v1/maxsim" else {}), **fields}


def jobs(client: TestClient, engine: FakeEngine, path: str, **fields: Any) -> list[Job]:
    """What the route had computed of its example with these fields."""
    engine.jobs.clear()
    body = body_of(path, **fields)
    if path == "/v1/maxsim":
        body["documents"] = ["a", "b"]
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert engine.jobs
    return engine.jobs


@pytest.mark.parametrize("path", WORKING)
def test_every_route_s_work_has_its_deadline_and_its_lane(client: TestClient, engine: FakeEngine, path: str) -> None:
    assert all(job.deadline_s is None for job in jobs(client, engine, path))
    assert all(job.deadline_s is not None for job in jobs(client, engine, path, timeout_ms=700))
    assert {job.lane for job in jobs(client, engine, path, priority=1)} == {Lane.BULK}


@pytest.mark.parametrize("header", ["x-deadline-ms", "x-request-timeout-ms"])
@pytest.mark.parametrize("path", [*WORKING, *WITHOUT_JOBS])
def test_every_route_refuses_a_deadline_that_is_none(client: TestClient, path: str, header: str) -> None:
    assert header in client.post(path, json=body_of(path), headers={header: "soon"}).text
    assert "timeout_ms" in client.post(path, json=body_of(path, timeout_ms=0)).text


@pytest.mark.parametrize("path", WITHOUT_JOBS)
def test_tokenizers_are_asked_by_the_deadline(client: TestClient, engine: FakeEngine, path: str) -> None:
    for fields, headers in (({}, {}), ({"timeout_ms": 700}, {}), ({}, {"x-deadline-ms": "700"})):
        assert client.post(path, json=body_of(path, **fields), headers=headers).status_code == 200
    without, of_field, of_header = engine.consulted_until
    assert without is None
    assert of_field is not None
    assert of_header is not None


@pytest.mark.parametrize("path", [*VECTORS, "/rerank", "/score", "/predict", "/classify", "/v1/maxsim"])
def test_every_route_s_work_is_cut_as_the_body_says(client: TestClient, engine: FakeEngine, path: str) -> None:
    assert "left" in {job.truncation_side for job in jobs(client, engine, path, truncate="START")}
    assert False in {job.truncate for job in jobs(client, engine, path, truncate=False)}


@pytest.mark.parametrize("path", OWN_FORM)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "base64"),
        ("embed_dtype", "float16"),
        ("endianness", "big"),
        ("output_dtype", "int8"),
        ("embedding_type", "int8"),
        ("modality", "image"),
    ],
)
def test_a_form_that_the_dialect_has_no_word_for_is_refused_by_name(
    client: TestClient, path: str, field: str, value: str
) -> None:
    body = body_of(path)
    (body["instances"][0] if path == "/vertex" else body)[field] = value
    response = client.post(path, json=body)
    assert response.status_code in (400, 422)
    assert field in response.text


INNER = [("/vectors", "config"), ("/similarity", "parameters")]


@pytest.mark.parametrize(("path", "inner"), INNER)
def test_options_count_in_the_body_and_in_the_object_within_it(
    client: TestClient, engine: FakeEngine, path: str, inner: str
) -> None:
    (outside,) = jobs(client, engine, path, truncate=False, timeout_ms=700, **{inner: {}})
    assert (outside.truncate, outside.deadline_s is None) == (False, False)
    (inside,) = jobs(client, engine, path, **{inner: {"truncate": False, "timeout_ms": 700, "input_type": "query"}})
    assert (inside.truncate, inside.deadline_s is None, inside.prompt_name) == (False, False, "query")
    (both,) = jobs(client, engine, path, dimensions=3, **{inner: {"dimensions": 2, "priority": 1}})
    assert (both.dimensions, both.lane) == (3, Lane.BULK)


def test_what_vertex_says_of_all_instances_counts_where_one_says_nothing(
    client: TestClient, engine: FakeEngine
) -> None:
    instances = [{"inputs": "a", "priority": None}, {"inputs": "b", "model": "owner/letters", "priority": 0}]
    made = jobs(client, engine, "/vertex", instances=instances, model="owner/rows", priority=1, timeout_ms=700)
    assert {(job.model, job.lane, job.deadline_s is None) for job in made} == {
        ("owner/rows", Lane.BULK, False),
        ("owner/letters", Lane.ONLINE, False),
    }


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/pooling", "/v1/multi-vector"])
def test_input_and_messages_together_are_refused(client: TestClient, path: str) -> None:
    body = {"input": "a", "messages": [{"role": "user", "content": "b"}], "model": "owner/rows"}
    response = client.post(path, json=body)
    assert response.status_code in (400, 422)
    assert response.json()["error"]["message"] == "give input or messages, not both"


def test_the_multi_vector_route_knows_pictures_and_conversations(client: TestClient, engine: FakeEngine) -> None:
    picture = posts()["/v1/similarity_map"]["example"]["image"]
    (seen,) = jobs(client, engine, "/v1/multi-vector", input=[picture], modality="image", model="owner/rows")
    assert not isinstance(seen.inputs[0], str)
    (read,) = jobs(client, engine, "/v1/multi-vector", input=None, messages=[{"role": "user", "content": "b"}])
    assert list(read.inputs) == ["b"]


def kinds(schema: dict[str, Any]) -> set[str]:
    return {part.get("type", "") for part in schema.get("anyOf", [schema])} - {"null"}


BOOLEANS = [
    (path, name)
    for path in sorted(set(posts()) - {REFUSED})
    for name, schema in resolved(posts()[path]["schema"])["properties"].items()
    if kinds(schema) == {"boolean"}
]


NO_BOOLEANS: list[Any] = ["yes", "on", "1", "", 1, 0, 1.0, []]


def test_the_booleans_are_those_of_the_schemas() -> None:
    expected = {"normalize", "raw_scores", "use_activation", "return_documents", "return_text", "return_multivector"}
    expected |= {"add_special_tokens", "return_token_strs", "skip_special_tokens"}
    assert {name for _, name in BOOLEANS} == expected


@pytest.mark.parametrize(("path", "name"), BOOLEANS)
def test_booleans_are_true_and_false_also_as_words_and_nothing_else(client: TestClient, path: str, name: str) -> None:
    for value, word in ((True, "true"), (False, "False")):
        plain, written = (client.post(path, json=body_of(path, **{name: said})) for said in (value, word))
        assert plain.status_code == written.status_code
        assert "must be true or false" not in plain.text + written.text
    for refused in NO_BOOLEANS:
        response = client.post(path, json=body_of(path, **{name: refused}))
        assert response.status_code in (400, 422)
        assert f"{name} must be true or false" in response.text
