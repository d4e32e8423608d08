"""A fast tokenizer asked for its own sake: texts as tokens with their places, ids as texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer

from runtime.errors import InvalidRequest
from runtime.models.base import Tokenized, Vocabulary
from runtime.models.prompts import Prompts

ID_LIMIT: Final = 2**32
"""The library counts ids in 32 bits."""


class FastVocabulary(Vocabulary):
    """Over a tokenizer that nobody changes. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, prompts: Prompts) -> None:
        """`tokenizer`: one that never truncates."""
        self._tokenizer = tokenizer
        self._prompts = prompts

    def tokenize(self, text: str, *, add_special_tokens: bool = True, prompt_name: str | None = None) -> Tokenized:
        """See Vocabulary.tokenize."""
        whole = self._prompts.text(prompt_name) + text
        encoding = self._tokenizer.encode(whole, add_special_tokens=add_special_tokens)
        return Tokenized(
            text=whole,
            ids=encoding.ids,
            pieces=[self._tokenizer.id_to_token(token) or "" for token in encoding.ids],
            special=[bool(mark) for mark in encoding.special_tokens_mask],
            spans=encoding.offsets,
        )

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """See Vocabulary.detokenize."""
        if not all(0 <= token < ID_LIMIT and self._tokenizer.id_to_token(token) is not None for token in ids):
            raise InvalidRequest("some ids are not in this model's vocabulary", param="tokens")
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text
