"""A request for vectors from its bytes to its answer's bytes, whatever the dialect.

The model decides what it gives: an embedder one vector an input, a late-interaction model a row a token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.api.addressing import meant
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import deadline_of, let_in, note_lane, off_loop, read_json, run_job
from runtime.api.parts import Reference, Source
from runtime.api.pictures import picture_inputs
from runtime.api.places import Places, places_of
from runtime.api.problems import Answer
from runtime.api.record import Record
from runtime.api.schemas import (
    EmbeddingRequest,
    VectorOptions,
    json_object,
    refuse_token_ids,
    sources_of,
    validated,
)
from runtime.api.tensors import Wire, concatenated, embedding_items, render, wire_bytes
from runtime.api.token_pooling import pooled
from runtime.errors import InvalidEncoding, RequestError, UnsupportedCapability
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Result, Task

Envelope = Callable[[str, list[dict[str, Any]], int], dict[str, Any]]
"""Served name, `data` items and tokens -> the dialect's answer."""

VECTORS = (Task.EMBED, Task.MULTI_VECTOR)
"""Tasks that give vectors, the first preferred where no model is named."""

MAX_METADATA_ITEMS = 256
"""A header that says more is longer than what clients read (32 KiB, and often less)."""


@dataclass(frozen=True, slots=True)
class Given:
    """What vectors are asked of."""

    sources: Sequence[Source]
    places: Places
    """What the caller calls them, for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorForm:
    """What a route of OpenAI's kind adds to it: its fields, its inputs, its answer."""

    envelope: Envelope
    schema: type[EmbeddingRequest] = EmbeddingRequest
    sources: Callable[[EmbeddingRequest, int], list[Source]] = sources_of
    """The request's inputs, at most so many."""
    tasks: Sequence[Task] = VECTORS
    modality: str = "text"
    """Where the body names none."""
    kind: str = "embedding"
    """`object` of each item of `data`."""
    key: str = "embedding"
    """Where in an item its vector stands."""

    def places(self, request: EmbeddingRequest) -> Places:
        """What the caller calls the inputs."""
        return (
            places_of("input", request.input) if request.messages is None else places_of("messages", request.messages)
        )


async def embed(edge: Edge, exchange: Exchange, record: Record, form: VectorForm) -> bytes | Answer:
    """The answer in the route's form. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request, sources = await off_loop(len(body), parsed, body, form, edge.limits.max_inputs)
    spec, result = await vectors(edge, exchange, record, request, Given(sources, form.places(request)), form.tasks)
    started = time.perf_counter()
    size_bytes = wire_bytes(result.rows, request.encoding_format)
    answer = await off_loop(size_bytes, rendered, result, request, spec.name, form)
    record.render_ms += (time.perf_counter() - started) * 1000
    return answer


def parsed(body: bytes, form: VectorForm, max_inputs: int) -> tuple[EmbeddingRequest, list[Source]]:
    """The request and its inputs. Raises RequestError."""
    request = validated(form.schema, {"modality": form.modality, **json_object(body)})
    sources = form.sources(request, max_inputs)
    if request.encoding_format == "bytes" and len(sources) > MAX_METADATA_ITEMS:
        raise InvalidEncoding(
            f"bytes takes at most {MAX_METADATA_ITEMS} inputs, for its metadata is a header: ask for bytes_only"
        )
    return request, sources


async def vectors(
    edge: Edge,
    exchange: Exchange,
    record: Record,
    options: VectorOptions,
    given: Given,
    tasks: Sequence[Task] = VECTORS,
) -> tuple[ModelSpec, Result]:
    """The model that was meant and its rows for what is given, in order. Raises CotenantError."""
    note_lane(exchange, record, options.priority)
    spec, task = vector_model(edge, exchange, options.model, tasks)
    record.model, record.task = spec.name, task
    if not spec.accept_token_ids:
        refuse_token_ids(given.sources, given.places.field)
    job = vector_job(exchange, options, spec, task)  # before pictures are fetched: its headers may be wrong
    let_in(edge, exchange, record)
    inputs = await inputs_of(edge, exchange, spec, given)
    try:
        result = await run_job(edge, exchange, record, replace(job, inputs=inputs), given.places)
    except RequestError as error:
        raise options.in_own_words(error) from None
    if task is Task.MULTI_VECTOR and options.pool_factor > 1:
        started = time.perf_counter()
        rows = await asyncio.to_thread(lambda: [pooled(row, options.pool_factor) for row in result.rows])
        result = replace(result, rows=rows)
        record.render_ms = (time.perf_counter() - started) * 1000
    return spec, result


async def inputs_of(edge: Edge, exchange: Exchange, spec: ModelSpec, given: Given) -> Sequence[Input]:
    """The sources with their pictures had and their headers checked. Raises CotenantError."""
    texts = [source for source in given.sources if not isinstance(source, Reference)]
    if len(texts) == len(given.sources):
        return texts
    check_sight(edge, spec.id, given.sources, given.places)
    return await exchange.while_connected(picture_inputs(edge, given.sources, given.places))


def check_sight(edge: Edge, model_id: str, sources: Sequence[Source], places: Places) -> None:
    """Raises UnsupportedCapability, with the place of the first picture, where the model, once loaded, takes none."""
    for status in edge.engine.describe():
        if status.id == model_id and status.modalities and "image" not in status.modalities:
            index = next(index for index, source in enumerate(sources) if isinstance(source, Reference))
            takes = f"{{input}} is a picture; {status.name} takes {', '.join(status.modalities)} only"
            raise UnsupportedCapability(takes, param="input", index=index).located(places.at(index))


def vector_model(edge: Edge, exchange: Exchange, name: str | None, tasks: Sequence[Task]) -> tuple[ModelSpec, Task]:
    """The model that is meant and the first of `tasks` that it does.

    Raises ModelNotFound, ModelRequired, UnsupportedCapability.
    """
    refusal: UnsupportedCapability | None = None
    for task in tasks:
        try:
            return meant(edge, exchange, name, task), task
        except UnsupportedCapability as error:
            refusal = refusal or error  # of the first task, which is what the route is about
    assert refusal is not None
    raise refusal


def vector_job(exchange: Exchange, options: VectorOptions, spec: ModelSpec, task: Task) -> Job:
    """The request with its defaults resolved, before it has inputs. Raises InvalidRequest for a senseless header."""
    limit = options.truncate_prompt_tokens
    return Job(
        id=exchange.request_id,
        model=spec.id,
        task=task,
        inputs=(),
        deadline_s=deadline_of(exchange, options.timeout_ms),
        dimensions=options.dimensions or None,
        normalize=options.normalize,
        prompt_name=options.prompt,
        prompt_optional=options.prompt_optional,
        truncate=options.truncate != "none",
        truncation_side=options.side,
        max_tokens=None if limit == -1 else limit,
    )


def wire_of(request: EmbeddingRequest) -> Wire:
    """How the request wants its vectors written."""
    return Wire(
        encoding_format=request.encoding_format,
        embed_dtype=request.embed_dtype,
        endianness=request.endianness,
        output_dtype=request.output_dtype,
    )


def rendered(result: Result, request: EmbeddingRequest, model: str, form: VectorForm) -> bytes | Answer:
    """The result in the request's encoding and the route's form."""
    wire = wire_of(request)
    if wire.encoding_format in ("bytes", "bytes_only"):
        return octets(result, wire, model, form)
    items = embedding_items(result.rows, wire, kind=form.kind, key=form.key)
    return render(form.envelope(model, items, result.tokens))


def octets(result: Result, wire: Wire, model: str, form: VectorForm) -> Answer:
    """vLLM's form for bulk: the numbers as they are, and the envelope, without them, in a header."""
    body, places = concatenated(result.rows, wire)
    described = form.envelope(model, places, result.tokens)
    headers = ((b"metadata", render(described)),) if wire.encoding_format == "bytes" else ()
    return Answer(200, headers, body, b"application/octet-stream")
