"""What clients ask before they begin: TEI's `/info` as Dify's plugin reads it, Weaviate's `/meta` and `/vectors`."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime import __version__
from runtime.api.app import build_app
from runtime.registry import ServerSettings
from runtime.work import Head
from tests.fakes import FakeEngine, spec, status, vector

HEAD = Head(labels=("no", "yes"), activation="softmax")


def dify_reads(info: dict[str, Any]) -> tuple[str, int, int]:
    """What Dify's plugin for TEI takes from it."""
    return next(iter(info["model_type"])), int(info["max_input_length"]), int(info["max_client_batch_size"])


def three() -> FakeEngine:
    """An embedder, a reranker and a classifier."""
    engine = FakeEngine(
        spec("owner/letters", revision="abc"), spec("owner/ranker", task="rerank"), spec("owner/moods", task="classify")
    )
    engine.statuses[0] = status(engine.specs[0], pooling="mean")
    engine.statuses[2] = status(engine.specs[2], head=HEAD)
    return engine


def test_one_model_is_described_whole(client: TestClient) -> None:
    info = client.get("/info").json()
    assert dify_reads(info) == ("embedding", 256, 2048)
    assert (info["model_id"], info["model_dtype"], info["version"]) == ("owner/letters", "float32", __version__)
    assert [model["model_id"] for model in info["models"]] == ["owner/letters"]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/m/owner/ranker/info", {}),
        ("/info?model=owner/ranker", {}),
        ("/info?model=owner%2Franker", {}),
        ("/info", {"x-model-id": "owner/ranker"}),
    ],
)
def test_a_named_model_is_described_whatever_names_it(path: str, headers: dict[str, str]) -> None:
    info = TestClient(build_app(three())).get(path, headers=headers).json()
    assert dify_reads(info) == ("reranker", 256, 1000)
    assert info["model_id"] == "owner/ranker"


def test_of_several_none_is_guessed_and_all_are_listed() -> None:
    info = TestClient(build_app(three())).get("/info").json()
    assert "model_type" not in info
    assert info["max_client_batch_size"] == 2048
    first, second, third = info["models"]
    assert (first["model_type"], first["model_sha"]) == ({"embedding": {"pooling": "mean"}}, "abc")
    assert list(second["model_type"]) == ["reranker"]
    labels = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    assert third["model_type"] == {"classifier": labels}


def test_an_unknown_model_is_404_in_tei_s_form(client: TestClient) -> None:
    for path in ("/info?model=nope", "/m/nope/info"):
        response = client.get(path)
        assert response.status_code == 404
        assert isinstance(response.json()["error"], str)


def test_a_key_for_one_model_sees_no_other(tmp_path: Any) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n- {name: a, key: k, models: [owner/ranker]}\n")
    engine = three()
    settings = ServerSettings(keys_file=str(keys))
    client = TestClient(build_app(FakeEngine(*engine.specs, settings=settings)), headers={"x-api-key": "k"})
    assert [model["model_id"] for model in client.get("/info").json()["models"]] == ["owner/ranker"]
    assert [model["model"] for model in client.get("/meta").json()["models"]] == ["owner/ranker"]
    assert client.get("/info?model=owner/letters").status_code == 403


def test_a_model_that_isn_t_loaded_is_described_as_far_as_it_is_known() -> None:
    engine = FakeEngine()
    engine.statuses = [status(engine.specs[0], task=None, state="loading", max_tokens=None, dtype=None)]
    info = TestClient(build_app(engine)).get("/info").json()
    assert (info["model_id"], info["model_type"], info["max_input_length"]) == ("owner/letters", None, None)


def test_meta_lists_the_models(client: TestClient) -> None:
    (model,) = client.get("/meta").json()["models"]
    assert (model["model"], model["dimensions"]) == ("owner/letters", 4)


def test_the_version_is_vllm_s(client: TestClient) -> None:
    assert client.get("/version").json() == {"version": __version__}


def test_weaviate_s_text_gets_its_vector(client: TestClient, engine: FakeEngine) -> None:
    config = {"pooling_strategy": "masked_mean", "task_type": "query", "dimensions": 3}
    answer = client.post("/vectors", json={"text": "a b", "config": config}).json()
    assert answer.pop("vector") == pytest.approx(vector("a b")[:3].tolist())
    assert answer == {"text": "a b", "dim": 3, "dims": 3}
    (job,) = engine.jobs
    assert (job.prompt_name, job.prompt_optional, job.dimensions) == ("query", True, 3)


def test_a_prompt_that_weaviate_s_caller_names_comes_before_the_module_s_type(
    client: TestClient, engine: FakeEngine
) -> None:
    client.post("/vectors", json={"text": "a", "prompt_name": "own", "config": {"task_type": "query"}})
    assert (engine.jobs[0].prompt_name, engine.jobs[0].prompt_optional) == ("own", False)


@pytest.mark.parametrize("config", [None, {}, {"dimensions": None, "pooling_strategy": "cls"}, {"task_type": ""}])
def test_weaviate_s_config_may_say_nothing_that_the_model_knows(
    client: TestClient, engine: FakeEngine, config: Any
) -> None:
    assert client.post("/vectors", json={"text": "a", "config": config}).json()["dims"] == 4
    assert engine.jobs[0].prompt_name is None


@pytest.mark.parametrize(
    "body", [{}, {"text": 5}, {"text": "a", "config": 5}, {"text": "a", "config": {"dimensions": 9}}]
)
def test_weaviate_reads_one_text_of_what_is_wrong(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post("/vectors", json=body)
    assert response.status_code == 400
    assert isinstance(response.json().pop("error"), str)
