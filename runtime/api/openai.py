"""OpenAI's dialect: `POST /v1/embeddings`, `GET /v1/models`, `GET /v1/models/{id}`.

Answer shapes: OpenAI's API reference, `embeddings` and `models`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime.api.catalogue import find_item, model_list
from runtime.api.edge import Edge
from runtime.api.embeddings import VectorForm, embed
from runtime.api.exchange import Exchange
from runtime.api.inference import infer
from runtime.api.problems import Dialect
from runtime.api.responses import exchange_of, json_response
from runtime.work import Task

OWNER = "cotenant"


async def embeddings(edge: Edge, exchange: Exchange) -> None:
    """`POST /v1/embeddings`."""
    await infer(edge, exchange, Dialect.OPENAI, Task.EMBED, partial(embed, form=EMBEDDINGS))


def embedding_list(model: str, items: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """OpenAI's `CreateEmbeddingResponse`."""
    return {
        "object": "list",
        "data": items,
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


EMBEDDINGS = VectorForm(envelope=embedding_list)


def routes(edge: Edge) -> list[Route]:
    """The routes that are asked rarely."""

    async def models(request: Request) -> Response:
        return json_response(model_list(edge, exchange_of(request), OWNER))

    async def model(request: Request) -> Response:
        return json_response(find_item(edge, exchange_of(request), request.path_params["model_id"], OWNER))

    return [Route("/v1/models", models), Route("/v1/models/{model_id:path}", model)]
