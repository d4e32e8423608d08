"""Long texts are tokenized in windows: the ids are those of the whole text, and its length can't run up the cost."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from tokenizers import Encoding, Tokenizer

from runtime.errors import InputTooLong
from runtime.models.tokenizing import Limit, TextTokenizer
from tests.tiny_models import vocabularies
from tests.tokenizer_kinds import LIMIT, NAMES, WORDS, cut, encode, encode_at_limit, fast, is_cut, own_call

MEGABYTE = 1_000_000


def long_texts() -> dict[str, str]:
    """Tens of kilobytes each of what a window could cut at the wrong place: the first windows hold 2 to 4 kB."""
    rng = Random(5)

    def letters(count: int, alphabet: str) -> str:
        return "".join(rng.choices(alphabet, k=count))

    def between(first: int, last: int, count: int) -> str:
        return "".join(chr(rng.randint(first, last)) for _ in range(count))

    return {
        "prose": " ".join(rng.choices(WORDS, k=5_000)),
        "dots": "." * 29_999,
        "one letter": "a" * 29_999,
        "two letters": "ab" * 15_000,
        "spaces, then words": " " * 30_000 + " ".join(WORDS[:40]),
        "words, then spaces": " ".join(WORDS[:40]) + " " * 30_000,
        "unbroken": letters(30_000, "abcdefghijklmnop"),
        "base64": letters(30_000, "ABCDEFGHIJKLMNOPabcdefghijklmnop0123456789+/"),
        "words of 80 to 160 letters": " ".join(letters(rng.randint(80, 160), "abcdefghij") for _ in range(250)),
        "words around an endless one": f"some words {'x' * 20_000} " + "more words " * 2_000,
        "no spaces, CJK": between(0x4E00, 0x9FFF, 10_000),
        "Devanagari": between(0x900, 0x97F, 10_000),
        "emoji": between(0x1F300, 0x1F6FF, 8_000),
        "accents": "e\u0301\u0323" * 8_000,
        "zero width": "\u200b" * 10_000 + "word " * 10,
        "all sorts": "".join(
            rng.choice(["a", "b", " ", ".", "é", "東", "\n", "\t", "  ", "\x00"]) for _ in range(20_000)
        ),
    }


LONG_TEXTS = long_texts()


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_window_gives_the_ids_of_the_whole_text(name: str, text: str) -> None:
    for max_tokens in (3, 33, 256):
        for found in (encode_at_limit(text, name, max_tokens), encode(text, name, max_tokens=max_tokens)):
            assert found.token_ids.tolist() == cut(name, text, max_tokens)
            assert found.truncated == is_cut(name, text, found)


REPETITIVE = {"dots", "one letter", "spaces, then words", "words, then spaces"}
"""A run longer than the window may be paired up otherwise from its end; see the module's first lines."""


@pytest.mark.parametrize("title", sorted(LONG_TEXTS.keys() - REPETITIVE))
@pytest.mark.parametrize("name", NAMES)
def test_a_window_at_the_end_gives_the_ids_of_the_whole_text_cut_on_the_left(name: str, title: str) -> None:
    for max_tokens in (3, 33, 256):
        found = encode(LONG_TEXTS[title], name, max_tokens=max_tokens, side="left")
        assert found.token_ids.tolist() == cut(name, LONG_TEXTS[title], max_tokens, "left")
        assert found.truncated == is_cut(name, LONG_TEXTS[title], found)


@pytest.mark.parametrize("max_tokens", [3, 4, 16, 64, 128])
@pytest.mark.parametrize("letters", [1, 30, 70, 99, 100, 101, 200])
def test_a_word_that_the_window_cuts_in_two_is_still_the_unknown_word_it_is(max_tokens: int, letters: int) -> None:
    """WordPiece takes a word of up to 100 letters to pieces; of the 300 here only some are in the first window."""
    text = " " * (Limit(max_tokens=max_tokens).window_chars - letters) + "q" * 300 + " some more words" * 2_000
    expected = own_call("MiniLM", text, max_tokens)
    assert encode(text, max_tokens=max_tokens).token_ids.tolist() == expected
    assert encode_at_limit(text, "MiniLM", max_tokens).token_ids.tolist() == expected


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, inner: Tokenizer) -> None:
        self._inner = inner
        self.characters = 0

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> list[Encoding]:
        self.characters += sum(map(len, texts))
        found: list[Encoding] = self._inner.encode_batch_fast(texts, **options)
        return found

    def post_process(self, encoding: Encoding) -> Encoding:
        found: Encoding = self._inner.post_process(encoding)
        return found


def characters(texts: list[str], monkeypatch: pytest.MonkeyPatch, **limit: Any) -> int:
    """Characters that MiniLM's tokenizer is given for `texts`."""
    counted = TextTokenizer(fast("MiniLM"), LIMIT, LIMIT)
    inner = [Counting(counted._bounded), Counting(counted._open)]
    monkeypatch.setattr(counted, "_bounded", inner[0])
    monkeypatch.setattr(counted, "_open", inner[1])
    assert len(counted.encode(texts, Limit(**{"max_tokens": LIMIT, **limit}))) == len(texts)
    return sum(each.characters for each in inner)


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 32}, {"side": "left"}])
@pytest.mark.parametrize("text", [".", "word ", "a b", "東"], ids=repr)
def test_of_a_megabyte_only_a_few_thousand_characters_are_tokenized(
    text: str, limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert characters([text * (MEGABYTE // len(text))], monkeypatch, **limit) <= 32 * LIMIT


@pytest.mark.parametrize(
    "text",
    ["a" * MEGABYTE, " " * MEGABYTE + "some words", "\u200b" * MEGABYTE],
    ids=["one word", "spaces, then words", "zero width"],
)
def test_a_megabyte_of_next_to_no_tokens_is_read_about_twice(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert characters([text], monkeypatch) <= 2.1 * len(text)


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 64}])
def test_a_megabyte_that_begins_with_nothing_is_read_no_further_than_it_must(
    limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert characters([" " * 20_000 + "." * MEGABYTE], monkeypatch, **limit) <= 4 * 20_000


def test_of_ordinary_texts_each_character_is_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*vocabularies.english_lines()[:100], ""]
    assert characters(texts, monkeypatch) == sum(map(len, texts))


def test_one_endless_text_makes_its_neighbours_no_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert characters(["short"] * 10 + ["." * MEGABYTE], monkeypatch) <= 50 + 32 * LIMIT


def test_an_endless_text_is_refused_without_counting_it_to_its_end() -> None:
    with pytest.raises(InputTooLong, match=r"input 0 has at least \d+ tokens; the limit is 256"):
        encode("." * MEGABYTE, truncate=False)
