"""Haystack's five as they come: TEI's embedders, which ask for vectors as the model made them, and three rankers."""

from __future__ import annotations

import pytest

from tests.clients.environments import run_program
from tests.clients.references import DOCUMENTS, QUERY, References, assert_close, assert_close_by_length, assert_ranked

pytestmark = pytest.mark.clients


def test_answers_equal_the_references(url: str, references: References) -> None:
    answer = run_program("haystack", "haystack", url=url, query=QUERY, documents=DOCUMENTS, reranker="reranker")
    assert_close_by_length(answer["documents"], references.vectors(DOCUMENTS, normalize=False))
    assert_close_by_length(answer["query"], references.vectors([QUERY], normalize=False))
    assert_close(answer["unit"], references.vectors([QUERY])[0])
    assert len(answer["ranked"]) == 3
    for found in answer["ranked"]:
        assert_ranked(found, references.ranked()[:3])
