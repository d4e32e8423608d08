"""A tokenizer asked for its own sake says what transformers says, uncut, and where each token stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.devices.cpu import CpuDevice
from runtime.errors import InvalidRequest, UnknownPrompt
from runtime.models.loading import load_model
from runtime.models.prompts import Prompts
from runtime.models.vocabulary import FastVocabulary
from runtime.registry import ModelSpec
from runtime.work import Task
from tests.tokenizer_kinds import NAMES, WORDS, fast, tokenizer

PROMPTS = Prompts({"query": "query: "}, None)
TEXT = "A class body binds names. naïve café 東京 🙂"


def vocabulary(name: str) -> FastVocabulary:
    return FastVocabulary(tokenizer(name).uncut, PROMPTS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", TEXT, " ".join(WORDS[:2000])], ids=["empty", "odd", "long"])
def test_ids_and_pieces_are_those_of_transformers_for_the_whole_text(name: str, text: str) -> None:
    own = fast(name)
    for adds in (True, False):
        read = vocabulary(name).tokenize(text, add_special_tokens=adds)
        assert read.ids == list(own(text, add_special_tokens=adds).input_ids)
        assert read.pieces == own.convert_ids_to_tokens(read.ids)
        mask = own(text, add_special_tokens=adds, return_special_tokens_mask=True).special_tokens_mask
        assert read.special == [bool(mark) for mark in mask]
        assert len(read.spans) == len(read.ids)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(text=st.text(max_size=40))
def test_spans_are_places_in_the_text_and_in_order(name: str, text: str) -> None:
    read = vocabulary(name).tokenize(text)
    spans = [span for span, special in zip(read.spans, read.special, strict=True) if not special]
    assert all(0 <= first <= end <= len(text) for first, end in spans)
    assert [first for first, _ in spans] == sorted(first for first, _ in spans)


def test_a_span_is_where_the_token_s_text_stands() -> None:
    read = vocabulary("MiniLM").tokenize("Naïve words", prompt_name="query")
    shown = [
        read.text[first:end] for (first, end), special in zip(read.spans, read.special, strict=True) if not special
    ]
    assert shown == ["query", ":", "Naïve", "words"]


@pytest.mark.parametrize("name", NAMES)
def test_ids_become_the_text_that_transformers_makes_of_them(name: str) -> None:
    ids = list(fast(name)(TEXT).input_ids)
    for skips in (True, False):
        expected = fast(name).backend_tokenizer.decode(ids, skip_special_tokens=skips)
        assert vocabulary(name).detokenize(ids, skip_special_tokens=skips) == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("token", [-1, 10**7, 2**32, 2**70])
def test_ids_that_the_vocabulary_lacks_are_refused(name: str, token: int) -> None:
    with pytest.raises(InvalidRequest):
        vocabulary(name).detokenize([5, token])


def test_prompts_are_the_model_s_under_any_of_their_names() -> None:
    assert vocabulary("MiniLM").tokenize("a", prompt_name="search_query").text == "query: a"
    with pytest.raises(UnknownPrompt):
        vocabulary("MiniLM").tokenize("a", prompt_name="none")


FAMILIES = {
    "bert-embedder": Task.EMBED,
    "bert-reranker": Task.RERANK,
    "colbert": Task.MULTI_VECTOR,
    "clip": Task.EMBED,
    "colqwen2": Task.MULTI_VECTOR,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_with_a_fast_tokenizer_can_be_asked(name: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(name)
    model = load_model(ModelSpec(id=name, source=str(folder)), FAMILIES[name], folder, CpuDevice(lanes=1))
    asked = model.vocabulary()
    read = asked.tokenize("the name of a class", add_special_tokens=False)
    assert len(read.ids) >= 4
    assert asked.detokenize(read.ids)
    model.close()
