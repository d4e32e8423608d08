"""POST /classify in Infinity's and vLLM's shapes, POST /predict in TEI's."""

from __future__ import annotations

import math
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.work import Head, Pair, Task
from tests.fakes import FakeEngine

MODEL = "owner/moods"
LABELS = ["calm", "glad", "sad"]


def softmax(*logits: float) -> list[Any]:
    powers = [math.exp(logit) for logit in logits]
    return [pytest.approx(power / sum(powers), abs=1e-15) for power in powers]


FOUR = softmax(0.0, 0.5, 0.0)
"""Of a text of four letters: glad, then calm and sad in a tie."""
SPACED = softmax(0.0, 0.375, -1.0)
"""Of `a b`."""


def post(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


# -- Infinity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/classify", "/v1/classify", "/classify?format=infinity"])
def test_infinity_s_answer(ranker: TestClient, path: str) -> None:
    answer = post(ranker, path, input=["four", "a b"])
    assert answer.pop("id").startswith("infinity-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "classify",
        "data": [
            [
                {"score": FOUR[1], "label": "glad"},
                {"score": FOUR[0], "label": "calm"},
                {"score": FOUR[2], "label": "sad"},
            ],
            [
                {"score": SPACED[1], "label": "glad"},
                {"score": SPACED[0], "label": "calm"},
                {"score": SPACED[2], "label": "sad"},
            ],
        ],
        "model": MODEL,
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_a_string_is_a_list_of_one(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    assert len(post(ranker, "/classify", input="four")["data"]) == 1
    [job] = ranking_engine.jobs
    assert (job.task, job.inputs, job.model) == (Task.CLASSIFY, ["four"], MODEL)


def test_raw_scores_are_logits(ranker: TestClient) -> None:
    [[first, *_]] = post(ranker, "/classify", input=["four"], raw_scores=True)["data"]
    assert first == {"score": 0.5, "label": "glad"}


def test_several_labels_that_don_t_exclude_each_other(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    ranking_engine.heads[Task.CLASSIFY] = Head(labels=tuple(LABELS), activation="sigmoid")
    [[first, second, _]] = post(ranker, "/classify", input=["four"])["data"]
    assert first == {"score": pytest.approx(1 / (1 + math.exp(-0.5))), "label": "glad"}
    assert second == {"score": 0.5, "label": "calm"}


def test_huge_logits_are_no_trouble(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    ranking_engine.logits[Task.CLASSIFY] = lambda text: [1e30, -1e30, 0.0]
    [row] = post(ranker, "/classify", input=["x"])["data"]
    assert [item["score"] for item in row] == [1.0, 0.0, 0.0]
    ranking_engine.heads[Task.CLASSIFY] = Head(labels=tuple(LABELS), activation="sigmoid")
    [row] = post(ranker, "/classify", input=["x"])["data"]
    assert [item["score"] for item in row] == [1.0, 0.5, 0.0]


# -- vLLM -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/classify?format=vllm", "/v1/classify?format=vllm"])
def test_vllm_s_answer(ranker: TestClient, ranking_engine: FakeEngine, path: str) -> None:
    answer = post(ranker, path, input=["four", "a b"], model=MODEL)
    assert answer.pop("id").startswith("classify-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "list",
        "model": MODEL,
        "data": [
            {"index": 0, "label": "glad", "probs": FOUR, "num_classes": 3},
            {"index": 1, "label": "glad", "probs": SPACED, "num_classes": 3},
        ],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert ranking_engine.metering.observations[0].surface == "vllm"


# -- TEI --------------------------------------------------------------------------------------------------------

GLAD_FIRST = [
    {"score": FOUR[1], "label": "glad"},
    {"score": FOUR[0], "label": "calm"},
    {"score": FOUR[2], "label": "sad"},
]


@pytest.mark.parametrize("inputs", ["four", ["four"]])
def test_a_single_prediction(ranker: TestClient, inputs: Any) -> None:
    assert post(ranker, "/predict", inputs=inputs) == GLAD_FIRST


def test_a_flat_list_of_two_is_one_pair(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    answer = post(ranker, "/predict", inputs=["a", "b"])
    assert ranking_engine.jobs[0].inputs == [Pair("a", "b")]
    assert [item["label"] for item in answer] == ["glad", "calm", "sad"]


def test_a_batch_of_singles_and_pairs(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    answer = post(ranker, "/predict", inputs=[["four"], ["a", "b"], [""]])
    assert ranking_engine.jobs[0].inputs == ["four", Pair("a", "b"), ""]
    assert answer[0] == GLAD_FIRST
    assert [len(labels) for labels in answer] == [3, 3, 3]
    assert len(post(ranker, "/predict", inputs=[["four"]])) == 1


def test_a_reranker_predicts_its_one_label(ranker: TestClient) -> None:
    answer = post(ranker, "/predict?model=owner/ranker", inputs=[["red", "red"]])
    assert answer == [[{"score": pytest.approx(1 / (1 + math.exp(-0.5))), "label": "LABEL_0"}]]
    raw = post(ranker, "/predict?model=owner/ranker", inputs=["red", "red"], raw_scores=True)
    assert raw == [{"score": 0.5, "label": "LABEL_0"}]


@pytest.mark.parametrize(
    ("inputs", "status", "kind"),
    [
        ([], 400, "Empty"),
        (["a", "b", "c"], 422, "Validation"),
        ([["a", "b", "c"]], 422, "Validation"),
        ([["a"], []], 422, "Validation"),
        ([["a"], "b"], 422, "Validation"),
        (["a", ["b"]], 422, "Validation"),
        (5, 422, "Validation"),
        ([["a"]] * 2049, 422, "Validation"),
        (None, 422, "Validation"),
    ],
    ids=["none", "three", "three-in-batch", "empty-in-batch", "mixed", "mixed-2", "number", "2049", "null"],
)
def test_bad_inputs_of_predict(ranker: TestClient, inputs: Any, status: int, kind: str) -> None:
    response = ranker.post("/predict", json={"inputs": inputs})
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error", "error_type"}
    assert response.json()["error_type"] == kind
    assert len(response.content) < 2048


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": []}, "empty_input", "input"),
        ({}, "invalid_request", "input"),
        ({"input": 5}, "invalid_request", "input"),
        ({"input": [5]}, "invalid_request", "input"),
        ({"input": ["a"] * 2049}, "too_many_inputs", "input"),
    ],
    ids=["empty", "missing", "number", "numbers", "2049"],
)
@pytest.mark.parametrize(("path", "status"), [("/classify", 422), ("/classify?format=vllm", 400)])
def test_bad_inputs_of_classify(
    ranker: TestClient, path: str, status: int, body: dict[str, Any], code: str, param: str
) -> None:
    response = ranker.post(path, json=body)
    assert response.status_code == status
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == (code, param)


def test_a_format_that_does_not_exist(ranker: TestClient) -> None:
    response = ranker.post("/classify?format=MARKER", json={"input": ["a"]})
    assert (response.status_code, response.json()["error"]["param"]) == (422, "format")
    assert "MARKER" not in response.text


def test_an_embedder_can_t_classify(ranker: TestClient) -> None:
    assert ranker.post("/predict?model=owner/letters", json={"inputs": "a"}).status_code == 424
    assert ranker.post("/classify", json={"input": ["a"], "model": "owner/letters"}).status_code == 400
