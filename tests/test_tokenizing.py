"""Token ids are those of transformers for each text alone, at any limit, in any thread.

On the real tokenizer of all-MiniLM-L6-v2 and on small ones of every common kind; for long texts see test_windows.py.
"""

from __future__ import annotations

import threading

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from runtime.errors import InputTooLong, InvalidRequest
from runtime.models.tokenizing import Limit, TextTokenizer, copied
from tests.tiny_models import vocabularies
from tests.tokenizer_kinds import (
    LIMIT,
    NAMES,
    WORDS,
    cut,
    encode,
    encode_at_limit,
    fast,
    frame,
    is_cut,
    own_call,
    tokenizer,
)

ODD_TEXTS = [
    "",
    " ",
    "\n\t \r",
    "\x00",
    "\u200b",
    "a\x00b",
    "naïve café",
    "e\u0301\u0323",
    "東京 タワー",
    "🙂👩‍👩‍👧",
    "ﬁ Ⅷ ½",
    "مرحبا",
    "नमस्ते",
    "\U0010ffff",
    "[CLS] [MASK] <s> </s> <mask> <|endoftext|>",
    "x" * 101,
    "A" * 300,
    "!?" * 40,
]


def odd_texts(name: str) -> list[str]:
    """Those of them that are a token at least."""
    return [text for text in ODD_TEXTS if own_call(name, text)]


# -- one vocabulary -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_the_tokenizer_less_what_it_cuts_and_pads(name: str) -> None:
    expected = Tokenizer.from_str(fast(name).backend_tokenizer.to_str())
    expected.no_padding()
    expected.no_truncation()
    assert copied(fast(name).backend_tokenizer).to_str() == expected.to_str()


def test_a_copy_has_the_vocabulary_of_its_original_and_settings_of_its_own() -> None:
    original = vocabularies.wordpiece().backend_tokenizer
    copy = copied(original)
    original.model.max_input_chars_per_word = 7  # which nobody does; it shows whose it is
    assert copy.model.max_input_chars_per_word == 7
    copy.enable_truncation(3)
    assert original.truncation is None


# -- as transformers does -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_one_call_for_many_texts_equals_transformers_for_each_alone(name: str) -> None:
    texts = [*odd_texts(name), *vocabularies.english_lines()[:60], " ".join(vocabularies.english_lines()[:80])]
    found = tokenizer(name).encode(texts, tokenizer(name).default_limit)
    assert [item.token_ids.tolist() for item in found] == [own_call(name, text) for text in texts]
    cuts = [is_cut(name, text, item) for text, item in zip(texts, found, strict=True)]
    assert [item.truncated for item in found] == cuts
    assert set(cuts) == {True, False}


@pytest.mark.parametrize("name", NAMES)
@given(st.text(min_size=1, max_size=60))
@example("a\u0301" * 30)
def test_any_unicode_equals_transformers(name: str, text: str) -> None:
    assume(own_call(name, text))
    assert encode(text, name).token_ids.tolist() == own_call(name, text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_tokens", [8, 100])
def test_a_smaller_limit_equals_transformers_with_that_limit(name: str, max_tokens: int) -> None:
    for text in [*odd_texts(name), " ".join(vocabularies.english_lines()[:20])]:
        assert encode(text, name, max_tokens=max_tokens).token_ids.tolist() == own_call(name, text, max_tokens)
        assert encode_at_limit(text, name, max_tokens).token_ids.tolist() == own_call(name, text, max_tokens)


@pytest.mark.parametrize("max_tokens", [LIMIT, 16])
def test_a_text_of_no_token_at_all_is_refused_since_nothing_can_be_pooled_from_it(max_tokens: int) -> None:
    unframed = tokenizer("BPE without a frame")
    with pytest.raises(InvalidRequest, match="input 1 holds no token"):
        unframed.encode(["some words", ""], Limit(max_tokens=max_tokens))


def test_the_files_own_padding_and_truncation_are_left_out() -> None:
    assert encode("one two").tokens == 4, "the file pads to 128"
    assert encode("one " * 200).tokens == 202, "the file cuts at 128"


def test_transformers_own_tokenizer_stays_as_it_was() -> None:
    before = fast("MiniLM").backend_tokenizer.to_str()
    TextTokenizer(fast("MiniLM"), 16, 1).encode(["one " * 100], Limit(max_tokens=16))
    assert fast("MiniLM").backend_tokenizer.to_str() == before


def test_segment_ids_that_are_all_zero_are_left_out() -> None:
    assert tokenizer("MiniLM").has_type_ids
    assert encode("some words").type_ids is None
    assert not tokenizer("byte-level BPE").has_type_ids


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt", ["query: ", "Represent this sentence: ", ""])
def test_a_prompts_tokens_are_those_in_front_of_the_text(name: str, prompt: str) -> None:
    """As sentence-transformers counts them: the prompt's own ids without a special one at the end."""
    ids = list(fast(name)(prompt).input_ids)
    closing = bool(ids) and ids[-1] in fast(name).all_special_ids
    assert tokenizer(name).prompt_tokens(prompt) == len(ids) - closing


# -- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_no_limit_is_exceeded_but_for_the_special_tokens(name: str) -> None:
    text = " ".join(WORDS[:600])
    special = sum(map(len, frame(name)))
    for max_tokens in (1, 2, 3, 4, 5, 8, 33):
        for found in (encode_at_limit(text, name, max_tokens), encode(text, name, max_tokens=max_tokens)):
            assert found.tokens == max(max_tokens, special)
            assert found.truncated


def test_a_text_of_exactly_the_limit_is_whole_and_one_token_more_is_cut() -> None:
    whole_text = encode("one " * (LIMIT - 2), truncate=False)
    assert (whole_text.tokens, whole_text.truncated) == (LIMIT, False)
    for limit in ({}, {"side": "left"}):
        cut_text = encode("one " * (LIMIT - 1), **limit)
        assert (cut_text.tokens, cut_text.truncated) == (LIMIT, True)


def test_a_refused_text_is_named_by_its_place_its_tokens_and_the_limit_and_not_repeated() -> None:
    texts = ["short", "secret " * 20]
    with pytest.raises(InputTooLong, match=r"input 1 has 22 tokens; the limit is 16") as refusal:
        tokenizer("MiniLM").encode(texts, Limit(max_tokens=16, truncate=False))
    assert "secret" not in refusal.value.message


def test_a_tokenizer_that_cuts_on_the_left_does_so_by_default() -> None:
    left = vocabularies.roberta_bpe()
    left.truncation_side = "left"
    text = " ".join(WORDS[:2_000])
    own = TextTokenizer(left, 64, LIMIT)
    assert own.default_limit.side == "left"
    expected = cut("byte-level BPE", text, 64, "left")
    assert own.encode([text], own.default_limit)[0].token_ids.tolist() == expected
    asked_right = own.encode([text], Limit(max_tokens=64, side="right"))[0]
    assert asked_right.token_ids.tolist() == cut("byte-level BPE", text, 64)


# -- token ids in place of text -------------------------------------------------------------------------------------


def test_token_ids_are_taken_as_they_are_and_cut_at_the_limit() -> None:
    ids = list(range(10))
    assert tokenizer("MiniLM").take(ids, Limit(max_tokens=10), 0).token_ids.tolist() == ids
    right = tokenizer("MiniLM").take(ids, Limit(max_tokens=4), 0)
    left = tokenizer("MiniLM").take(ids, Limit(max_tokens=4, side="left"), 0)
    assert (right.token_ids.tolist(), right.truncated) == (ids[:4], True)
    assert (left.token_ids.tolist(), left.truncated) == (ids[-4:], True)
    with pytest.raises(InputTooLong, match="input 3 has 10 tokens; the limit is 4"):
        tokenizer("MiniLM").take(ids, Limit(max_tokens=4, truncate=False), 3)


@pytest.mark.parametrize("ids", [[], [-1], [5, 30_522], [10**12]])
def test_token_ids_beyond_the_models_table_are_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match="input 2: token ids must be from 0 to 30521"):
        tokenizer("MiniLM").take(ids, Limit(max_tokens=LIMIT), 2)


# -- threads --------------------------------------------------------------------------------------------------------


def test_eight_threads_share_one_tokenizer_and_all_get_the_same_ids() -> None:
    shared = TextTokenizer(fast("MiniLM"), 64, LIMIT)
    limits = [shared.default_limit, Limit(max_tokens=9), Limit(max_tokens=30, side="left"), Limit(max_tokens=64)]
    texts = [" ".join(WORDS[start : start + 1 + start % 90]) for start in range(0, 1_000, 50)]
    expected = [[item.token_ids.tolist() for item in shared.encode(texts, limit)] for limit in limits]
    wrong: list[int] = []
    finished: list[int] = []

    def work(number: int) -> None:
        for call in range(200):
            turn = (number + call) % len(limits)
            some = slice(call % 10, call % 10 + 2)
            found = [item.token_ids.tolist() for item in shared.encode(texts[some], limits[turn])]
            if found != expected[turn][some]:
                wrong.append(number)
        finished.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(finished) == list(range(8))
    assert wrong == []
