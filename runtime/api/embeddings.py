"""An embedding request from its bytes to its answer's bytes, whatever the dialect."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import deadline_of, lane_of, off_loop, read_json
from runtime.api.record import Record
from runtime.api.schemas import EmbeddingRequest, parse_embedding, refuse_token_ids
from runtime.api.tensors import embedding_items, render, wire_bytes
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Lane, Result, Task

Envelope = Callable[[str, list[dict[str, Any]], int], dict[str, Any]]
"""Served name, `data` items and tokens -> the dialect's answer."""


async def embed(edge: Edge, exchange: Exchange, record: Record, envelope: Envelope) -> bytes:
    """The answer's JSON. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request, inputs = await off_loop(len(body), parse_embedding, body, edge.limits.max_inputs)
    spec = edge.engine.resolve(request.model, Task.EMBED)
    record.model = spec.name
    if not spec.accept_token_ids:
        refuse_token_ids(inputs)
    record.lane = lane_of(exchange, request.priority)
    record.compute = edge.compute(spec.id)
    record.inputs = len(inputs)
    record.characters = sum(len(item) for item in inputs if isinstance(item, str))
    job = embedding_job(request, spec, inputs, record.lane, exchange.request_id)
    job = replace(job, deadline_s=deadline_of(exchange, request.timeout_ms))
    result = await exchange.while_connected(edge.engine.run(job))
    note(result, record)
    started = time.perf_counter()
    size_bytes = wire_bytes(result.rows, request.encoding_format)
    answer = await off_loop(size_bytes, rendered, result, request, spec.name, envelope)
    record.render_ms = (time.perf_counter() - started) * 1000
    return answer


def embedding_job(request: EmbeddingRequest, spec: ModelSpec, inputs: Sequence[Input], lane: Lane, job_id: str) -> Job:
    """The request with its defaults resolved."""
    limit = request.truncate_prompt_tokens
    return Job(
        id=job_id,
        model=spec.id,
        task=Task.EMBED,
        inputs=inputs,
        lane=lane,
        dimensions=request.dimensions or None,
        normalize=request.normalize,
        prompt_name=request.prompt_name or request.input_type,
        truncate=request.truncate != "none",
        truncation_side=request.side,
        max_tokens=None if limit == -1 else limit,
    )


def note(result: Result, record: Record) -> None:
    """What the request turned out to cost."""
    record.tokens = result.tokens
    record.truncated_inputs = result.truncated_inputs
    record.timings = result.timings


def rendered(result: Result, request: EmbeddingRequest, model: str, envelope: Envelope) -> bytes:
    """The result in the request's encoding and the dialect's envelope."""
    items = embedding_items(result.rows, request.encoding_format, request.embed_dtype)
    return render(envelope(model, items, result.tokens))
