"""The ASGI app: paths -> handlers.

POST routes to models are plain ASGI functions, because they are the hot path; the rest goes through
starlette. Models are not loaded in ASGI's lifespan: the port must answer while they load.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.api import (
    admin,
    cohere_embeddings,
    health,
    infinity,
    info,
    jina,
    maxsim,
    openai,
    openapi,
    probes,
    rerank_routes,
    similarity_map,
    tei,
    tei_embeddings,
    tei_similarity,
    tei_tasks,
    tokens,
    vllm,
    vllm_pooling,
    weaviate,
)
from runtime.api.access import log_plain, trace_of
from runtime.api.addressing import routed
from runtime.api.contract import Engine
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange, Header
from runtime.api.identity import Guard
from runtime.api.problems import Answer, Dialect, internal_problem, problem
from runtime.errors import CotenantError, MethodNotAllowed, RouteNotFound

HotRoute = Callable[[Edge, Exchange], Awaitable[None]]

LOG = logging.getLogger("cotenant.api")

HOT_ROUTES: dict[str, HotRoute] = {
    "/v1/embeddings": openai.embeddings,
    "/embeddings": infinity.embeddings,
    **rerank_routes.ROUTES,
    "/score": vllm.score,
    "/v1/score": vllm.score,
    "/predict": tei.predict,
    "/classify": infinity.classify_texts,
    "/v1/classify": infinity.classify_texts,
    "/embeddings_image": infinity.embeddings_image,
    "/pooling": vllm_pooling.pooling,
    "/v1/multi-vector": jina.multi_vector,
    "/v1/embed": cohere_embeddings.embed_v1,
    "/v2/embed": cohere_embeddings.embed_v2,
    "/embed": tei_embeddings.embed,
    "/embed_all": tei_embeddings.embed_all,
    "/v1/maxsim": maxsim.maxsim,
    "/v1/similarity_map": similarity_map.similarity_map,
    "/embed_sparse": tei_embeddings.embed_sparse,
    "/similarity": tei_similarity.similarity,
    "/": tei_tasks.invoke,
    "/invocations": tei_tasks.invoke,
    "/vertex": tei_tasks.vertex,
    "/vectors": weaviate.text_vector,
    **tokens.ROUTES,
}


ROOT = "/"
"""The one path that answers POST and GET."""
PLAIN_SURFACES = {"/info": Dialect.TEI, "/meta": Dialect.WEAVIATE}
"""Routes to no model whose clients read errors in their own dialect."""


def build_app(engine: Engine, guard: Guard | None = None) -> ASGIApp:
    """The app over a started engine; it neither starts nor stops it. `guard`: who may ask, if not as the settings say.

    Raises ConfigurationError for bad API keys.
    """
    edge = Edge(engine, guard)
    modules = (health, probes, admin, openai, infinity, info, openapi)
    router = Router([route for module in modules for route in module.routes(edge)], redirect_slashes=False)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await router(scope, receive, send)
            return
        scope = routed(engine, scope)
        exchange = Exchange(scope, receive, send)
        exchange.caller = edge.guard.recognise(exchange.headers)
        hot = HOT_ROUTES.get(exchange.path)
        if hot is not None and exchange.method == "POST":
            await hot(edge, exchange)
        else:
            await plain(edge, router, scope, exchange)

    if edge.tracing is None:
        return app
    engine.watch_batches(edge.tracing.note_batch)
    return edge.tracing.around(app)


async def plain(edge: Edge, router: Router, scope: Scope, exchange: Exchange) -> None:
    """A request to no model, or one to a POST route's path by another method."""
    try:
        if not edge.guard.is_public(exchange.path):
            exchange.require_caller()
        if exchange.caller is not None and exchange.addressed is not None:
            edge.engine.resolve(exchange.addressed, None)
        if exchange.path in HOT_ROUTES and exchange.path != ROOT:
            raise HTTPException(405)
        scope["cotenant.exchange"] = exchange
        scope["app"] = router  # tells starlette to raise its 404 and 405 instead of answering in plain text
        await router(scope, exchange.receive, exchange.send)
    except HTTPException as error:
        await respond(exchange, routing_problem(error, exchange.path))
    except CotenantError as error:
        await respond(exchange, problem(error, PLAIN_SURFACES.get(exchange.path, Dialect.OPENAI)))
    except Exception as error:
        LOG.error("request %s ended in a bug: %s", exchange.request_id, trace_of(error))
        await respond(exchange, internal_problem(exchange.request_id, Dialect.OPENAI))
    finally:
        log_plain(exchange)


async def respond(exchange: Exchange, answer: Answer) -> None:
    """Send the answer unless another has begun."""
    if exchange.status is None:
        await exchange.respond(answer.status, answer.headers, answer.body)


def routing_problem(error: HTTPException, path: str) -> Answer:
    """Starlette's refusal in our words: a path unknown, or known for other methods (RFC 9110 `Allow`)."""
    if error.status_code != 405:
        return problem(RouteNotFound("no such path; GET /v1/models lists what is served"), Dialect.OPENAI)
    posted = ["POST"] if path in HOT_ROUTES else []
    allowed = ", ".join([*(error.headers or {}).values(), *posted])
    refusal = problem(MethodNotAllowed(f"this path takes {allowed}"), Dialect.OPENAI)
    allow: Header = (b"allow", allowed.encode())
    return Answer(refusal.status, (*refusal.headers, allow), refusal.body)
