"""TEI's routes that name no task: `POST /` and `/invocations` for one request, `/vertex` for many.

The body says what it is where only one task has such a body; otherwise the model's own task decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Annotated, Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, Strict

from runtime.api import openai
from runtime.api.addressing import meant
from runtime.api.catalogue import status_of
from runtime.api.classify import classify
from runtime.api.edge import Edge
from runtime.api.embeddings import embed
from runtime.api.exchange import Exchange
from runtime.api.inference import Handler, infer, note_lane, off_loop, read_json
from runtime.api.parts import checked_length
from runtime.api.problems import Answer, Dialect
from runtime.api.record import Record
from runtime.api.rerank import rerank
from runtime.api.rerank_routes import bare_form
from runtime.api.schemas import Milliseconds, json_object, validated
from runtime.api.tei import PREDICT
from runtime.api.tei_embeddings import bare_vectors, refuse_sparse
from runtime.api.tei_similarity import similarities
from runtime.errors import CotenantError, InvalidRequest, ModelLoading, UnsupportedCapability
from runtime.work import Task

Fields = dict[str, Any]

PREDICTION: Final = partial(classify, form=PREDICT)
RANKING: Final = partial(rerank, choose=bare_form)

BY_NAME: Final[Mapping[str, Handler]] = {
    "embed": partial(bare_vectors, task=Task.EMBED),
    "embed_all": partial(bare_vectors, task=Task.MULTI_VECTOR),
    "embed_sparse": refuse_sparse,
    "similarity": similarities,
    "predict": PREDICTION,
    "rerank": RANKING,
}
"""An instance's `type`, as TEI's clients for Vertex write it."""

BY_TASK: Final[Mapping[Task, Handler]] = {
    Task.EMBED: BY_NAME["embed"],
    Task.MULTI_VECTOR: BY_NAME["embed_all"],
    Task.CLASSIFY: PREDICTION,
    Task.RERANK: PREDICTION,
}
"""For bodies of `inputs`. A reranker's usual body is known by its `query`; one of `inputs` has pairs to score."""


class InvocationRequest(BaseModel):
    """The body of `POST /` and `/invocations`: one of the route that is meant, told by its fields and the model."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str | None = None


class VertexRequest(BaseModel):
    """The body of `/vertex`."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    instances: list[Fields]
    """Bodies as `POST /` takes them, each with its `type` or without."""
    model: str | None = None
    """Of the instances that name none; so the fields below."""
    priority: Annotated[int, Strict()] = 0
    timeout_ms: Milliseconds | None = None

    @property
    def shared(self) -> Fields:
        """What counts for every instance that doesn't say it itself."""
        return self.model_dump(exclude={"instances"}, exclude_unset=True)


async def invoke(edge: Edge, exchange: Exchange) -> None:
    """`POST /` and `/invocations`."""
    await infer(edge, exchange, Dialect.TEI, Task.EMBED, invoked)


async def vertex(edge: Edge, exchange: Exchange) -> None:
    """`POST /vertex`."""
    await infer(edge, exchange, Dialect.TEI, Task.EMBED, predictions)


async def invoked(edge: Edge, exchange: Exchange, record: Record) -> bytes | Answer:
    """The answer of the route that is meant. Raises CotenantError."""
    body = await read_json(edge, exchange)
    fields = await off_loop(len(body), json_object, body)
    handler = handler_of(edge, exchange, record, fields)
    exchange.body = body
    return await handler(edge, exchange, record)


def handler_of(edge: Edge, exchange: Exchange, record: Record, fields: Fields) -> Handler:
    """Who answers a body of these fields. Raises ModelNotFound, ModelRequired, ModelLoading."""
    inputs = fields.get("inputs")
    if isinstance(inputs, dict) and "source_sentence" in inputs:
        return similarities
    if "query" in fields:
        return RANKING
    if inputs is None and ("input" in fields or "messages" in fields):
        record.surface = Dialect.OPENAI
        return partial(embed, form=openai.EMBEDDINGS)
    name = fields.get("model")
    spec = meant(edge, exchange, name if isinstance(name, str) else None, None)
    record.model = spec.name
    task = status_of(edge, spec.id).task
    if task is None:
        raise ModelLoading("the model is still loading")
    record.task = task
    return BY_TASK[task]


async def predictions(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """Each instance's answer, in their order; one that fails is the request's failure. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request = validated(VertexRequest, await off_loop(len(body), json_object, body))
    instances = checked_length(request.instances, edge.limits.max_inputs, "instances")
    note_lane(exchange, record, request.priority)
    records = [Record(surface=record.surface, task=record.task, lane=record.lane) for _ in instances]

    async def all_of_them() -> list[bytes]:
        each = zip(instances, records, strict=True)
        tasks = [
            asyncio.ensure_future(
                located(prediction(edge, exchange, part, request.shared | told(fields), len(body)), index)
            )
            for index, (fields, part) in enumerate(each)
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            for part in records:
                record.add(part)

    answers = await exchange.while_connected(all_of_them())
    return b'{"predictions":[' + b",".join(answers) + b"]}"


def told(fields: Fields) -> Fields:
    """The fields without those that are null."""
    return {name: value for name, value in fields.items() if value is not None}


async def located(answer: Coroutine[Any, Any, bytes], index: int) -> bytes:
    """The instance's answer. Raises its error with its place among the others."""
    try:
        return await answer
    except CotenantError as error:
        raise error.located(f"instances[{index}]") from None


async def prediction(edge: Edge, exchange: Exchange, record: Record, fields: Fields, size_bytes: int) -> bytes:
    """One instance's answer. They run side by side, so they share batches. Raises CotenantError.

    `size_bytes`: of all instances, of which this one may be nearly all.
    """
    kind = fields.pop("type", None)
    if kind is not None and not (isinstance(kind, str) and kind in BY_NAME):
        raise InvalidRequest(f"type must be one of {', '.join(BY_NAME)}", param="instances")
    handler = BY_NAME[kind] if kind else handler_of(edge, exchange, record, fields)
    answer = await handler(edge, exchange.part(await off_loop(size_bytes, orjson.dumps, fields)), record)
    if isinstance(answer, Answer):
        raise UnsupportedCapability("instances are answered in JSON", param="encoding_format")
    return answer
