"""Every rerank dialect in its own shape, told apart by the body, over one core."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime.work import Pair, Task
from tests.api.ranking import COHERE_PATHS, DOCUMENTS, LOGITS, MODEL, ORDER, PATHS, QUERY, ask, indices
from tests.fakes import FakeEngine

TOKENS = sum(3 + len(document.split()) + 3 for document in DOCUMENTS)


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


SCORES = [sigmoid(logit) for logit in LOGITS]


# -- shapes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", COHERE_PATHS)
def test_cohere_s_answer(ranker: TestClient, path: str) -> None:
    answer = ask(ranker, path, documents=DOCUMENTS, model=MODEL)
    assert len(answer.pop("id")) == 36
    assert abs(answer.pop("created") - time.time()) < 60
    assert answer == {
        "object": "rerank",
        "model": MODEL,
        "results": [{"index": index, "relevance_score": pytest.approx(SCORES[index], abs=1e-15)} for index in ORDER],
        "usage": {"prompt_tokens": TOKENS, "total_tokens": TOKENS},
        "meta": {
            "api_version": {"version": path.removesuffix("/rerank")[-1]},
            "billed_units": {"search_units": 1, "input_tokens": TOKENS},
            "tokens": {"input_tokens": TOKENS, "output_tokens": 0},
        },
    }


@pytest.mark.parametrize("path", COHERE_PATHS)
@pytest.mark.parametrize("asked", [True, "true", "TRUE"], ids=repr)
def test_cohere_s_documents_are_objects_where_they_are_asked_for(ranker: TestClient, path: str, asked: Any) -> None:
    results = ask(ranker, path, documents=DOCUMENTS, return_documents=asked)["results"]
    assert [result["document"] for result in results] == [{"text": DOCUMENTS[index]} for index in ORDER]


@pytest.mark.parametrize("asked", [False, "false", None])
def test_cohere_s_documents_are_absent_where_they_are_not(ranker: TestClient, asked: Any) -> None:
    results = ask(ranker, "/v2/rerank", documents=DOCUMENTS, return_documents=asked)["results"]
    assert all(result.keys() == {"index", "relevance_score"} for result in results)


def test_infinity_s_answer_has_strings_or_null_for_documents(ranker: TestClient) -> None:
    answer = ask(ranker, "/rerank", documents=DOCUMENTS)
    assert answer["id"].startswith("infinity-")
    assert (answer["object"], answer["model"]) == ("rerank", MODEL)
    assert answer["usage"] == {"prompt_tokens": TOKENS, "total_tokens": TOKENS}
    assert indices(answer["results"]) == ORDER
    assert [result["document"] for result in answer["results"]] == [None] * 4
    results = ask(ranker, "/rerank", documents=DOCUMENTS, return_documents=True)["results"]
    assert [result["document"] for result in results] == [DOCUMENTS[index] for index in ORDER]


@pytest.mark.parametrize(
    "body",
    [
        {"documents": [{"text": "red"}]},
        {"documents": ["red"], "max_tokens_per_doc": 5},
        {"documents": ["red"], "max_chunks_per_doc": 2},
        {"documents": ["red"], "rank_fields": ["text"]},
    ],
    ids=["objects", "max_tokens_per_doc", "max_chunks_per_doc", "rank_fields"],
)
def test_the_bare_path_answers_other_clients_in_their_own_form(ranker: TestClient, body: dict[str, Any]) -> None:
    [result] = ask(ranker, "/rerank", return_documents=True, **body)["results"]
    assert result["document"] == {"text": "red"}


@pytest.mark.parametrize("path", PATHS)
def test_tei_s_answer_is_a_bare_list(ranker: TestClient, path: str) -> None:
    expected = [{"index": index, "score": pytest.approx(SCORES[index], abs=1e-15)} for index in ORDER]
    assert ask(ranker, path, texts=DOCUMENTS) == expected
    with_texts = ask(ranker, path, texts=DOCUMENTS, return_text=True)
    assert [item["text"] for item in with_texts] == [DOCUMENTS[index] for index in ORDER]


def test_tei_s_answer_has_every_text_whatever_top_n_says(ranker: TestClient) -> None:
    # What LiteLLM sends.
    body = {"top_n": 2, "return_text": True, "raw_scores": False, "truncate": False, "truncation_direction": "Right"}
    assert len(ask(ranker, "/rerank", texts=DOCUMENTS, **body)) == 4


@pytest.mark.parametrize("path", PATHS)
def test_voyage_s_answer_has_data(ranker: TestClient, path: str) -> None:
    answer = ask(ranker, path, documents=DOCUMENTS, model=MODEL, top_k=2, truncation=True)
    assert answer == {
        "object": "list",
        "data": [{"index": index, "relevance_score": pytest.approx(SCORES[index])} for index in ORDER[:2]],
        "model": MODEL,
        "usage": {"total_tokens": TOKENS},
    }
    everything = ask(ranker, path, documents=DOCUMENTS, top_k=None, truncation=False, return_documents=True)["data"]
    assert [item["document"] for item in everything] == [DOCUMENTS[index] for index in ORDER]


@pytest.mark.parametrize("path", PATHS)
def test_weaviate_s_answer_keeps_the_order_of_the_documents(ranker: TestClient, path: str) -> None:
    answer = ask(ranker, path, documents=DOCUMENTS, property="")
    scores = [{"document": DOCUMENTS[index], "score": pytest.approx(SCORES[index])} for index in range(4)]
    assert answer == {"query": QUERY, "scores": scores}


# -- what clients send ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"documents": DOCUMENTS, "top_n": 4, "model": MODEL},
        {"documents": DOCUMENTS, "top_n": None, "max_tokens_per_doc": None, "return_documents": None},
        {"documents": DOCUMENTS, "return_documents": "true", "return_len": "true"},
        {"documents": [{"text": text} for text in DOCUMENTS], "rank_fields": ["text"], "max_chunks_per_doc": 10},
        {"documents": [{"content": [{"type": "text", "text": text}]} for text in DOCUMENTS]},
        {"documents": [{"content": text} for text in DOCUMENTS]},
        {"documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]], "user": "me", "instruction": "find"},
        {"documents": DOCUMENTS, "query": {"content": [{"type": "text", "text": QUERY}]}},
        {"documents": DOCUMENTS, "query": {"text": QUERY}, "priority": 0},
    ],
    ids=["open-webui", "nulls", "ragflow", "cohere-1", "parts", "content", "mixed", "mteb", "query-object"],
)
@pytest.mark.parametrize("path", PATHS)
def test_bodies_of_other_clients(
    ranker: TestClient, ranking_engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    answer = ask(ranker, path, **body)
    assert indices(answer["results"]) == ORDER
    assert ranking_engine.jobs[0].inputs == [Pair(QUERY, document) for document in DOCUMENTS]


def test_a_lone_document_and_its_parts(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    ask(ranker, "/v1/rerank", documents={"content": parts})
    ask(ranker, "/v1/rerank", documents="three")
    assert [job.inputs for job in ranking_engine.jobs] == [[Pair(QUERY, "one\ntwo")], [Pair(QUERY, "three")]]


@pytest.mark.parametrize(("top_n", "count"), [(None, 4), (0, 4), (1, 1), (3, 3), (4, 4), (5, 4), (10**9, 4)])
@pytest.mark.parametrize("path", PATHS)
def test_top_n(ranker: TestClient, path: str, top_n: int | None, count: int) -> None:
    assert indices(ask(ranker, path, documents=DOCUMENTS, top_n=top_n)["results"]) == ORDER[:count]


def test_options_reach_the_job(ranker: TestClient, ranking_engine: FakeEngine) -> None:
    ask(
        ranker, "/v2/rerank", documents=["a"], max_tokens_per_doc=9, max_tokens_per_query=7, truncate="START",
        truncate_prompt_tokens=64, prompt_name="p", priority=1,
    )  # fmt: skip
    ask(ranker, "/rerank", texts=["a"], truncate=False, max_tokens_per_doc=0)
    first, second = ranking_engine.jobs
    assert (first.task, first.model, first.lane) == (Task.RERANK, MODEL, "bulk")
    assert (first.max_document_tokens, first.max_query_tokens, first.max_tokens) == (9, 7, 64)
    assert (first.truncate, first.truncation_side, first.prompt_name) == (True, "left", "p")
    assert (second.truncate, second.max_document_tokens, second.max_query_tokens) == (False, None, None)


@pytest.mark.parametrize("count", [1, 32, 33, 1000])
@pytest.mark.parametrize("field", ["documents", "texts"])
def test_any_number_of_documents_up_to_the_cap(ranker: TestClient, field: str, count: int) -> None:
    texts = [f"{'red ' * (index % 2)}{index}" for index in range(count)]
    response = ranker.post("/rerank", json={"query": QUERY, field: texts})
    answer = response.json()
    expected = [*range(1, count, 2), *range(0, count, 2)]
    assert indices(answer if field == "texts" else answer["results"]) == expected
    assert response.headers["x-rerank-candidates"] == str(count)


def test_search_units_are_counted_by_the_hundred(ranker: TestClient) -> None:
    for count, units in ((1, 1), (100, 1), (101, 2), (1000, 10)):
        meta = ask(ranker, "/v2/rerank", documents=["a"] * count)["meta"]
        assert meta["billed_units"]["search_units"] == units
