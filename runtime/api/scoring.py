"""How a model scores pairs of query and document, and the job that makes it do so.

A cross-encoder reads both together. A bi-encoder gives each text its vector, and the score is their cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.api.addressing import meant, name_of
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import deadline_of, lane_of, run_job
from runtime.api.record import Record
from runtime.api.scores import Logits, Scores, activated, stacked
from runtime.api.scoring_schemas import PairRequest
from runtime.errors import UnsupportedCapability
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Pair, Result, Row, Task


@dataclass(frozen=True, slots=True)
class Reading:
    """How models of one task take pairs in, and what their rows say of each."""

    inputs: Callable[[Sequence[Pair]], list[Input]]
    logits: Callable[[Sequence[Pair], Sequence[Row]], Logits]
    """`(pairs,)`: the higher the better. Raises UnsupportedCapability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Pairs in their order, each with what it is ordered by and what is shown. `(pairs,)` each."""

    logits: Logits
    scores: Scores
    tokens: int


def together(pairs: Sequence[Pair]) -> list[Input]:
    """Each pair as it is."""
    return list(pairs)


def only_logit(pairs: Sequence[Pair], rows: Sequence[Row]) -> Logits:
    """A cross-encoder's one logit a pair."""
    logits = stacked(rows)
    if logits.shape[1] != 1:
        raise UnsupportedCapability(f"this model has {logits.shape[1]} labels: it classifies, and can't rank")
    return logits[:, 0]


def apart(pairs: Sequence[Pair]) -> list[Input]:
    """Every different text of the pairs once."""
    return list(positions(pairs))


def cosine(pairs: Sequence[Pair], rows: Sequence[Row]) -> Logits:
    """A bi-encoder's cosines; 0 where a vector has no length."""
    vectors, places = stacked(rows), positions(pairs)
    queries = vectors[[places[pair.query] for pair in pairs]]
    documents = vectors[[places[pair.document] for pair in pairs]]
    products = np.einsum("pd,pd->p", queries, documents)
    lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(documents, axis=1)
    cosines: Logits = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return cosines


def positions(pairs: Sequence[Pair]) -> dict[str, int]:
    """Each different text and its place among them."""
    texts = dict.fromkeys(text for pair in pairs for text in (pair.query, pair.document))
    return {text: place for place, text in enumerate(texts)}


READINGS: Mapping[Task, Reading] = {
    Task.RERANK: Reading(together, only_logit),
    Task.EMBED: Reading(apart, cosine),
}
"""In the order in which a model's tasks are tried. Late interaction is one more line."""


def candidates(documents: object) -> int:
    """How many documents a body holds, looked at no further."""
    if isinstance(documents, list):
        return len(documents)
    return int(documents is not None)


def scoring_model(edge: Edge, exchange: Exchange, record: Record, named: str | None) -> tuple[ModelSpec, Task]:
    """The model meant, and the task by which it scores. Raises ModelNotFound, ModelRequired, UnsupportedCapability.

    A request that names no model means a reranker; only by its name is an embedder asked to score.
    """
    tasks = list(READINGS) if name_of(exchange, named) else [Task.RERANK]
    refusal: UnsupportedCapability | None = None
    for task in tasks:
        try:
            spec = meant(edge, exchange, named, task)
        except UnsupportedCapability as error:
            refusal = refusal or error
        else:
            record.model = spec.name
            return spec, task
    assert refusal is not None
    raise refusal


async def read_pairs(
    edge: Edge,
    exchange: Exchange,
    record: Record,
    request: PairRequest,
    model: tuple[ModelSpec, Task],
    pairs: list[Pair],
) -> Result:
    """The rows that `scored` makes scores of. Raises CotenantError."""
    spec, task = model
    if task is not Task.RERANK:
        refuse_halves(request)
    job = Job(
        id=exchange.request_id,
        model=spec.id,
        task=task,
        inputs=READINGS[task].inputs(pairs),
        lane=lane_of(exchange, request.priority),
        deadline_s=deadline_of(exchange, request.timeout_ms),
        prompt_name=request.prompt_name,
        truncate=request.truncate != "none",
        truncation_side=request.side,
        max_tokens=request.max_tokens,
        max_query_tokens=request.max_tokens_per_query or None,
        max_document_tokens=request.max_tokens_per_doc or None,
    )
    return await run_job(edge, exchange, record, job)


def scored(task: Task, pairs: Sequence[Pair], result: Result, raw: bool) -> Scored:
    """Scores by the model's own activation, or its logits where `raw`. Raises UnsupportedCapability."""
    logits = READINGS[task].logits(pairs, result.rows)
    as_they_are = raw or result.head is None
    scores = logits if as_they_are or result.head is None else activated(logits[:, None], result.head.activation)[:, 0]
    return Scored(logits=logits, scores=scores, tokens=result.tokens)


def refuse_halves(request: PairRequest) -> None:
    """Raises UnsupportedCapability where a half's limit is asked of a model that doesn't read in halves."""
    for param in ("max_tokens_per_doc", "max_tokens_per_query"):
        if getattr(request, param):
            raise UnsupportedCapability(f"{param} is for models that read query and document together", param=param)
