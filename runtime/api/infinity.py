"""Infinity's dialect: `POST /embeddings`, `/embeddings_image`, `/rerank`, `/classify`, `GET /models`.

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

from runtime.api import vllm
from runtime.api.catalogue import model_list
from runtime.api.classify import Classes, ClassForm, classify
from runtime.api.cohere import result_list, scored_result
from runtime.api.edge import Edge
from runtime.api.embeddings import VectorForm, embed
from runtime.api.exchange import Exchange
from runtime.api.inference import infer
from runtime.api.openai import embedding_list
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.rerank import Ranking, RerankForm
from runtime.api.responses import exchange_of, json_response
from runtime.api.scoring_schemas import ClassifyRequest
from runtime.errors import InvalidRequest
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
    return {**answer, "id": new_id(), "created": int(time.time())}


def ranked_results(ranking: Ranking) -> dict[str, Any]:
    """The best first; a document is a string where it was asked for, else null."""
    shown = ranking.documents if ranking.return_documents else [None] * len(ranking.documents)
    results = [scored_result(ranking, index) | {"document": shown[index]} for index in ranking.best]
    return result_list(new_id(), ranking, results, version="1")


RERANK = RerankForm(Dialect.INFINITY, ranked_results)


async def classify_texts(edge: Edge, exchange: Exchange) -> None:
    """`POST /classify` and `/v1/classify`; with `?format=vllm` the body is answered as vLLM does."""
    dialect, form = CLASSIFY_FORMATS.get(exchange.query.get("format", "infinity"), (Dialect.INFINITY, None))
    handler = refuse_format if form is None else partial(classify, form=form)
    await infer(edge, exchange, dialect, Task.CLASSIFY, handler)


async def refuse_format(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """Raises InvalidRequest."""
    raise InvalidRequest("format must be infinity or vllm", param="format")


def class_lists(request: ClassifyRequest, classes: Classes) -> dict[str, Any]:
    """Each input's labels, the likeliest first."""
    return {
        "object": "classify",
        "data": [classes.ranked(index) for index in range(len(classes.scores))],
        "model": classes.model,
        "usage": {"prompt_tokens": classes.tokens, "total_tokens": classes.tokens},
        "id": new_id(),
        "created": int(time.time()),
    }


CLASSIFY_FORMATS = {
    "infinity": (Dialect.INFINITY, ClassForm(ClassifyRequest, vllm.classify_inputs, class_lists, vllm.classify_places)),
    "vllm": (Dialect.VLLM, vllm.CLASSIFY),
}


def new_id() -> str:
    """An id of Infinity's form."""
    return f"infinity-{uuid.uuid4()}"


EMBEDDINGS = VectorForm(envelope=identified_list)
IMAGE_EMBEDDINGS = VectorForm(envelope=identified_list, modality="image")


def routes(edge: Edge) -> list[Route]:
    """The routes that are asked rarely."""

    async def models(request: Request) -> Response:
        return json_response(model_list(edge, exchange_of(request), OWNER))

    return [Route("/models", models)]
