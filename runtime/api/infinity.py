"""Infinity's dialect: `POST /embeddings`, `POST /embeddings_image`, `GET /models`.

Answer shapes as infinity-emb 0.0.78 sends them.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime.api.catalogue import model_list
from runtime.api.edge import Edge
from runtime.api.embeddings import VectorForm, embed
from runtime.api.exchange import Exchange
from runtime.api.inference import infer
from runtime.api.openai import embedding_list
from runtime.api.problems import Dialect
from runtime.api.responses import json_response
from runtime.work import Task

OWNER = "infinity"
"""Its client knows no other owner and fails on one."""


async def embeddings(edge: Edge, exchange: Exchange) -> None:
    """`POST /embeddings`."""
    await infer(edge, exchange, Dialect.INFINITY, Task.EMBED, partial(embed, form=EMBEDDINGS))


async def embeddings_image(edge: Edge, exchange: Exchange) -> None:
    """`POST /embeddings_image`: strings are pictures. Deprecated there; `modality` says the same."""
    await infer(edge, exchange, Dialect.INFINITY, Task.EMBED, partial(embed, form=IMAGE_EMBEDDINGS))


def identified_list(model: str, items: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """OpenAI's list with an id of its own and its time."""
    answer = embedding_list(model, items, tokens)
    return {**answer, "id": f"infinity-{uuid.uuid4()}", "created": int(time.time())}


EMBEDDINGS = VectorForm(envelope=identified_list)
IMAGE_EMBEDDINGS = VectorForm(envelope=identified_list, modality="image")


def routes(edge: Edge) -> list[Route]:
    """The routes that are asked rarely."""

    async def models(request: Request) -> Response:
        return json_response(model_list(edge, OWNER))

    return [Route("/models", models)]
