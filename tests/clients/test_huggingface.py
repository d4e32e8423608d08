"""huggingface_hub's InferenceClient as it comes, on TEI's routes."""

from __future__ import annotations

from tests.clients.environments import run_program
from tests.clients.references import DOCUMENTS, QUERY, References, assert_close, assert_close_by_length


def test_vectors_and_cosines_equal_the_reference(url: str, references: References) -> None:
    answer = run_program("core", "huggingface", url=url, model="all-minilm-l6-v2", texts=DOCUMENTS, source=QUERY)
    assert_close(answer["many"], references.vectors(DOCUMENTS))
    assert_close(answer["one"], references.vectors(DOCUMENTS[:1]))
    assert_close_by_length(answer["raw"], references.vectors(DOCUMENTS, normalize=False))
    assert_close(answer["similar"], references.similarities(QUERY, DOCUMENTS))
    assert answer["unknown_prompt"] == 422
