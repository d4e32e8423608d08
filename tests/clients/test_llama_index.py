"""LlamaIndex's pair for TEI as it comes, each by a path that names its model."""

from __future__ import annotations

import pytest

from tests.clients.environments import run_program
from tests.clients.references import DOCUMENTS, QUERY, References, assert_close, assert_ranked

pytestmark = pytest.mark.clients


def test_answers_equal_the_references(url: str, references: References) -> None:
    answer = run_program(
        "llama_index",
        "llama_index",
        embedder="all-minilm-l6-v2",
        embedder_url=f"{url}/m/all-minilm-l6-v2",
        reranker_url=f"{url}/m/reranker",
        query=QUERY,
        documents=DOCUMENTS,
    )
    assert_close(answer["documents"], references.vectors(DOCUMENTS))
    assert_close(answer["query"], references.vectors([QUERY])[0])
    assert_ranked(answer["ranked"], references.ranked()[:3])
