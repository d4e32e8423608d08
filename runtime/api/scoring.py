"""How a model scores pairs of query and document, and the job that makes it do so.

A cross-encoder reads both together. A bi-encoder gives each text its vector, and the score is their cosine. A
late-interaction model gives each its multi-vector, and the score is MaxSim.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from runtime.api.addressing import meant, name_of
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import deadline_of, lane_of, run_job
from runtime.api.late_interaction import DOCUMENT, QUERY, Account
from runtime.api.record import Record
from runtime.api.scores import Logits, Scores, activated, stacked
from runtime.api.scoring_schemas import Candidate, Document, PairRequest
from runtime.errors import UnsupportedCapability
from runtime.registry import ModelSpec
from runtime.work import Input, Job, MatrixPair, Pair, Result, Row, Task

Read = Callable[[Edge, Exchange, Record, Job, Sequence[Candidate]], Awaitable[Result]]
"""Runs the job, which has no inputs yet, on the candidates."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How models of one task read candidates, and what their rows say of each."""

    read: Read
    logits: Callable[[Sequence[Candidate], Sequence[Row]], Logits]
    """`(candidates,)`: the higher the better. Raises UnsupportedCapability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Pairs in their order, each with what it is ordered by and what is shown. `(pairs,)` each."""

    logits: Logits
    scores: Scores
    tokens: int


async def read_once(
    edge: Edge,
    exchange: Exchange,
    record: Record,
    job: Job,
    pairs: Sequence[Candidate],
    inputs: Callable[[Sequence[Candidate]], list[Input]],
) -> Result:
    """The rows of one job on the candidates' `inputs`."""
    return await run_job(edge, exchange, record, replace(job, inputs=inputs(pairs)))


async def read_late(edge: Edge, exchange: Exchange, record: Record, job: Job, pairs: Sequence[Candidate]) -> Result:
    """`(1,)` MaxSim of each candidate: each different query and document is embedded once, as what it is."""
    if job.prompt_name is not None:
        raise UnsupportedCapability("this model has one prompt for queries and one for documents", param="prompt_name")
    account = Account(edge, exchange, record)
    queries = list(dict.fromkeys(pair.query for pair in pairs))
    documents = list(dict.fromkeys(pair.document for pair in pairs))
    # Documents first: a picture that can't be had ends the request before anything is computed.
    found = await account.embed(replace(job, prompt_name=DOCUMENT), documents)
    asked = await account.embed(replace(job, prompt_name=QUERY), queries)
    of_query = dict(zip(queries, asked.rows, strict=True))
    of_document = dict(zip(documents, found.rows, strict=True))
    compared = await account.compare(
        [MatrixPair(of_query[pair.query], of_document[pair.document]) for pair in pairs], job
    )
    return replace(compared, tokens=asked.tokens + found.tokens)


def together(pairs: Sequence[Candidate]) -> list[Input]:
    """Each candidate as one pair."""
    return [Pair(pair.query, as_text(pair.document)) for pair in pairs]


def as_text(document: Document) -> str:
    """The document of a model that reads only texts, whose pictures were refused before."""
    assert isinstance(document, str)
    return document


def only_logit(pairs: Sequence[Candidate], rows: Sequence[Row]) -> Logits:
    """A cross-encoder's one logit a pair."""
    logits = stacked(rows)
    if logits.shape[1] != 1:
        raise UnsupportedCapability(f"this model has {logits.shape[1]} labels: it classifies, and can't rank")
    return logits[:, 0]


def apart(pairs: Sequence[Candidate]) -> list[Input]:
    """Every different text of the pairs once."""
    return list(positions(pairs))


def cosine(pairs: Sequence[Candidate], rows: Sequence[Row]) -> Logits:
    """A bi-encoder's cosines; 0 where a vector has no length."""
    vectors, places = stacked(rows), positions(pairs)
    queries = vectors[[places[pair.query] for pair in pairs]]
    documents = vectors[[places[as_text(pair.document)] for pair in pairs]]
    products = np.einsum("pd,pd->p", queries, documents)
    lengths = np.linalg.norm(queries, axis=1) * np.linalg.norm(documents, axis=1)
    cosines: Logits = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return cosines


def positions(pairs: Sequence[Candidate]) -> dict[str, int]:
    """Each different text and its place among them."""
    texts = dict.fromkeys(text for pair in pairs for text in (pair.query, as_text(pair.document)))
    return {text: place for place, text in enumerate(texts)}


READINGS: Mapping[Task, Reading] = {
    Task.RERANK: Reading(partial(read_once, inputs=together), only_logit),
    Task.EMBED: Reading(partial(read_once, inputs=apart), cosine),
    Task.MULTI_VECTOR: Reading(read_late, only_logit),
}
"""In the order in which a model's tasks are tried."""


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


def sees(model: tuple[ModelSpec, Task]) -> bool:
    """Whether documents may be pictures, as far as the task says; the model itself may refuse them later."""
    return model[1] is Task.MULTI_VECTOR


async def read_pairs(
    edge: Edge,
    exchange: Exchange,
    record: Record,
    request: PairRequest,
    model: tuple[ModelSpec, Task],
    pairs: Sequence[Candidate],
) -> Result:
    """The rows that `scored` makes scores of. Raises CotenantError."""
    spec, task = model
    if task is not Task.RERANK:
        refuse_halves(request)
    job = Job(
        id=exchange.request_id,
        model=spec.id,
        task=task,
        inputs=(),
        lane=lane_of(exchange, request.priority),
        deadline_s=deadline_of(exchange, request.timeout_ms),
        prompt_name=request.prompt_name,
        truncate=request.truncate != "none",
        truncation_side=request.side,
        max_tokens=request.max_tokens,
        max_query_tokens=request.max_tokens_per_query or None,
        max_document_tokens=request.max_tokens_per_doc or None,
    )
    return await READINGS[task].read(edge, exchange, record, job, pairs)


def scored(task: Task, pairs: Sequence[Candidate], result: Result, raw: bool) -> Scored:
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
