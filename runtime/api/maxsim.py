"""`POST /v1/maxsim`: multi-vectors of the caller's own, or texts and pictures embedded first, ranked by MaxSim.

The answer has the shape of a rerank's, with each document's id where it has one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict

from runtime.api.addressing import meant, name_of
from runtime.api.cohere import enveloped
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import deadline_of, infer, note_lane, off_loop, read_json
from runtime.api.late_interaction import DOCUMENT, QUERY, Account
from runtime.api.matrices import Matrix, is_matrix, matrix_of
from runtime.api.parts import Reference
from runtime.api.places import Places, lone, places_of
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.schemas import CUT_SIDES, Milliseconds, Truncation, json_object, truncation, validated
from runtime.api.scores import Scores, best_first
from runtime.api.scoring import candidates
from runtime.api.scoring_schemas import Count, document_of, listed
from runtime.api.tensors import render
from runtime.errors import InvalidRequest, TooManyDocuments
from runtime.work import MAXSIM_ID, Job, MatrixPair, Task

MOST_ID_CHARACTERS = 512

Content: TypeAlias = Matrix | str | Reference


class MaxSimRequest(BaseModel):
    """The body. Queries and documents are checked by `entries_of`, which says where they fail."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str | None = None
    query: Any = None
    queries: Any = None
    documents: Any
    top_n: Count = 0
    """0: all of them."""
    truncate: Annotated[Truncation, BeforeValidator(truncation)] = "default"
    priority: Annotated[int, Strict()] = 0
    timeout_ms: Milliseconds | None = None

    @property
    def query_places(self) -> Places:
        """What the caller calls each query."""
        return lone("query") if self.queries is None else places_of("queries", self.queries)

    @property
    def document_places(self) -> Places:
        """What the caller calls each document."""
        return places_of("documents", self.documents)


@dataclass(frozen=True, slots=True)
class Entry:
    """A query or a document: its multi-vector, or what one is to be made of."""

    content: Content
    id: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A body, read."""

    request: MaxSimRequest
    queries: Sequence[Entry]
    documents: Sequence[Entry]

    @property
    def embeds(self) -> bool:
        """Whether anything in it is no multi-vector yet."""
        return any(not isinstance(entry.content, np.ndarray) for entry in (*self.queries, *self.documents))


async def maxsim(edge: Edge, exchange: Exchange) -> None:
    """`POST /v1/maxsim`."""
    await infer(edge, exchange, Dialect.COHERE, Task.MAXSIM, answer_maxsim)


async def answer_maxsim(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """The answer's JSON. Raises CotenantError."""
    body = await read_json(edge, exchange)
    fields = await off_loop(len(body), json_object, body)
    record.candidates = candidates(fields.get("documents"))
    asked = await off_loop(len(body), read, fields, edge.limits.max_documents)
    job = job_of(edge, exchange, record, asked)
    account = Account(edge, exchange, record)
    places = asked.request.document_places
    documents = await matrices(account, replace(job, prompt_name=DOCUMENT), asked.documents, places)
    queries = await matrices(account, replace(job, prompt_name=QUERY), asked.queries, asked.request.query_places)
    check_widths(queries, documents)
    pairs = [MatrixPair(query, document) for query in queries for document in documents]
    given_rows = sum(len(entry.content) for entry in asked.documents if isinstance(entry.content, np.ndarray))
    compared = Places("documents", lambda index: places.at(index % len(documents)))
    result = await account.compare(pairs, job, compared, given_rows)
    started = time.perf_counter()
    scores = np.concatenate(result.rows).astype(np.float64).reshape(len(queries), len(documents))
    answer = await off_loop(scores.nbytes * 10, rendered, asked, scores, record)
    record.render_ms = (time.perf_counter() - started) * 1000
    return answer


def read(fields: dict[str, Any], max_documents: int) -> Comparison:
    """The body with its multi-vectors decoded. Raises InvalidRequest's kinds, UnsupportedCapability."""
    request = validated(MaxSimRequest, fields)
    if (request.query is None) == (request.queries is None):
        raise InvalidRequest("give query, or queries for a list of them", param="query")
    queries = [request.query] if request.queries is None else listed(request.queries, "queries")
    documents = listed(request.documents, "documents")
    if len(queries) * len(documents) > max_documents:
        raise TooManyDocuments(
            f"{len(queries)} queries with {len(documents)} documents each are more than the {max_documents} documents"
            " that this server takes in one request"
        )
    return Comparison(
        request=request,
        queries=entries_of(queries, request.query_places),
        documents=entries_of(documents, request.document_places),
    )


def entries_of(items: Sequence[Any], places: Places) -> list[Entry]:
    """Each item as an entry. Raises InvalidRequest's kinds, UnsupportedCapability."""
    return [entry_of(item, places.at(index)) for index, item in enumerate(items)]


def entry_of(item: object, name: str) -> Entry:
    """A multi-vector, a text or a picture, with its id. `name`: the place in the body."""
    param = name.partition("[")[0]
    id = item.get("id") if isinstance(item, dict) else None
    if id is not None and (type(id) not in (str, int) or len(str(id)) > MOST_ID_CHARACTERS):
        raise InvalidRequest(
            f"{name}: id must be an integer or a string of at most {MOST_ID_CHARACTERS} characters", param=param
        )
    if is_matrix(item):
        return Entry(matrix_of(item, name), id)
    return Entry(document_of(item, name), id)


def job_of(edge: Edge, exchange: Exchange, record: Record, asked: Comparison) -> Job:
    """The job that embeds what is no multi-vector yet, without inputs. A model is needed only for that.

    Raises ModelNotFound, ModelRequired, UnsupportedCapability.
    """
    request = asked.request
    note_lane(exchange, record, request.priority)
    record.model, model_id = MAXSIM_ID, MAXSIM_ID
    if asked.embeds or name_of(exchange, request.model):
        spec = meant(edge, exchange, request.model, Task.MULTI_VECTOR)
        record.model, model_id = spec.name, spec.id
    return Job(
        id=exchange.request_id,
        model=model_id,
        task=Task.MULTI_VECTOR,
        inputs=(),
        deadline_s=deadline_of(exchange, request.timeout_ms),
        truncate=request.truncate != "none",
        truncation_side=CUT_SIDES.get(request.truncate),
    )


async def matrices(account: Account, job: Job, entries: Sequence[Entry], names: Places) -> list[Matrix]:
    """Every entry's multi-vector; what is none yet is embedded, each different one once. Raises CotenantError."""
    sources = list(dict.fromkeys(entry.content for entry in entries if not isinstance(entry.content, np.ndarray)))
    firsts = Places(names.field, lambda index: names.at(first_place(sources[index], entries)))
    rows = (await account.embed(job, sources, firsts)).rows if sources else []
    made = dict(zip(sources, rows, strict=True))
    return [entry.content if isinstance(entry.content, np.ndarray) else made[entry.content] for entry in entries]


def first_place(source: str | Reference, entries: Sequence[Entry]) -> int:
    """The first of the entries that are to be made of `source`."""
    return next(
        index
        for index, entry in enumerate(entries)
        if not isinstance(entry.content, np.ndarray) and entry.content == source
    )


def check_widths(queries: Sequence[Matrix], documents: Sequence[Matrix]) -> None:
    """Raises InvalidRequest where a row is not as long as the first query's."""
    width = queries[0].shape[1]
    for name, group in (("queries", queries), ("documents", documents)):
        for index, matrix in enumerate(group):
            if matrix.shape[1] != width:
                raise InvalidRequest(
                    f"{name}[{index}] has rows of {matrix.shape[1]} numbers, the first query has rows of {width}",
                    param=name,
                )


def rendered(asked: Comparison, scores: Scores, record: Record) -> bytes:
    """A rerank's answer for one query; for `queries`, a list of such results."""
    lists = [results(asked, row) for row in scores]
    content: dict[str, Any] = {"results": lists[0]}
    if asked.request.queries is not None:
        data = [{"index": n, **identity(query), "results": lists[n]} for n, query in enumerate(asked.queries)]
        content = {"data": data}
    documents = len(asked.documents) * len(asked.queries)
    return render(enveloped(str(uuid.uuid4()), record.model, content, record.tokens, documents, "2"))


def results(asked: Comparison, scores: Scores) -> list[dict[str, Any]]:
    """The best first; equal scores keep the order of the documents."""
    order = best_first(scores)[: asked.request.top_n or None]
    return [
        {"index": index, **identity(asked.documents[index]), "relevance_score": float(scores[index])} for index in order
    ]


def identity(entry: Entry) -> dict[str, Any]:
    """The id, where one was given."""
    return {} if entry.id is None else {"id": entry.id}
