"""vLLM's dialect for vectors: `POST /pooling`. Field names and shapes as vLLM's `entrypoints/pooling` has them."""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any, Literal

from runtime.api.edge import Edge
from runtime.api.embeddings import VectorForm, embed
from runtime.api.exchange import Exchange
from runtime.api.inference import infer
from runtime.api.parts import Source
from runtime.api.problems import Dialect
from runtime.api.schemas import EmbeddingRequest, sources_of
from runtime.errors import UnsupportedCapability
from runtime.work import Task


class PoolingRequest(EmbeddingRequest):
    """`/v1/embeddings`' fields, and what to pool."""

    task: Literal["embed", "token_embed", "classify", "token_classify", "plugin"] | None = None
    """The model decides; a task that gives no vectors is refused."""


async def pooling(edge: Edge, exchange: Exchange) -> None:
    """`POST /pooling`: a late-interaction model's rows, an embedder's vector."""
    await infer(edge, exchange, Dialect.VLLM, Task.MULTI_VECTOR, partial(embed, form=POOLING))


def pooling_sources(request: EmbeddingRequest, max_inputs: int) -> list[Source]:
    """The request's inputs. Raises RequestError."""
    if isinstance(request, PoolingRequest) and request.task not in (None, "embed", "token_embed"):
        raise UnsupportedCapability("/pooling gives vectors: task must be embed or token_embed", param="task")
    return sources_of(request, max_inputs)


def pooling_list(model: str, items: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """vLLM's `PoolingResponse`."""
    return {
        "id": f"pool-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": items,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


POOLING = VectorForm(envelope=pooling_list, schema=PoolingRequest, sources=pooling_sources, kind="pooling", key="data")
