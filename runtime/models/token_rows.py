"""Which tokens of a text become rows of its multi-vector: query expansion and skip lists.

A query may be widened with mask tokens up to a length (Khattab and Zaharia 2020, "ColBERT"); a document may lose the
rows of its punctuation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from runtime.models.limits import max_tokens
from runtime.models.tokenizing import Limit, TextTokenizer
from runtime.work import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTokens(Prepared):
    """A text whose tokens each may become a row."""

    attended: int
    """Leading tokens that others attend to; those behind them widen a query."""
    kept: NDArray[np.bool_]
    """`(tokens,)` whether a token becomes a row."""


class Expansion(NamedTuple):
    """How queries are widened."""

    length: int
    token_id: int
    attend: bool


class Side(NamedTuple):
    """How queries, or documents, are tokenized and which of their tokens become rows."""

    tokenizer: TextTokenizer
    expansion: Expansion | None
    skipped: NDArray[np.int32]
    only: NDArray[np.int32] | None

    def encode(self, texts: Sequence[str], limit: Limit) -> list[PreparedTokens]:
        """Tokens of each text, widened where queries are; see TextTokenizer.encode for what is raised."""
        return [self._prepared(item) for item in self.tokenizer.encode(texts, limit)]

    def _prepared(self, item: Prepared) -> PreparedTokens:
        ids, types, attended = item.token_ids, item.type_ids, item.tokens
        missing = max(self.expansion.length - item.tokens, 0) if self.expansion else 0
        if self.expansion is not None and missing:
            ids = np.append(ids, np.full(missing, self.expansion.token_id, dtype=np.int32))
            types = None if types is None else np.append(types, np.zeros(missing, dtype=np.int32))
            attended = len(ids) if self.expansion.attend else attended
        kept = ~np.isin(ids, self.skipped)
        if self.only is not None:
            kept &= np.isin(ids, self.only)
        return PreparedTokens(token_ids=ids, type_ids=types, truncated=item.truncated, attended=attended, kept=kept)


def side_of(reference: MultiVectorEncoder, query: bool, wanted: int | None) -> Side:
    """The rules of one side, as the Transformer and the MultiVectorMask of the reference have them."""
    transformer: Any = reference[0]
    fast = transformer.tokenizer
    expansion = _expansion(transformer) if query else None
    own = transformer.query_length if query else transformer.document_length
    if expansion is not None:
        fixed = transformer.query_expansion["strategy"] == "fixed"
        own = expansion.length if fixed else own and max(own, expansion.length)
    limit = max_tokens(transformer.auto_model, own or transformer.max_seq_length, wanted)
    tokenizer = TextTokenizer(fast, limit, transformer.auto_model.get_input_embeddings().weight.shape[0])
    skipped: list[int] = []
    only: list[int] | None = None
    for module in reference:
        if isinstance(module, MultiVectorMask):
            if ("query" if query else "document") in module.skiplist_tasks and module._skiplist_ids is not None:
                skipped += module._skiplist_ids.tolist()
            only = module.keep_only_token_ids if not query else only
    return Side(
        tokenizer,
        expansion,
        np.array(skipped, dtype=np.int32),
        np.array(only, dtype=np.int32) if only else None,
    )


def _expansion(transformer: Any) -> Expansion | None:
    """The mask token, the end token where there is none, or the one that the settings name."""
    settings = transformer.query_expansion
    if settings is None:
        return None
    fast = transformer.tokenizer
    named = settings["token"]
    token_id = fast.mask_token_id if fast.mask_token_id is not None else fast.eos_token_id
    if named is not None:
        token_id = fast.convert_tokens_to_ids(named)
    return Expansion(int(settings["length"]), int(token_id), bool(settings["attend"]))
