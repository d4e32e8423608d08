"""Cohere's dialect for vectors: `POST /v2/embed`, `POST /v1/embed`. Shapes as cohere-py 7.3 reads them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field, Strict

from runtime.api.edge import Edge
from runtime.api.embeddings import Given, vectors
from runtime.api.exchange import Exchange
from runtime.api.inference import infer, note_lane, off_loop, read_json
from runtime.api.parts import Reference, Source, contents, references
from runtime.api.places import places_of
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.schemas import OwnFormOptions, json_object, validated
from runtime.api.tensors import Wire, base64, numbers, render, wire_array, wire_bytes
from runtime.errors import InvalidRequest
from runtime.work import Result, Row, Task

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
Version = Literal["1", "2"]

INPUT_TYPES: Final = frozenset({"search_document", "search_query", "classification", "clustering", "image"})
"""Those that Cohere knows. Its clients must send one, also to a model that has no prompt of that name."""


class CohereRequest(OwnFormOptions):
    """The body of both versions. One of `texts`, `images` and `inputs` is needed."""

    texts: Any = None
    images: Any = None
    inputs: Any = None
    embedding_types: tuple[EmbeddingType, ...] | None = None
    max_tokens: Annotated[int, Strict(), Field(ge=1)] | None = None

    @property
    def prompt_optional(self) -> bool:
        """Cohere's own types are; any other name that the model lacks is a mistake."""
        return self.prompt in INPUT_TYPES


async def embed_v1(edge: Edge, exchange: Exchange) -> None:
    """`POST /v1/embed`: without `embedding_types`, a plain list of vectors."""
    await infer(edge, exchange, Dialect.COHERE, Task.EMBED, partial(typed_vectors, version="1"))


async def embed_v2(edge: Edge, exchange: Exchange) -> None:
    """`POST /v2/embed`: vectors by type, float where none is named."""
    await infer(edge, exchange, Dialect.COHERE, Task.EMBED, partial(typed_vectors, version="2"))


async def typed_vectors(edge: Edge, exchange: Exchange, record: Record, version: Version) -> bytes:
    """The answer. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request, field, sources = await off_loop(len(body), parse, body, edge.limits.max_inputs)
    note_lane(exchange, record, request.priority)  # on record before anything about the model is refused
    limit = request.max_tokens or request.truncate_prompt_tokens
    options = request.model_copy(update={"truncate_prompt_tokens": limit})
    _, result = await vectors(
        edge, exchange, record, options, Given(sources, places_of(field, getattr(request, field)))
    )
    size_bytes = wire_bytes(result.rows, "float") * len(request.embedding_types or "1")
    return await off_loop(size_bytes, rendered, result, request, sources, version)


def parse(body: bytes, max_inputs: int) -> tuple[CohereRequest, str, list[Source]]:
    """The request, the field that its inputs are in, and these. Raises RequestError."""
    request = validated(CohereRequest, json_object(body))
    given = [name for name in ("texts", "images", "inputs") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequest("send one of texts, images and inputs", param=given[-1] if given else "texts")
    if request.images is not None:
        return request, "images", references(request.images, max_inputs, "images")
    if request.texts is not None:
        refuse_others_than_texts(request.texts)
    return request, given[0], contents(getattr(request, given[0]), max_inputs, given[0])


def rendered(result: Result, request: CohereRequest, sources: Sequence[Source], version: Version) -> bytes:
    """Cohere's `EmbedByTypeResponse`, or version 1's `EmbedFloatsResponse` where no type was named."""
    kinds = request.embedding_types or ("float",)
    by_type = {kind: [_as_type(row, kind) for row in result.rows] for kind in dict.fromkeys(kinds)}
    plain = version == "1" and not request.embedding_types
    pictures = sum(isinstance(source, Reference) for source in sources)
    billed: dict[str, int] = {"input_tokens": result.tokens} | ({"images": pictures} if pictures else {})
    answer: dict[str, Any] = {
        "id": str(uuid.uuid4()),
        "response_type": "embeddings_floats" if plain else "embeddings_by_type",
        "embeddings": by_type["float"] if plain else by_type,
        "texts": [source for source in sources if isinstance(source, str)],
        "meta": {"api_version": {"version": version}, "billed_units": billed},
    }
    if "base64" in by_type and any(row.ndim > 1 for row in result.rows):
        answer["shapes"] = [row.shape for row in result.rows]
    return render(answer)


def _as_type(row: Row, kind: EmbeddingType) -> Any:
    if kind == "base64":
        return base64(wire_array(row, Wire()))
    return numbers(row, Wire(output_dtype=kind))


def refuse_others_than_texts(value: object) -> None:
    """Raises InvalidRequest where `texts` is no list, or something in it is no string."""
    if not isinstance(value, list):
        raise InvalidRequest("texts must be a list of strings", param="texts")
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise InvalidRequest(f"texts[{index}] must be a string", param="texts")
