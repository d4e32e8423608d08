"""cohere 7, and 5 as LangChain pins it: rerank and embed in both versions of the API, and a picture."""

from __future__ import annotations

import pytest

from tests.clients.environments import run_program
from tests.clients.references import DOCUMENTS, QUERY, References, as_data_uri, assert_close, assert_ranked
from tests.pages import pages


@pytest.mark.parametrize("environment", ["core", pytest.param("langchain", marks=pytest.mark.clients)])
def test_answers_equal_the_references(url: str, references: References, environment: str) -> None:
    page = pages()[2]
    answer = run_program(
        environment,
        "cohere_client",
        url=url,
        query=QUERY,
        documents=DOCUMENTS,
        reranker="reranker",
        embedder="all-minilm-l6-v2",
        image_text="clip",
        picture=as_data_uri(page),
    )
    ranked = references.ranked()
    assert_ranked(answer["ranked_v1"], ranked)
    assert_ranked(answer["ranked_v2"], ranked[:3])
    assert answer["documents_v1"] == [DOCUMENTS[index] for index, _ in ranked]
    vectors = references.vectors(DOCUMENTS)
    assert_close(answer["embedded_v1"], vectors)
    assert_close(answer["embedded_v2"], vectors)
    assert_close(answer["decoded_v2"], vectors)
    assert answer["billed_v2"] > len(DOCUMENTS)
    assert_close(answer["seen"], references.picture_vectors([page]))
    assert answer["unknown"] == "NotFoundError"
