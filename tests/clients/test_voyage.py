"""voyageai as it comes: embed, in float and in int8, and rerank."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clients.environments import run_program
from tests.clients.references import DOCUMENTS, QUERY, References, assert_close, assert_ranked

pytestmark = pytest.mark.clients


def test_answers_equal_the_references(url: str, references: References) -> None:
    answer = run_program(
        "vendors",
        "voyage",
        url=url,
        query=QUERY,
        documents=DOCUMENTS,
        embedder="all-minilm-l6-v2",
        reranker="reranker",
    )
    vectors = references.vectors(DOCUMENTS)
    assert_close(answer["embedded"], vectors)
    cut = vectors[:, :128] / np.linalg.norm(vectors[:, :128], axis=1, keepdims=True)
    assert np.abs(np.asarray(answer["small"]) - cut * 127).max() <= 0.51
    assert_ranked(answer["ranked"], references.ranked()[:3])
    assert answer["documents"] == [DOCUMENTS[index] for index, _ in answer["ranked"]]
    assert min(answer["tokens"]) > len(DOCUMENTS)
