"""LangChain as it comes: OpenAI's, Cohere's and Infinity's embeddings, Cohere's and Infinity's rerank."""

from __future__ import annotations

import pytest

from tests.clients.environments import run_program
from tests.clients.references import DOCUMENTS, QUERY, References, assert_close, assert_ranked

pytestmark = pytest.mark.clients


def test_answers_equal_the_references(url: str, references: References) -> None:
    answer = run_program(
        "langchain",
        "langchain",
        url=url,
        query=QUERY,
        documents=DOCUMENTS,
        embedder="all-minilm-l6-v2",
        reranker="reranker",
    )
    vectors, [query] = references.vectors(DOCUMENTS), references.vectors([QUERY])
    assert len(answer["documents"]) == len(answer["queries"]) == 4
    for found in answer["documents"]:
        assert_close(found, vectors)
    for found in answer["queries"]:
        assert_close(found, query)
    assert len(answer["ranked"]) == 2
    for found in answer["ranked"]:
        assert_ranked(found, references.ranked()[:3])
