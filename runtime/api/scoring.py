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
from runtime.api.inference import deadline_of, note_lane, run_job
from runtime.api.late_interaction import DOCUMENT, QUERY, Account
from runtime.api.places import Places
from runtime.api.record import Record
from runtime.api.scores import Logits, Scores, activated, stacked
from runtime.api.scoring_schemas import Blindness, Candidate, Document, PairRequest
from runtime.errors import RequestError, UnsupportedCapability
from runtime.registry import ModelSpec
from runtime.work import Input, Job, MatrixPair, Pair, Result, Row, Task


@dataclass(frozen=True, slots=True)
class Compared:
    """The candidates, and what the caller calls the halves of each, by its index."""

    pairs: Sequence[Candidate]
    query: Places
    document: Places

    def place_of(self, half: Document) -> str:
        """Where a query or a document stands first."""
        return next(
            self.query.at(index) if pair.query == half else self.document.at(index)
            for index, pair in enumerate(self.pairs)
            if half in (pair.query, pair.document)
        )

    def places(self, halves: Sequence[Document]) -> Places:
        """Where each of some queries or documents stands first."""
        return Places(self.document.field, lambda index: self.place_of(halves[index]))


Read = Callable[[Edge, Exchange, Record, Job, Compared], Awaitable[Result]]
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
    compared: Compared,
    inputs: Callable[[Compared], tuple[list[Input], Places]],
) -> Result:
    """The rows of one job on the `inputs` that the candidates make."""
    made, places = inputs(compared)
    return await run_job(edge, exchange, record, replace(job, inputs=made), places)


async def read_late(edge: Edge, exchange: Exchange, record: Record, job: Job, compared: Compared) -> Result:
    """`(1,)` MaxSim of each candidate: each different query and document is embedded once, as what it is."""
    if job.prompt_name is not None:
        raise UnsupportedCapability("this model has one prompt for queries and one for documents", param="prompt_name")
    account, pairs = Account(edge, exchange, record), compared.pairs
    queries = list(dict.fromkeys(pair.query for pair in pairs))
    documents = list(dict.fromkeys(pair.document for pair in pairs))
    # Documents first: a picture that can't be had ends the request before anything is computed.
    found = await account.embed(replace(job, prompt_name=DOCUMENT), documents, compared.places(documents))
    asked = await account.embed(replace(job, prompt_name=QUERY), queries, compared.places(queries))
    of_query = dict(zip(queries, asked.rows, strict=True))
    of_document = dict(zip(documents, found.rows, strict=True))
    matrices = [MatrixPair(of_query[pair.query], of_document[pair.document]) for pair in pairs]
    result = await account.compare(matrices, job, compared.document)
    return replace(result, tokens=asked.tokens + found.tokens)


def together(compared: Compared) -> tuple[list[Input], Places]:
    """Each candidate as one pair, which is called by its document."""
    return [Pair(pair.query, as_text(pair.document)) for pair in compared.pairs], compared.document


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


def apart(compared: Compared) -> tuple[list[Input], Places]:
    """Every different text of the candidates once."""
    texts = list(positions(compared.pairs))
    return [*texts], compared.places(texts)


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


def scoring_model(edge: Edge, exchange: Exchange, record: Record, request: PairRequest) -> tuple[ModelSpec, Task]:
    """The model meant, and the task by which it scores. Raises ModelNotFound, ModelRequired, UnsupportedCapability.

    The request's lane is on record from here on. A request that names no model means a reranker; only by its name is
    an embedder asked to score.
    """
    named = request.model
    note_lane(exchange, record, request.priority)
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


def blindness(edge: Edge, exchange: Exchange, named: str | None, model: tuple[ModelSpec, Task]) -> Blindness:
    """Why documents can't be pictures; None where they can, as far as the task says: the model may still refuse."""
    spec, task = model
    return None if task is Task.MULTI_VECTOR else partial(why_blind, edge, exchange, named, spec)


def why_blind(edge: Edge, exchange: Exchange, named: str | None, spec: ModelSpec) -> str:
    """What a request with pictures is told: who reads it, and who would see."""
    caller = exchange.require_caller()
    seers = [
        status.name
        for status in edge.engine.describe()
        if status.task is Task.MULTI_VECTOR and "image" in status.modalities and caller.may_use([status.name])
    ]
    advice = f"name one that sees: {', '.join(seers)}" if seers else "no model here compares pictures"
    reader = spec.name if name_of(exchange, named) else f"no model is named, and {spec.name}, which is meant then,"
    return f"{reader} reads nothing else; {advice}"


async def read_pairs(
    edge: Edge,
    exchange: Exchange,
    record: Record,
    request: PairRequest,
    model: tuple[ModelSpec, Task],
    compared: Compared,
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
        deadline_s=deadline_of(exchange, request.timeout_ms),
        prompt_name=request.prompt_name,
        truncate=request.truncate != "none",
        truncation_side=request.side,
        max_tokens=request.max_tokens,
        max_query_tokens=request.max_tokens_per_query or None,
        max_document_tokens=request.max_tokens_per_doc or None,
    )
    try:
        return await READINGS[task].read(edge, exchange, record, job, compared)
    except RequestError as error:
        raise request.in_own_words(error) from None


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
