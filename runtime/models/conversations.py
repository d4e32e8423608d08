"""Pairs and texts as the conversation that a model's chat template makes of them, as decoder rerankers read them.

sentence-transformers renders the pair into one text, cuts that text's tokens at the limit, and writes the template's
ending over the last of them, since the score is read there. Tokens run across the borders of query and document in a
rendered text, so nothing of it can be kept for the next document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from sentence_transformers.base.modules import Transformer

from runtime.errors import InvalidRequest, UnsupportedCapability
from runtime.models.pairs import PairLimit
from runtime.models.tokenizing import Limit, TextTokenizer, too_long
from runtime.work import Pair, Prepared

FILLERS = ("0", "1 2 3 4")
"""Two contents with no token in common: what two renderings end in alike is the template's."""
NOT_FOR_TEMPLATES = frozenset({"padding", "truncation", "max_length", "return_tensors", "restore_suffix"})
"""Options beside the template's own that a checkpoint may have stored with them."""


class ConversationTokenizer:
    """Renders and tokenizes; immutable but for a cache of endings."""

    def __init__(self, transformer: Transformer, tokenizer: TextTokenizer) -> None:
        """`tokenizer`: of the same vocabulary."""
        self._formatter = transformer.input_formatter
        self._renderer: Any = transformer.tokenizer
        options: Mapping[str, Any] = transformer.processing_kwargs.get("chat_template", {})
        self._options = {name: value for name, value in options.items() if name not in NOT_FOR_TEMPLATES}
        self._restores = options.get("restore_suffix", True)
        self._tokenizer = tokenizer
        self.pair_problem: str | None = self._formatter.pair_roles_failure(self._options)
        """Why the template can't carry a pair; None where it can."""
        self.ending = lru_cache(maxsize=64)(self._ending)

    def encode_inputs(self, inputs: Sequence[str | Pair], limit: PairLimit, prompt: str) -> list[Prepared]:
        """Token ids of each input in its conversation, in order. Raises as PairTokenizer.encode_inputs does."""
        if self.pair_problem is not None and any(isinstance(item, Pair) for item in inputs):
            raise UnsupportedCapability("this model's chat template takes no pairs", param="input")
        shortened = [self._cut_parts(item, limit) for item in inputs]
        encoded = self._tokenizer.bare([self._render(item, prompt) for item, _ in shortened], limit.whole)
        return [
            self._prepared(ids, complete, limit.whole, (index, was_cut, self.ending(isinstance(item, Pair), prompt)))
            for index, ((ids, complete), (item, was_cut)) in enumerate(zip(encoded, shortened, strict=True))
        ]

    def _prepared(
        self, ids: list[int], complete: bool, limit: Limit, about: tuple[int, bool, Sequence[int]]
    ) -> Prepared:
        index, was_cut, ending = about
        overflows = len(ids) > limit.max_tokens
        if overflows and not limit.truncate:
            raise too_long(index, len(ids), not complete, limit.max_tokens)
        if overflows:
            ids = ids[-limit.max_tokens :] if limit.side == "left" else ids[: limit.max_tokens]
            kept = min(len(ending), len(ids))
            ids = [*ids[: len(ids) - kept], *ending[len(ending) - kept :]]
        if not ids:
            raise InvalidRequest("{input} holds no token for this model", param="input", index=index)
        return Prepared(token_ids=np.array(ids, dtype=np.int32), truncated=overflows or was_cut)

    def _render(self, item: str | Pair, prompt: str) -> str:
        if isinstance(item, Pair):
            messages = self._formatter.pair_to_messages((item.query, item.document))
        else:
            messages = self._formatter.to_message({"text": item})
        if prompt:
            messages = self._formatter.prepend_prompt_to_messages([messages], prompt)[0]
        rendered: str = self._renderer.apply_chat_template(messages, tokenize=False, **self._options)
        return rendered

    def _ending(self, pair: bool, prompt: str) -> tuple[int, ...]:
        """Token ids that the template puts behind every content; none where it can't be told."""
        if not self._restores:
            return ()
        texts = [self._render(Pair(filler, filler) if pair else filler, prompt) for filler in FILLERS]
        first, second = (ids for ids, _ in self._tokenizer.bare(texts, self._tokenizer.default_limit))
        same = list(takewhile(lambda ids: ids[0] == ids[1], zip(reversed(first), reversed(second), strict=False)))
        return tuple(first[len(first) - len(same) :]) if 0 < len(same) < min(len(first), len(second)) else ()

    def _cut_parts(self, item: str | Pair, limit: PairLimit) -> tuple[str | Pair, bool]:
        """The pair with each part cut to its own limit."""
        if not isinstance(item, Pair):
            return item, False
        query = self._tokenizer.shorten(item.query, limit.query_tokens, limit.whole.side)
        document = self._tokenizer.shorten(item.document, limit.document_tokens, limit.whole.side)
        cut = len(query) < len(item.query) or len(document) < len(item.document)
        return (Pair(query, document) if cut else item), cut
