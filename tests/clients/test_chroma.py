"""chromadb as it comes: a collection through TEI's embedding function, and one through OpenAI's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clients.environments import run_program
from tests.clients.references import DOCUMENTS, QUERY, References, assert_close

pytestmark = pytest.mark.clients


def test_collections_hold_the_reference_vectors_and_find_by_them(url: str, references: References) -> None:
    answer = run_program("vendors", "chroma", url=url, query=QUERY, documents=DOCUMENTS, embedder="all-minilm-l6-v2")
    vectors = references.vectors(DOCUMENTS)
    distances = 1 - vectors @ references.vectors([QUERY])[0]
    nearest = np.argsort(distances, kind="stable")[:3]
    for found in (answer["tei"], answer["openai"]):
        assert_close(found["vectors"], vectors)
        assert found["ids"] == nearest.tolist()
        assert_close(found["distances"], distances[nearest])
