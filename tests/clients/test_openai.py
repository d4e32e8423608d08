"""OpenAI's SDK, in our own environment: vectors in each encoding, the models, and its kinds of errors."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from tests.clients.references import DOCUMENTS, References, as_data_uri, assert_close
from tests.pages import pages

MODEL = "all-minilm-l6-v2"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_vectors_in_the_encoding_of_its_own_choice_equal_the_reference(
    client: openai.OpenAI, references: References
) -> None:
    answer = client.embeddings.create(model=MODEL, input=DOCUMENTS)
    assert_close([item.embedding for item in answer.data], references.vectors(DOCUMENTS))
    assert [item.index for item in answer.data] == list(range(len(DOCUMENTS)))
    assert answer.model == MODEL
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(DOCUMENTS)


def test_vectors_in_either_encoding_asked_for_are_the_same_numbers(client: openai.OpenAI) -> None:
    as_numbers = client.embeddings.create(model=MODEL, input=DOCUMENTS[0], encoding_format="float")
    as_text: Any = client.embeddings.create(model=MODEL, input=DOCUMENTS[0], encoding_format="base64")
    decoded = np.frombuffer(base64.b64decode(as_text.data[0].embedding), "<f4")
    np.testing.assert_array_equal(decoded, np.asarray(as_numbers.data[0].embedding, np.float32))


def test_dimensions_cut_and_renormalise(client: openai.OpenAI, references: References) -> None:
    answer = client.embeddings.create(model=MODEL, input=DOCUMENTS[1], dimensions=64)
    cut = references.vectors(DOCUMENTS[1:2])[0][:64]
    assert_close(answer.data[0].embedding, cut / np.linalg.norm(cut))


def test_a_page_in_base64_has_its_shape_beside_it(client: openai.OpenAI, references: References) -> None:
    page = pages()[3]
    answer = client.embeddings.create(model="colpali", input=[as_data_uri(page)], extra_body={"modality": "image"})
    [item] = answer.data
    [expected] = references.rows("colpali", [page])
    assert item.model_extra is not None
    assert item.model_extra["dtype"] == "float32"
    assert_close(np.asarray(item.embedding).reshape(item.model_extra["shape"]), expected)


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    listed = client.models.list().data
    assert [model.id for model in listed] == [MODEL, "reranker", "classifier", "clip", "colpali", "colqwen2"]
    assert client.models.retrieve(MODEL) == listed[0]


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("text-embedding-3-small")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"model": MODEL, "input": "a", "dimensions": 385}, "invalid_dimensions"),
        ({"model": "reranker", "input": "a"}, "unsupported_capability"),
        ({"model": MODEL, "input": [1996, 2003]}, "token_ids_not_accepted"),
        ({"model": MODEL, "input": "word " * 600, "extra_body": {"truncate": False}}, "input_too_long"),
    ],
)
def test_what_can_not_be_done_is_a_bad_request(client: openai.OpenAI, given: dict[str, Any], code: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(**given)
    assert caught.value.code == code


def test_token_ids_as_langchain_sends_them_by_default_are_refused_with_the_remedy(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        client.embeddings.create(model=MODEL, input=[[4438, 656, 358], [37]])


def test_no_input_is_unprocessable(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.embeddings.create(model=MODEL, input=[])
    assert (caught.value.code, caught.value.param) == ("empty_input", "input")
