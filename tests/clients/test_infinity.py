"""infinity-client as it comes: vectors, rerank, classes, models, health; pages and queries as multi-vectors."""

from __future__ import annotations

import pytest

from tests.clients.environments import run_program
from tests.clients.references import (
    DOCUMENTS,
    QUERY,
    References,
    as_data_uri,
    assert_close,
    assert_ranked,
    assert_rows_close,
    from_data_uri,
)
from tests.pages import QUERIES, pages


def test_answers_equal_the_references(url: str, references: References) -> None:
    answer = run_program(
        "core",
        "infinity_client_calls",
        url=url,
        texts=DOCUMENTS,
        query=QUERY,
        documents=DOCUMENTS,
        embedder="all-minilm-l6-v2",
        reranker="reranker",
        classifier="classifier",
    )
    assert_close(answer["embedded"], references.vectors(DOCUMENTS))
    ranked = references.ranked()
    assert_ranked(answer["ranked"], ranked)
    assert answer["documents"] == [DOCUMENTS[index] for index, _ in ranked]
    for found, expected in zip(answer["classified"], references.classes(DOCUMENTS), strict=True):
        assert [label for label, _ in found] == sorted(expected, key=lambda label: -expected[label])
        assert_close([score for _, score in found], [expected[label] for label, _ in found])
    assert {"all-minilm-l6-v2", "reranker", "classifier", "colpali"} <= set(answer["models"])
    assert answer["healthy"]


@pytest.mark.parametrize("model", ["colpali", "colqwen2"])
def test_pages_and_queries_have_the_reference_rows(url: str, references: References, model: str) -> None:
    shown = [pages()[index] for index in (0, 3, 4)]
    answer = run_program(
        "core", "infinity_vision", url=url, model=model, pictures=[as_data_uri(page) for page in shown], queries=QUERIES
    )
    sent = [from_data_uri(uri) for uri in answer["sent"]]
    assert_rows_close(answer["pages"], references.rows(model, sent))
    assert_rows_close(answer["queries"], references.rows(model, QUERIES))
    assert answer["tokens"][0] >= sum(len(rows) for rows in answer["pages"])
    assert answer["tokens"][1] == sum(len(rows) for rows in answer["queries"])
