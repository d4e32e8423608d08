"""`POST /v1/similarity_map`: where on a page each token of a query finds what it is like.

For each token the dot products with the page's patches, as colpali-engine's `get_similarity_maps_from_embeddings`
gives them, line by line from the top left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Strict

from runtime.api.addressing import meant
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import deadline_of, infer, note_lane, off_loop, read_json
from runtime.api.late_interaction import DOCUMENT, QUERY, Account
from runtime.api.parts import Reference, content_of
from runtime.api.places import lone
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.schemas import CUT_SIDES, Milliseconds, Truncation, json_object, truncation, validated
from runtime.api.tensors import base64, render
from runtime.errors import InvalidRequest
from runtime.work import Job, Picture, Result, Task


class SimilarityMapRequest(BaseModel):
    """The body."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str | None = None
    query: str
    image: Any
    """A `data:` URI, bare base64 or an address, or a part that holds one."""
    truncate: Annotated[Truncation, BeforeValidator(truncation)] = "default"
    priority: Annotated[int, Strict()] = 0
    timeout_ms: Milliseconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What the model made of the query and of the page."""

    model: str
    """The served name."""
    query: Result
    page: Result
    picture: Picture


async def similarity_map(edge: Edge, exchange: Exchange) -> None:
    """`POST /v1/similarity_map`."""
    await infer(edge, exchange, Dialect.OPENAI, Task.MULTI_VECTOR, answer_map)


async def answer_map(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """The answer's JSON. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request = validated(SimilarityMapRequest, await off_loop(len(body), json_object, body))
    note_lane(exchange, record, request.priority)
    image = reference_of(request.image)
    spec = meant(edge, exchange, request.model, Task.MULTI_VECTOR)
    record.model = spec.name
    job = Job(
        id=exchange.request_id,
        model=spec.id,
        task=Task.MULTI_VECTOR,
        inputs=(),
        deadline_s=deadline_of(exchange, request.timeout_ms),
        truncate=request.truncate != "none",
        truncation_side=CUT_SIDES.get(request.truncate),
        wants_layouts=True,
    )
    account = Account(edge, exchange, record)
    [picture] = await account.inputs(job, [image], lone("image"))
    assert isinstance(picture, Picture)
    page = await account.run(replace(job, prompt_name=DOCUMENT, inputs=[picture]), lone("image"))
    query = await account.run(replace(job, prompt_name=QUERY, inputs=[request.query]), lone("query"))
    started = time.perf_counter()
    sides = Sides(model=spec.name, query=query, page=page, picture=picture)
    answer = await off_loop(page.rows[0].nbytes, rendered, sides)
    record.render_ms = (time.perf_counter() - started) * 1000
    return answer


def reference_of(image: object) -> Reference:
    """The one picture meant. Raises InvalidRequest."""
    source = Reference(image) if isinstance(image, str) else content_of(image, "image")
    if not isinstance(source, Reference):
        raise InvalidRequest("image must be one picture (data URI, base64 or address)", param="image")
    return source


def rendered(sides: Sides) -> bytes:
    """`maps`: base64 of float32 `(tokens, rows, columns)`; `score`: MaxSim over all rows of the page."""
    [query], [page] = sides.query.rows, sides.page.rows
    [of_query], [of_page] = sides.query.layouts, sides.page.layouts
    products = query @ page.T
    maps = np.ascontiguousarray(products[:, of_page.patches], dtype="<f4").reshape(len(query), *of_page.grid)
    tokens = sides.query.tokens + sides.page.tokens
    return render(
        {
            "object": "similarity_map",
            "model": sides.model,
            "tokens": of_query.tokens,
            "grid": of_page.grid,
            "maps": base64(maps),
            "dtype": "float32",
            "shape": maps.shape,
            "width": sides.picture.width,
            "height": sides.picture.height,
            "score": float(products.max(axis=1).sum()),
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )
