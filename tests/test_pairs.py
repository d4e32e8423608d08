"""Pairs become the ids that transformers gives for them, at a bounded cost, with each query tokenized once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from runtime.errors import InputTooLong, UnsupportedModel
from runtime.models.pairs import PairLimit, PairTemplate, PairTokenizer, longest_first
from runtime.models.tokenizing import Limit
from runtime.work import Pair, Prepared
from tests.tokenizer_kinds import NAMES, WORDS, fast

LIMITS = (40, 41)
"""An even and an odd one: the odd token goes to the longer text."""


class Counting(PairTokenizer):
    """Counts what it has to tokenize."""

    def __init__(self, name: str, max_tokens: int) -> None:
        super().__init__(fast(name), max_tokens, embeddings=len(fast(name)))
        self.read: list[str] = []

    def bare(self, texts: Sequence[str], limit: Limit) -> list[tuple[list[int], bool]]:
        self.read += texts
        return super().bare(texts, limit)


@cache
def tokenizer(name: str, max_tokens: int) -> Counting:
    return Counting(name, max_tokens)


def encode(name: str, pairs: Sequence[Pair], max_tokens: int, **parts: int) -> list[Prepared]:
    own = tokenizer(name, max_tokens)
    return own.encode_inputs(pairs, PairLimit(whole=own.default_limit, **parts), "")


def own_call(name: str, pair: Pair, max_tokens: int) -> tuple[list[int], list[int]]:
    """What transformers gives in a batch, ids and segment ids; alone, it takes an empty second text for none."""
    both = [(pair.query, pair.document)]
    encoded = fast(name)(both, truncation="longest_first", max_length=max_tokens, return_token_type_ids=True)
    return list(encoded.input_ids[0]), list(encoded.token_type_ids[0])


def text(words: int, start: int = 0) -> str:
    return " ".join(WORDS[start : start + words])


@pytest.mark.parametrize("max_tokens", LIMITS)
@pytest.mark.parametrize("name", NAMES)
def test_pairs_of_all_lengths_are_transformers_own(name: str, max_tokens: int) -> None:
    counts = (0, 1, 5, 14, 15, 16, 30, 80)
    pairs = [Pair(text(q), text(d, 17)) for q in counts for d in counts if q + d]
    # Beyond the window on both sides, the one or the other the longer.
    pairs += [Pair(text(q), text(d, 17)) for q, d in ((400, 700), (700, 400), (400, 400), (5, 700), (700, 5))]
    pairs += [Pair("naïve café 東京 🙂", "a\x00b [SEP] </s>"), Pair("   ", "\n\n")]
    for item, pair in zip(encode(name, pairs, max_tokens), pairs, strict=True):
        ids, types = own_call(name, pair, max_tokens)
        assert item.token_ids.tolist() == ids
        if tokenizer(name, max_tokens).has_type_ids:
            assert ([0] * len(ids) if item.type_ids is None else item.type_ids.tolist()) == types


@pytest.mark.parametrize("name", NAMES)
def test_the_flag_says_whether_anything_was_cut(name: str) -> None:
    pairs = [Pair(text(3), text(4)), Pair(text(3), text(400)), Pair(text(400), "")]
    assert [item.truncated for item in encode(name, pairs, 40)] == [False, True, True]
    own = tokenizer(name, 40)
    with pytest.raises(InputTooLong, match=r"input 1 .* the limit is 40"):
        own.encode_inputs(pairs, PairLimit(whole=Limit(max_tokens=40, truncate=False)), "")


@pytest.mark.parametrize("name", NAMES)
def test_the_left_ends_can_be_cut_instead(name: str) -> None:
    own = tokenizer(name, 40)
    pair = Pair(text(2), text(900))
    left = own.encode_inputs([pair], PairLimit(whole=Limit(max_tokens=40, side="left")), "")[0]
    whole = own.encode_inputs([pair], PairLimit(whole=Limit(max_tokens=10_000)), "")[0]
    assert left.tokens == 40
    assert left.token_ids[-20:].tolist() == whole.token_ids[-20:].tolist()


def test_parts_are_cut_before_the_pair_is() -> None:
    pair = Pair(text(30), text(90))
    bare = [fast("MiniLM")(part, add_special_tokens=False).input_ids for part in (pair.query, pair.document)]
    cut = encode("MiniLM", [pair], 40, query_tokens=4, document_tokens=9)[0]
    assert cut.token_ids[1:5].tolist() == bare[0][:4]
    assert cut.token_ids[6:15].tolist() == bare[1][:9]
    assert (cut.tokens, cut.truncated) == (16, True)
    both = encode("MiniLM", [pair], 40, query_tokens=4, document_tokens=900)[0]
    assert both.token_ids[6:39].tolist() == bare[1][:33]


def test_a_query_is_tokenized_once_for_all_of_its_documents() -> None:
    own = Counting("MiniLM", 64)
    documents = [text(n, n) for n in range(1, 60)]
    own.encode_inputs([Pair("one query", document) for document in documents], PairLimit(whole=own.default_limit), "")
    assert own.read == ["one query", *documents]


def test_a_prompt_stands_before_the_query() -> None:
    own = tokenizer("MiniLM", 64)
    limit = PairLimit(whole=own.default_limit, query_tokens=2)
    prompted, plain = (
        own.encode_inputs([Pair(query, "a document")], PairLimit(whole=own.default_limit), prompt)[0]
        for query, prompt in (("some words here", "find: "), ("find: some words here", ""))
    )
    assert prompted.token_ids.tolist() == plain.token_ids.tolist()
    cut = own.encode_inputs([Pair("some words here", "a document")], limit, "find: ")[0]
    assert cut.tokens == plain.tokens - 1


class Measured:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> object:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def test_of_a_megabyte_only_a_window_is_read() -> None:
    own = Counting("MiniLM", 512)
    measured = Measured(own._open)
    megabyte = "some words of prose " * 50_000
    limit = PairLimit(whole=own.default_limit)
    with patch.object(own, "_open", measured):
        long_document = own.encode_inputs([Pair("a query", megabyte)], limit, "")[0]
        assert measured.characters < 20_000
        long_query = own.encode_inputs([Pair(megabyte, "a document")], limit, "")[0]
        assert measured.characters < 40_000
    assert (long_document.tokens, long_document.truncated) == (512, True)
    assert (long_query.tokens, long_query.truncated) == (512, True)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 50))
def test_the_longer_gives_first(query: int, document: int, room: int) -> None:
    kept = longest_first(query, document, room)
    assert sum(kept) == min(query + document, room)
    assert 0 <= kept[0] <= query
    assert 0 <= kept[1] <= document
    if kept[0] < query and kept[1] < document:
        assert abs(kept[0] - kept[1]) <= 1


def test_a_template_that_turns_the_pair_around_is_refused() -> None:
    turned = Tokenizer.from_str(fast("MiniLM").backend_tokenizer.to_str())
    turned.no_truncation()
    turned.no_padding()
    turned.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $B [SEP] $A", special_tokens=[("[CLS]", 101), ("[SEP]", 102)]
    )
    with pytest.raises(UnsupportedModel):
        PairTemplate(turned)
