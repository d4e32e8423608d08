"""Pairs of query and document as one sequence of token ids, cut as transformers cuts them: longest first.

The tokenizer's pair template is read once (`[CLS] $A [SEP] $B [SEP]`, with the segment id of each part), so that a
query is tokenized once for all of a job's documents and cutting is arithmetic on two lengths. Each text is read in a
window, as in `tokenizing.py`; a cut text's window holds more tokens than may stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from runtime.errors import InvalidRequest, UnsupportedModel
from runtime.models.tokenizing import Limit, TextTokenizer, too_long
from runtime.work import Pair, Prepared

Ints = NDArray[np.int32]

PROBE_PAIRS = (("a", "b"), ("the first of two", "the other one of them"), ("", "b"), ("a", ""), ("", ""))
"""The template must give for these what the tokenizer itself gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLimit:
    """How much of a pair may stay. The parts' own limits count no special tokens."""

    whole: Limit
    query_tokens: int | None = None
    document_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens of one text, without special ones."""

    ids: Ints
    text: str
    complete: bool
    """False: the text goes on beyond the window that `ids` are of."""
    cut: bool = False
    """A part's own limit cut tokens off."""


class PairTemplate:
    """What a tokenizer puts around and between two texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UnsupportedModel where the second text comes first, or the parts depend on each other."""
        encoding = tokenizer.encode("a", "b")
        ids, types = (np.array(numbers, dtype=np.int32) for numbers in (encoding.ids, encoding.type_ids))
        owners = encoding.sequence_ids
        first = [place for place, owner in enumerate(owners) if owner == 0]
        second = [place for place, owner in enumerate(owners) if owner == 1]
        if not first or not second or first[-1] > second[0]:
            raise UnsupportedModel("the tokenizer has no template for pairs that could be followed")
        frames = [slice(0, first[0]), slice(first[-1] + 1, second[0]), slice(second[-1] + 1, None)]
        self._frames = [ids[frame] for frame in frames]
        self._frame_types = [types[frame] for frame in frames]
        self._types = (int(types[first[0]]), int(types[second[0]]))
        self.specials = sum(frame.size for frame in self._frames)
        for pair in PROBE_PAIRS:
            self._check(tokenizer, pair)

    def join(self, query: Ints, document: Ints) -> Ints:
        """`(tokens,)` ids of the pair."""
        start, middle, end = self._frames
        return np.concatenate([start, query, middle, document, end])

    def types(self, query_tokens: int, document_tokens: int) -> Ints:
        """`(tokens,)` segment ids of the pair."""
        start, middle, end = self._frame_types
        parts = [
            np.full(count, kind, dtype=np.int32)
            for count, kind in zip((query_tokens, document_tokens), self._types, strict=True)
        ]
        return np.concatenate([start, parts[0], middle, parts[1], end])

    def _check(self, tokenizer: Tokenizer, pair: tuple[str, str]) -> None:
        expected = tokenizer.encode(*pair)
        parts = [np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32) for text in pair]
        same_ids = self.join(parts[0], parts[1]).tolist() == expected.ids
        if not same_ids or self.types(parts[0].size, parts[1].size).tolist() != expected.type_ids:
            raise UnsupportedModel("the tokenizer's pairs are not their two texts in a fixed template")


class PairTokenizer(TextTokenizer):
    """A TextTokenizer that takes pairs, too."""

    def __init__(self, fast: PreTrainedTokenizerFast, max_tokens: int, embeddings: int) -> None:
        """See TextTokenizer. Raises UnsupportedModel for a tokenizer without a fixed template for pairs."""
        super().__init__(fast, max_tokens, embeddings)
        self._template = PairTemplate(self._open)

    def encode_inputs(self, inputs: Sequence[str | Pair], limit: PairLimit, prompt: str) -> list[Prepared]:
        """Token ids of each text or pair, `prompt` before the text or the pair's query, in order.

        Raises InputTooLong where `limit.whole.truncate` is False and an input has too many tokens; InvalidRequest for
        an input without any token.
        """
        pairs = {index: item for index, item in enumerate(inputs) if isinstance(item, Pair)}
        texts = {index: prompt + item for index, item in enumerate(inputs) if isinstance(item, str)}
        done = dict(zip(texts, self.encode([*texts.values()], limit.whole, [*texts]), strict=True))
        done.update(zip(pairs, self._encode_pairs(pairs, limit, prompt), strict=True))
        return [done[index] for index in range(len(inputs))]

    def _encode_pairs(self, places: Mapping[int, Pair], limit: PairLimit, prompt: str) -> list[Prepared]:
        pairs = list(places.values())
        texts = list(dict.fromkeys(pair.query for pair in pairs))
        query_cap = None
        if limit.query_tokens is not None:
            query_cap = limit.query_tokens + len(self._open.encode(prompt, add_special_tokens=False))
        read = self._read([prompt + text for text in texts], limit.whole, query_cap)
        queries = dict(zip(texts, read, strict=True))
        documents = self._read([pair.document for pair in pairs], limit.whole, limit.document_tokens)
        return [
            self._join(queries, pair.query, document, limit.whole, index)
            for pair, document, index in zip(pairs, documents, places, strict=True)
        ]

    def _read(self, texts: Sequence[str], limit: Limit, cap: int | None) -> list[Part]:
        needed = limit if cap is None else Limit(max_tokens=min(cap, limit.max_tokens), side=limit.side)
        parts = [
            Part(np.array(ids, dtype=np.int32), text, complete)
            for text, (ids, complete) in zip(texts, self.bare(texts, needed), strict=True)
        ]
        return parts if cap is None else [_capped(part, cap, limit.side) for part in parts]

    def _join(self, queries: dict[str, Part], query_text: str, document: Part, limit: Limit, index: int) -> Prepared:
        query = queries[query_text]
        room = limit.max_tokens - self._template.specials
        if self._need_whole(query, document, room):
            query, document = self._whole(query), self._whole(document)
            queries[query_text] = query
        lengths = query.ids.size, document.ids.size
        overflows = sum(lengths) > room
        if overflows and not limit.truncate:
            complete = query.complete and document.complete
            raise too_long(index, sum(lengths) + self._template.specials, not complete, limit.max_tokens)
        kept = longest_first(*lengths, max(room, 0))
        ids = self._template.join(cut(query.ids, kept[0], limit.side), cut(document.ids, kept[1], limit.side))
        if not ids.size:
            raise InvalidRequest("{input} holds no token for this model", param="input", index=index)
        types = self._template.types(*kept) if self.has_type_ids else None
        return Prepared(
            token_ids=ids,
            type_ids=types if types is not None and types.any() else None,
            truncated=overflows or query.cut or document.cut,
        )

    def _need_whole(self, query: Part, document: Part, room: int) -> bool:
        """Whether the odd token's owner is unknown: the longer text gets it, and a window hides which that is."""
        shorter = min(query, document, key=lambda part: part.ids.size)
        return room % 2 == 1 and not shorter.complete and shorter.ids.size > room // 2

    def _whole(self, part: Part) -> Part:
        if part.complete:
            return part
        ids = self._open.encode_batch_fast([part.text], add_special_tokens=False)[0].ids
        return Part(np.array(ids, dtype=np.int32), part.text, complete=True)


def longest_first(query: int, document: int, room: int) -> tuple[int, int]:
    """How many tokens of each stay, as `tokenizers` cuts pairs: the longer gives first, then both share the room.

    The document counts as the longer of two of one length.
    """
    if query + document <= room:
        return query, document
    shorter = min(query, document, room // 2)
    longer = min(max(query, document), room - shorter)
    return (shorter, longer) if query <= document else (longer, shorter)


def cut(ids: Ints, tokens: int, side: str) -> Ints:
    """The first `tokens` ids, or the last where the left end is cut off."""
    return ids[ids.size - tokens :] if side == "left" and tokens < ids.size else ids[:tokens]


def _capped(part: Part, cap: int, side: str) -> Part:
    if part.ids.size <= cap:
        return part
    return Part(cut(part.ids, cap, side), part.text, complete=True, cut=True)
