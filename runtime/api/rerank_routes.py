"""The rerank routes, and whose dialect a body there is written in.

Five peers answer `/rerank`, each with its own fields; the body's keys tell them apart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from runtime.api import cohere, infinity, tei, voyage, weaviate
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import infer
from runtime.api.rerank import Fields, RerankForm, rerank
from runtime.errors import InvalidRequest
from runtime.work import Task

COHERE_FIELDS: Final = ("max_tokens_per_doc", "max_chunks_per_doc", "rank_fields")
"""What no client of Infinity's sends."""


def form_of(fields: Fields, default: RerankForm) -> RerankForm:
    """The form of these fields; `default` where they belong to nobody in particular. Raises InvalidRequest."""
    if "texts" in fields:
        if "documents" in fields:
            raise InvalidRequest("texts and documents are two names of one field: give one of them", param="texts")
        return tei.RERANK
    if "property" in fields:
        return weaviate.RERANK
    if "top_k" in fields or "truncation" in fields:
        return voyage.RERANK
    return default


def bare_form(fields: Fields) -> RerankForm:
    """The form on the path that Infinity and others share: its own, unless the body can't be its client's."""
    documents = fields.get("documents")
    objects = isinstance(documents, list) and any(isinstance(document, dict) for document in documents[:1])
    hinted = objects or any(field in fields for field in COHERE_FIELDS)
    return form_of(fields, cohere.RERANK_V1 if hinted else infinity.RERANK)


def route(choose: Callable[[Fields], RerankForm], default: RerankForm) -> Callable[[Edge, Exchange], Awaitable[None]]:
    """A handler; `default` is the dialect of what can't be read."""

    async def handler(edge: Edge, exchange: Exchange) -> None:
        await infer(edge, exchange, default.dialect, Task.RERANK, partial(rerank, choose=choose))

    return handler


V1 = route(partial(form_of, default=cohere.RERANK_V1), cohere.RERANK_V1)
V2 = route(partial(form_of, default=cohere.RERANK_V2), cohere.RERANK_V2)

ROUTES: Final = {
    "/rerank": route(bare_form, infinity.RERANK),
    "/v1/rerank": V1,
    "/v1/v1/rerank": V1,
    "/v2/v1/rerank": V1,
    "/v2/rerank": V2,
    "/v2/v2/rerank": V2,
    "/v1/v2/rerank": V2,
}
"""The doubled ones are what clients ask whose base URL already ends in the version."""
