"""huggingface_hub's InferenceClient as it comes, on TEI's routes."""

from __future__ import annotations

import numpy as np

from tests.clients.environments import run_program
from tests.clients.references import DOCUMENTS, References, assert_close


def test_vectors_equal_the_reference_normalised_or_not(url: str, references: References) -> None:
    answer = run_program("core", "huggingface", url=url, model="all-minilm-l6-v2", texts=DOCUMENTS)
    assert_close(answer["many"], references.vectors(DOCUMENTS))
    assert_close(answer["one"], references.vectors(DOCUMENTS[:1]))
    raw = references.vectors(DOCUMENTS, normalize=False)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert_close(np.asarray(answer["raw"]) / lengths, raw / lengths)
    assert answer["unknown_prompt"] == 422
