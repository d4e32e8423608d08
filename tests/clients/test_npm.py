"""npm's clients as they come: openai, @huggingface/inference, cohere-ai, and the AI SDK's two providers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.clients.environments import run_script
from tests.clients.references import DOCUMENTS, QUERY, References, as_data_uri, assert_close, assert_ranked
from tests.pages import pages

pytestmark = pytest.mark.clients
MODELS = {"embedder": "all-minilm-l6-v2", "reranker": "reranker", "image_text": "clip"}


def answer_to(script: str, url: str, **arguments: Any) -> Any:
    return run_script(script, url=url, query=QUERY, documents=DOCUMENTS, **MODELS, **arguments)


def test_openai(url: str, references: References) -> None:
    answer = answer_to("openai", url)
    vectors = references.vectors(DOCUMENTS)
    assert_close(answer["own"], vectors)
    assert_close(answer["floats"], vectors[:, :64] / np.linalg.norm(vectors[:, :64], axis=1, keepdims=True))
    assert {"all-minilm-l6-v2", "reranker", "colpali"} <= set(answer["models"])
    assert answer["unknown"] == ["NotFoundError", 404, "model_not_found"]


def test_huggingface_inference(url: str, references: References) -> None:
    answer = answer_to("huggingface", url)
    assert_close(answer["many"], references.vectors(DOCUMENTS))
    assert_close(np.ravel(answer["one"]), references.vectors(DOCUMENTS[:1])[0])
    assert "reranker" in answer["refused"]


def test_cohere_ai(url: str, references: References) -> None:
    page = pages()[2]
    answer = answer_to("cohere", url, picture=as_data_uri(page))
    ranked = references.ranked()
    assert_ranked(answer["ranked_v1"], ranked)
    assert_ranked(answer["ranked_v2"], ranked[:3])
    assert answer["documents_v1"] == [DOCUMENTS[index] for index, _ in ranked]
    vectors = references.vectors(DOCUMENTS)
    assert_close(answer["embedded_v1"], vectors)
    assert_close(answer["embedded_v2"], vectors)
    assert_close(answer["seen"], references.picture_vectors([page]))


def test_the_ai_sdk(url: str, references: References) -> None:
    answer = answer_to("ai_sdk", url)
    vectors = references.vectors(DOCUMENTS)
    assert_close(answer["openai"], vectors)
    assert_close(answer["cohere"], vectors)
    assert answer["openai_tokens"] == answer["cohere_tokens"] > len(DOCUMENTS)
    assert_ranked(answer["ranked"], references.ranked()[:3])
