"""One model's tokenizer, set once and never changed, so that any thread may use it at any time.

transformers' own wrapper changes its inner tokenizer on each call (padding, truncation), which is not safe between
threads. Here the inner tokenizer is copied once, around the same vocabulary: a `bounded` copy truncates at the model's
limit, an `open` copy never does.

A text is not tokenized to its end only to be cut: a window of characters is tokenized, and doubled until it holds at
least twice the limit in tokens (or is the whole text). Tokens that far from the window's edge don't depend on it, so
the result is that of the whole text at a bounded cost. Two kinds of text can show the edge, and no language has them:
some hundred combining marks in a row, which normalisation reorders, and a run of one character longer than the window,
which BPE pairs up from its first character (so only a cut on the left shows it) and Unigram from either end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerFast

from runtime.errors import InputTooLong, InvalidRequest
from runtime.work import Prepared

WINDOW_CHARS_PER_TOKEN = 8
"""Prose has 4 to 6 characters a token, so the first window nearly always holds enough."""
EDGE_TOKENS = 128
"""As many may depend on where the window ends: WordPiece knows a word of 100 characters and none of 101."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much of a text may stay. `side`: the end that is cut off."""

    max_tokens: int
    truncate: bool = True
    side: str = "right"

    @property
    def window_tokens(self) -> int:
        """Tokens that a window must hold so that those which stay are those of the whole text."""
        return self.max_tokens + max(self.max_tokens, EDGE_TOKENS)

    @property
    def window_chars(self) -> int:
        """Size of the first window."""
        return self.window_tokens * WINDOW_CHARS_PER_TOKEN


class TextTokenizer:
    """Turns texts into token ids exactly as transformers would for each text alone."""

    def __init__(self, fast: PreTrainedTokenizerFast, max_tokens: int, embeddings: int) -> None:
        """`embeddings`: rows of the model's embedding table, which bound the ids that a caller may send."""
        self.embeddings = embeddings
        self.default_limit = Limit(max_tokens=max_tokens, side=fast.truncation_side)
        self.has_type_ids = "token_type_ids" in fast.model_input_names
        self.pad_id = int(fast.pad_token_id or 0)
        self.special_ids = frozenset(fast.all_special_ids)
        self._open = copied(fast.backend_tokenizer)
        self._specials = self._open.num_special_tokens_to_add(False)
        self._bounded = copied(fast.backend_tokenizer)
        # A limit below the special tokens would not cut at all.
        self._bounded.enable_truncation(max(max_tokens, self._specials), direction=fast.truncation_side)

    @property
    def uncut(self) -> Tokenizer:
        """The tokenizer that never truncates. For any thread; not to be changed."""
        return self._open

    def encode(self, texts: Sequence[str], limit: Limit, places: Sequence[int] | None = None) -> list[Prepared]:
        """Token ids of each text, in order. `places`: the texts' indices in the request, for errors.

        Raises InputTooLong when `limit.truncate` is False and a text has more tokens than `limit.max_tokens`;
        InvalidRequest for a text of no token at all, which nothing can be pooled from: an empty one, where the
        tokenizer adds no special tokens.
        """
        places = range(len(texts)) if places is None else places
        if limit == self.default_limit:
            items = self._encode_bounded(texts)
        else:
            items = [self._encode_open(text, limit, index) for index, text in zip(places, texts, strict=True)]
        for index, item in zip(places, items, strict=True):
            if not item.tokens:
                raise InvalidRequest("{input} holds no token for this model", param="input", index=index)
        return items

    def take(self, ids: Sequence[int], limit: Limit, index: int) -> Prepared:
        """Token ids that a caller sends in place of text, special tokens included.

        Raises InvalidRequest for ids that the model has no embedding for, InputTooLong as `encode` does.
        """
        if not ids or min(ids) < 0 or max(ids) >= self.embeddings:
            message = f"{{input}}: token ids must be from 0 to {self.embeddings - 1}"
            raise InvalidRequest(message, param="input", index=index)
        overflows = len(ids) > limit.max_tokens
        if overflows and not limit.truncate:
            raise too_long(index, len(ids), False, limit.max_tokens)
        kept = ids[-limit.max_tokens :] if limit.side == "left" else ids[: limit.max_tokens]
        return Prepared(token_ids=np.array(kept, dtype=np.int32), truncated=overflows)

    def prompt_tokens(self, prompt: str) -> int:
        """Leading tokens that `prompt` takes, a closing special token not counted."""
        ids = self._bounded.encode(prompt).ids
        return len(ids) - int(bool(ids) and ids[-1] in self.special_ids)

    def _encode_bounded(self, texts: Sequence[str]) -> list[Prepared]:
        limit = self.default_limit
        size = limit.window_chars
        windows = [_window(text, size, limit.side) for text in texts]
        encodings = self._bounded.encode_batch_fast(windows)
        for index, text in enumerate(texts):
            if len(text) > size and self._all_tokens(encodings[index]) < limit.window_tokens:
                encodings[index] = self._widen(text, 2 * size, limit)
        return [self._prepared(encoding, bool(encoding.overflowing)) for encoding in encodings]

    def _widen(self, text: str, size: int, limit: Limit) -> Encoding:
        while True:
            encoding = self._bounded.encode_batch_fast([_window(text, size, limit.side)])[0]
            if size >= len(text) or self._all_tokens(encoding) >= limit.window_tokens:
                return encoding
            size *= 2

    def _all_tokens(self, encoding: Encoding) -> int:
        """Tokens of the whole window, those cut off included; special ones stand in each piece and count once."""
        return len(encoding) + sum(len(rest) - self._specials for rest in _pieces(encoding))

    def bare(self, texts: Sequence[str], limit: Limit) -> list[tuple[list[int], bool]]:
        """Ids of each text without special tokens, and whether they are all: at least twice as many as may stay."""
        size = limit.window_chars
        windows = [_window(text, size, limit.side) for text in texts]
        ids = [encoding.ids for encoding in self._open.encode_batch_fast(windows, add_special_tokens=False)]
        return [self._bare_of(text, known, size, limit) for text, known in zip(texts, ids, strict=True)]

    def shorten(self, text: str, max_tokens: int | None, side: str) -> str:
        """The part of `text` that its first `max_tokens` tokens are of (from the right where `side` is `left`)."""
        if max_tokens is None:
            return text
        limit = Limit(max_tokens=max_tokens, side=side)
        size = limit.window_chars
        while True:
            window = _window(text, size, side)
            encoding = self._open.encode(window, add_special_tokens=False)
            if size >= len(text) or len(encoding) >= limit.window_tokens:
                break
            size *= 2
        if len(encoding) <= max_tokens:
            return text
        if side == "left":
            return window[encoding.offsets[-max_tokens][0] :]
        return window[: encoding.offsets[max_tokens - 1][1]]

    def _bare_of(self, text: str, ids: list[int], size: int, limit: Limit) -> tuple[list[int], bool]:
        while size < len(text) and len(ids) < limit.window_tokens:
            size *= 2
            ids = self._open.encode_batch_fast([_window(text, size, limit.side)], add_special_tokens=False)[0].ids
        return ids, size >= len(text)

    def _encode_open(self, text: str, limit: Limit, index: int) -> Prepared:
        """The rarer limits: another length, the other side, or none."""
        size = limit.window_chars
        while True:
            encoding = self._open.encode_batch_fast([_window(text, size, limit.side)], add_special_tokens=False)[0]
            if size >= len(text) or len(encoding) >= limit.window_tokens:
                break
            size *= 2
        room = limit.max_tokens - self._specials
        overflows = len(encoding) > room
        if overflows and not limit.truncate:
            raise too_long(index, len(encoding) + self._specials, size < len(text), limit.max_tokens)
        if overflows:
            encoding.truncate(max(room, 0), direction=limit.side)
        return self._prepared(self._open.post_process(encoding), overflows)

    def _prepared(self, encoding: Encoding, truncated: bool) -> Prepared:
        type_ids = np.array(encoding.type_ids, dtype=np.int32) if self.has_type_ids else None
        return Prepared(
            token_ids=np.array(encoding.ids, dtype=np.int32),
            type_ids=type_ids if type_ids is not None and type_ids.any() else None,
            truncated=truncated,
        )


def copied(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with settings of its own, which cuts and pads nothing, around the same parts.

    The vocabulary is nearly all of its bytes, and nobody changes a part once the model is there.
    """
    copy = Tokenizer(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(tokenizer, part) is not None:
            setattr(copy, part, getattr(tokenizer, part))
    added = tokenizer.get_added_tokens_decoder()
    copy.add_tokens([added[token_id] for token_id in sorted(added)])  # as it was read: ids come from this order
    copy.encode_special_tokens = tokenizer.encode_special_tokens
    return copy


def _window(text: str, size: int, side: str) -> str:
    return text[:size] if side == "right" else text[-size:]


def _pieces(encoding: Encoding) -> Iterable[Encoding]:
    overflow: Iterable[Encoding] = encoding.overflowing
    return overflow


def too_long(index: int, tokens: int, more: bool, max_tokens: int) -> InputTooLong:
    """The refusal of an input of more tokens than its limit. `more`: it was not read to its end."""
    least = "at least " if more else ""
    message = f"{{input}} has {least}{tokens} tokens; the limit is {max_tokens} (set truncate to cut it)"
    return InputTooLong(message, index=index)
