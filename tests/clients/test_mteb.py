"""MTEB's three wrappers as they come: embeddings of texts and pictures, rerank, and late interaction over /pooling."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clients.environments import run_program
from tests.clients.references import (
    DOCUMENTS,
    FP32,
    QUERY,
    References,
    as_data_uri,
    assert_close,
    assert_rows_close,
)
from tests.pages import pages

pytestmark = pytest.mark.clients
PAGE_QUERY = "What did the fourth quarter bring?"


def test_answers_equal_the_references(url: str, references: References) -> None:
    shown = [pages()[index] for index in (0, 2, 3)]
    answer = run_program(
        "mteb",
        "mteb_wrappers",
        url=url,
        query=QUERY,
        documents=DOCUMENTS,
        pictures=[as_data_uri(page) for page in shown],
        page_query=PAGE_QUERY,
        embedder="all-minilm-l6-v2",
        reranker="reranker",
        image_text="clip",
        page_model="colpali",
    )
    assert answer["max_length"] == 256
    vectors = references.vectors(DOCUMENTS)
    assert_close(answer["plain"], vectors)
    assert_close(answer["chat"], vectors)
    assert_close(answer["seen"], references.picture_vectors(shown))
    assert_close(answer["scores"], references.relevances())
    rows = references.rows("colpali", shown)
    assert_rows_close(answer["pages"], rows)
    [query] = references.rows("colpali", [PAGE_QUERY])
    maxsim = [float((query @ page.T).max(axis=1).sum()) for page in rows]
    found = [answer["found"][str(index)] for index in range(len(shown))]
    assert np.abs(np.subtract(found, maxsim)).max() <= len(query) * FP32
