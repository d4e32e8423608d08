"""Jina's dialect for multi-vectors: `POST /v1/multi-vector`, as Weaviate's modules for it send and read it."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import model_validator

from runtime.api.edge import Edge
from runtime.api.embeddings import VectorForm, embed
from runtime.api.exchange import Exchange
from runtime.api.inference import infer
from runtime.api.openai import embedding_list
from runtime.api.parts import Source, contents
from runtime.api.problems import Dialect
from runtime.api.schemas import Boolean, EmbeddingRequest, sources_of
from runtime.errors import UnsupportedCapability
from runtime.work import Task


class MultiVectorRequest(EmbeddingRequest):
    """`input` holds texts, `{"text"}` and `{"image"}`."""

    return_multivector: Boolean = True

    @model_validator(mode="before")
    @classmethod
    def _encoding_is_a_type(cls, fields: Any) -> Any:
        """Jina's `embedding_type`, one or a list of one, also names what is an encoding here."""
        kind = fields.get("embedding_type") if isinstance(fields, dict) else None
        if isinstance(kind, list) and len(kind) == 1:
            kind = kind[0]
        if kind == "base64":
            return {**fields, "embedding_type": "float", "encoding_format": "base64"}
        return fields if kind is None else {**fields, "embedding_type": kind}


async def multi_vector(edge: Edge, exchange: Exchange) -> None:
    """`POST /v1/multi-vector`: a row a token, of late-interaction models."""
    await infer(edge, exchange, Dialect.COHERE, Task.MULTI_VECTOR, partial(embed, form=MULTI_VECTOR))


def mixed_sources(request: EmbeddingRequest, max_inputs: int) -> list[Source]:
    """Texts and pictures in one list. Raises RequestError."""
    if isinstance(request, MultiVectorRequest) and not request.return_multivector:
        raise UnsupportedCapability("this route gives multi-vectors only", param="return_multivector")
    if request.messages is not None or request.modality != "text" or request.input is None:
        return sources_of(request, max_inputs)
    return contents(request.input, max_inputs, "input")


MULTI_VECTOR = VectorForm(
    envelope=embedding_list,
    schema=MultiVectorRequest,
    sources=mixed_sources,
    tasks=(Task.MULTI_VECTOR,),
    kind="embeddings",
    key="embeddings",
)
