"""TEI's dialect for vectors: `POST /embed`, `/embed_all`, and why not `/embed_sparse`.

Shapes as text-embeddings-inference 1.9 sends them.
Its answers are bare lists. It names no model: the body's `model`, the header `x-model-id` or the only model counts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import orjson

from runtime.api.addressing import meant, name_of
from runtime.api.edge import Edge
from runtime.api.embeddings import Given, vectors
from runtime.api.exchange import Exchange
from runtime.api.inference import infer, off_loop, read_json
from runtime.api.parts import Source
from runtime.api.places import places_of
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.schemas import Boolean, OwnFormOptions, inputs_of, json_object, validated
from runtime.api.tensors import wire_bytes
from runtime.errors import InvalidDimensions, UnsupportedCapability
from runtime.work import Result, Task


class TeiRequest(OwnFormOptions):
    """The body of both routes."""

    inputs: Any
    """Checked by `inputs_of`."""
    normalize: Boolean | None = True


async def embed(edge: Edge, exchange: Exchange) -> None:
    """`POST /embed`: one vector an input, a list of them even for one."""
    await infer(edge, exchange, Dialect.TEI, Task.EMBED, partial(bare_vectors, task=Task.EMBED))


async def embed_all(edge: Edge, exchange: Exchange) -> None:
    """`POST /embed_all`: a vector a token, of late-interaction models."""
    await infer(edge, exchange, Dialect.TEI, Task.MULTI_VECTOR, partial(bare_vectors, task=Task.MULTI_VECTOR))


async def embed_sparse(edge: Edge, exchange: Exchange) -> None:
    """`POST /embed_sparse`: refused, as TEI refuses it of models that aren't sparse."""
    await infer(edge, exchange, Dialect.TEI, Task.EMBED, refuse_sparse)


async def refuse_sparse(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """Raises UnsupportedCapability, and what is wrong with the request before that."""
    body = await read_json(edge, exchange)
    request = validated(TeiRequest, await off_loop(len(body), json_object, body))
    if name_of(exchange, request.model):
        record.model = meant(edge, exchange, request.model, None).name
    raise UnsupportedCapability("no model here gives sparse vectors: /embed gives dense ones")


async def bare_vectors(edge: Edge, exchange: Exchange, record: Record, task: Task) -> bytes:
    """The rows as nested lists. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request, sources = await off_loop(len(body), parse, body, edge.limits.max_inputs)
    given = Given(sources, places_of("inputs", request.inputs))
    _, result = await vectors(edge, exchange, record, request, given, (task,))
    return await off_loop(wire_bytes(result.rows, "float"), nested, result)


def parse(body: bytes, max_inputs: int) -> tuple[TeiRequest, list[Source]]:
    """The request and its inputs. Raises RequestError."""
    fields = json_object(body)
    if fields.get("dimensions") == 0:
        raise InvalidDimensions("dimensions must be at least 1")
    request = validated(TeiRequest, fields)
    return request, [*inputs_of(request.inputs, max_inputs, "inputs")]


def nested(result: Result) -> bytes:
    """The rows as JSON numbers."""
    rows = [np.ascontiguousarray(row, dtype=np.float32) for row in result.rows]
    return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)
