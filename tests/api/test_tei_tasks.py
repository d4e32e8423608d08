"""TEI's routes that name no task, and `/similarity`: who is meant, and that many bodies are one request."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.work import Job, Result, Task
from tests.fakes import FakeEngine, spec, vector

SIMILARITY = {"inputs": {"source_sentence": "a b", "sentences": ["a b", "c", "a b"]}}
RERANK = {"query": "a b", "texts": ["c", "a b"]}


def cosine(first: str, second: str) -> float:
    one, other = vector(first).astype(float), vector(second).astype(float)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def near(texts: list[str]) -> Any:
    return [pytest.approx(vector(text).tolist()) for text in texts]


def test_similarity_is_the_cosine_and_every_text_is_embedded_once(client: TestClient, engine: FakeEngine) -> None:
    answer = client.post("/similarity", json=SIMILARITY)
    assert answer.json() == pytest.approx([1.0, cosine("a b", "c"), 1.0], abs=1e-12)
    (job,) = engine.jobs
    assert (job.task, job.inputs) == (Task.EMBED, ["a b", "c"])
    assert answer.headers["x-compute-tokens"] == "7"


def test_similarity_s_parameters_may_stand_inside_or_outside_and_be_null(
    client: TestClient, engine: FakeEngine
) -> None:
    parameters = {"truncate": False, "truncation_direction": "Left", "prompt_name": "query", "model": None}
    client.post("/similarity", json={**SIMILARITY, "parameters": parameters})
    client.post("/similarity", json={**SIMILARITY, **parameters, "parameters": None})
    inside, outside = engine.jobs
    assert inside.prompt_name == outside.prompt_name == "query"
    assert inside.truncation_side == outside.truncation_side == "left"
    assert (inside.truncate, outside.truncate) == (False, False)


@pytest.mark.parametrize(
    ("inputs", "status"),
    [
        ("a", 422),
        ({"sentences": ["a"]}, 422),
        ({"source_sentence": 5, "sentences": ["a"]}, 422),
        ({"source_sentence": "a"}, 422),
        ({"source_sentence": "a", "sentences": "b"}, 422),
        ({"source_sentence": "a", "sentences": [5]}, 422),
        ({"source_sentence": "a", "sentences": []}, 400),
        ({"source_sentence": "a", "sentences": ["b"] * 2048}, 422),
    ],
)
def test_a_bad_similarity_is_refused(client: TestClient, inputs: Any, status: int) -> None:
    response = client.post("/similarity", json={"inputs": inputs})
    assert response.status_code == status
    assert response.json()["error_type"] == ("Empty" if status == 400 else "Validation")


def test_sparse_vectors_are_refused_with_a_word_about_what_there_is(client: TestClient, engine: FakeEngine) -> None:
    response = client.post("/embed_sparse", json={"inputs": "a"})
    assert response.status_code == 424
    assert response.json()["error_type"] == "Backend"
    assert "/embed" in response.json()["error"]
    assert engine.jobs == []


@pytest.mark.parametrize("path", ["/", "/invocations"])
@pytest.mark.parametrize(
    ("body", "task"),
    [
        (SIMILARITY, Task.EMBED),
        (RERANK, Task.RERANK),
        ({"query": "a", "documents": ["b"]}, Task.RERANK),
        ({"input": "a"}, Task.EMBED),
        ({"messages": [{"content": "a"}]}, Task.EMBED),
        ({"inputs": "a", "model": "owner/letters"}, Task.EMBED),
        ({"inputs": "a", "model": "owner/moods"}, Task.CLASSIFY),
        ({"inputs": ["a", "b"], "model": "owner/ranker"}, Task.CLASSIFY),
    ],
)
def test_the_body_or_the_model_says_what_is_meant(
    ranker: TestClient, ranking_engine: FakeEngine, path: str, body: dict[str, Any], task: Task
) -> None:
    assert ranker.post(path, json=body).status_code == 200
    assert [job.task for job in ranking_engine.jobs] == [task]


def test_the_answer_is_that_of_the_route_that_is_meant(ranker: TestClient) -> None:
    assert ranker.post("/", json=SIMILARITY).json() == ranker.post("/similarity", json=SIMILARITY).json()
    assert ranker.post("/", json=RERANK).json() == ranker.post("/rerank", json=RERANK).json()
    assert ranker.post("/m/owner/letters/", json={"inputs": ["a"]}).json() == near(["a"])
    assert ranker.post("/", json={"input": "a"}).json()["object"] == "list"


def test_inputs_alone_don_t_say_which_of_several_models_is_meant(ranker: TestClient) -> None:
    response = ranker.post("/", json={"inputs": "a"})
    assert response.status_code == 400
    assert "owner/moods" in response.json()["error"]


def test_other_methods_of_the_root_are_405_and_name_all_that_it_takes(client: TestClient) -> None:
    response = client.delete("/")
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_instances_are_answered_in_their_order_each_by_its_type(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    instances = [
        {"type": "rerank", **RERANK},
        {"type": "embed", "inputs": "a"},
        {"type": "predict", "inputs": "a", "model": "owner/moods"},
        SIMILARITY,
    ]
    answer = ranker.post("/vertex", json={"instances": instances})
    assert answer.status_code == 200, answer.text
    ranking, vectors, labels, cosines = answer.json()["predictions"]
    assert [item["index"] for item in ranking] == [1, 0]
    assert vectors == near(["a"])
    assert {item["label"] for item in labels} == {"calm", "glad", "sad"}
    assert cosines[0] == pytest.approx(1.0)
    assert answer.headers["x-compute-tokens"] == str((6 + 7) + 3 + 3 + (4 + 3))
    assert float(answer.headers["x-device-ms"]) == 4 * 12.5
    assert len(ranking_engine.metering.observations) == 1


class Gathering(FakeEngine):
    """Answers nobody before so many are there."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self._wanted = wanted
        self._all_there = asyncio.Event()

    async def run(self, job: Job) -> Result:
        if len(self.jobs) + 1 == self._wanted:
            self._all_there.set()
        self.gate = self._all_there
        return await super().run(job)


def test_instances_run_side_by_side() -> None:
    client = TestClient(build_app(Gathering(20)))
    answer = client.post("/vertex", json={"instances": [{"inputs": str(number)} for number in range(20)]})
    assert [rows[0][0] for rows in answer.json()["predictions"]] == [len(str(number)) for number in range(20)]


@pytest.mark.parametrize(
    ("instances", "status"),
    [
        (None, 422),
        ([], 400),
        (["a"], 422),
        ([{"type": "sing", "inputs": "a"}], 422),
        ([{"type": ["embed"], "inputs": "a"}], 422),
        ([{"inputs": "a"}, {"inputs": 5}], 422),
        ([{"type": "embed_sparse", "inputs": "a"}], 424),
        ([{"input": "a", "encoding_format": "bytes"}], 424),
        ([{"inputs": "a"}] * 3000, 422),
    ],
)
def test_a_bad_instance_is_the_whole_request_s_failure(client: TestClient, instances: Any, status: int) -> None:
    response = client.post("/vertex", json={"instances": instances})
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error", "error_type"}


def test_routes_are_alike_under_the_name_of_a_model() -> None:
    engine = FakeEngine(spec("owner/letters"), spec("owner/other"))
    client = TestClient(build_app(engine))
    assert client.post("/m/owner/other/similarity", json=SIMILARITY).status_code == 200
    assert client.post("/m/owner%2Fother/vertex", json={"instances": [{"inputs": "a"}]}).status_code == 200
    assert [job.model for job in engine.jobs] == ["owner/other"] * 2
