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

from runtime.api import admin, health, infinity, openai
from runtime.api.access import log_plain
from runtime.api.contract import Engine
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange, Header
from runtime.api.problems import Answer, Dialect, internal_problem, problem
from runtime.errors import CotenantError, MethodNotAllowed, RouteNotFound

HotRoute = Callable[[Edge, Exchange], Awaitable[None]]

LOG = logging.getLogger("cotenant.api")

HOT_ROUTES: dict[str, HotRoute] = {
    "/v1/embeddings": openai.embeddings,
    "/embeddings": infinity.embeddings,
}


def build_app(engine: Engine) -> ASGIApp:
    """The app over a started engine; it neither starts nor stops it."""
    edge = Edge(engine)
    router = Router(
        [*health.routes(edge), *admin.routes(edge), *openai.routes(edge), *infinity.routes(edge)],
        redirect_slashes=False,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await router(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        hot = HOT_ROUTES.get(exchange.path)
        if hot is not None and exchange.method == "POST":
            await hot(edge, exchange)
        else:
            await plain(router, scope, exchange, known=hot is not None)

    return app


async def plain(router: Router, scope: Scope, exchange: Exchange, known: bool) -> None:
    """A request to no model. `known`: the path is a POST route's, so the method must be wrong."""
    try:
        if known:
            raise HTTPException(405, headers={"Allow": "POST"})
        scope["app"] = router  # tells starlette to raise its 404 and 405 instead of answering in plain text
        await router(scope, exchange.receive, exchange.send)
    except HTTPException as error:
        await respond(exchange, routing_problem(error))
    except CotenantError as error:
        await respond(exchange, problem(error, Dialect.OPENAI))
    except Exception:
        LOG.exception("request %s ended in a bug", exchange.request_id)
        await respond(exchange, internal_problem(exchange.request_id, Dialect.OPENAI))
    finally:
        log_plain(exchange)


async def respond(exchange: Exchange, answer: Answer) -> None:
    """Send the answer unless another has begun."""
    if exchange.status is None:
        await exchange.respond(answer.status, answer.headers, answer.body)


def routing_problem(error: HTTPException) -> Answer:
    """Starlette's refusal in our words: a path unknown, or known for other methods (RFC 9110 `Allow`)."""
    if error.status_code != 405:
        return problem(RouteNotFound("no such path; GET /v1/models lists what is served"), Dialect.OPENAI)
    allowed = (error.headers or {}).get("Allow", "")
    refusal = problem(MethodNotAllowed(f"this path takes {allowed}"), Dialect.OPENAI)
    allow: Header = (b"allow", allowed.encode())
    return Answer(refusal.status, (*refusal.headers, allow), refusal.body)
