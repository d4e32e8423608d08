"""A rerank request from its bytes to its answer's bytes, whatever the dialect."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import off_loop, read_json
from runtime.api.places import lone, places_of
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.schemas import json_object, validated
from runtime.api.scores import best_first
from runtime.api.scoring import Compared, blindness, candidates, read_pairs, scored, scoring_model
from runtime.api.scoring_schemas import Candidate, RerankRequest, documents_of, text_of
from runtime.api.tensors import render
from runtime.registry import ModelSpec
from runtime.work import Result, Task

Fields = dict[str, Any]
"""A body's fields, without those that are null."""

RESULT_BYTES = 80
"""About what a result is on the wire without its document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What every dialect's answer is made of."""

    model: str
    """The served name."""
    query: str
    documents: Sequence[str | None]
    """None: a picture, which isn't sent back."""
    scores: Sequence[float]
    """One a document, in their order."""
    order: Sequence[int]
    """Every document's index, the best first; where logits are equal, the lower index first."""
    top_n: int
    """How many are asked for; 0: all."""
    return_documents: bool
    tokens: int

    @property
    def best(self) -> Sequence[int]:
        """The indices that were asked for."""
        return self.order[: self.top_n or None]


@dataclass(frozen=True, slots=True)
class RerankForm:
    """One dialect's way with a ranking."""

    dialect: Dialect
    answer: Callable[[Ranking], Any]
    documents: str = "documents"
    """What it calls them."""


async def rerank(edge: Edge, exchange: Exchange, record: Record, choose: Callable[[Fields], RerankForm]) -> bytes:
    """The answer's JSON, in the form that `choose` tells from the body's fields. Raises CotenantError."""
    body = await read_json(edge, exchange)
    fields = await off_loop(len(body), json_object, body)
    form = choose(fields)
    record.surface = form.dialect
    record.candidates = candidates(fields.get(form.documents))
    request = validated(RerankRequest, fields)
    model = scoring_model(edge, exchange, record, request)
    query = text_of(request.query, "query")
    blind = blindness(edge, exchange, request.model, model)
    documents = documents_of(request.documents, form.documents, edge.limits.max_documents, blind)
    pairs = [Candidate(query, document) for document in documents]
    compared = Compared(pairs, lone("query"), places_of(form.documents, request.documents))
    result = await read_pairs(edge, exchange, record, request, model, compared)
    started = time.perf_counter()
    size_bytes = sum(row.nbytes + RESULT_BYTES for row in result.rows) + request.return_documents * record.characters
    answer = await off_loop(size_bytes, ranked, form, request, model, pairs, result)
    record.render_ms = (time.perf_counter() - started) * 1000
    return answer


def ranked(
    form: RerankForm,
    request: RerankRequest,
    model: tuple[ModelSpec, Task],
    pairs: Sequence[Candidate],
    result: Result,
) -> bytes:
    """The scored pairs in their order and the dialect's form."""
    spec, task = model
    outcome = scored(task, pairs, result, request.raw)
    ranking = Ranking(
        model=spec.name,
        query=pairs[0].query,
        documents=[pair.document if isinstance(pair.document, str) else None for pair in pairs],
        scores=outcome.scores.tolist(),
        order=best_first(outcome.logits),
        top_n=request.top_n,
        return_documents=request.return_documents,
        tokens=outcome.tokens,
    )
    return render(form.answer(ranking))
