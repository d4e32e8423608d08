"""Which model a request is about, in one order for all routes: body, path, port, header, the task's default.

The path is `/m/{model}/…` before any route, the port one of `server.bind_model`, the header `x-model-id`. A name in the
body wins, and one that nobody has is an error: no request is answered by another model than it names.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.api.contract import Engine
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.errors import CotenantError, ModelNotFound
from runtime.registry import ModelSpec
from runtime.router import UNNAMED
from runtime.work import Task

PREFIX: Final = "/m/"
HEADER: Final = b"x-model-id"
ADDRESSED: Final = "cotenant.model"
"""Where the scope has the model's name that the path or the port gave."""
MOST_PARTS: Final = 16
"""Names may hold slashes, up to so many parts; paths are the caller's, so trying must end."""


def meant(edge: Edge, exchange: Exchange, name: str | None, task: Task | None) -> ModelSpec:
    """The model that a request is for. `name`: what its body says, if anything.

    Raises ModelNotFound and ModelRequired (both list the served names), UnsupportedCapability; Unauthenticated and
    Forbidden where the caller may not use it.
    """
    caller = exchange.require_caller()
    if exchange.addressed is not None:
        edge.engine.resolve(exchange.addressed, None)  # a path that names nothing is wrong whatever the body says
    spec = edge.engine.resolve(name_of(exchange, name), task)
    caller.check_model(spec)
    return spec


def name_of(exchange: Exchange, name: str | None) -> str | None:
    """What a request calls its model, wherever it says so; `?model=` counts as the body's. None: it names none."""
    named = name or exchange.query.get("model")
    return (None if named in UNNAMED else named) or exchange.addressed or header_of(exchange)


def header_of(exchange: Exchange) -> str | None:
    """The model's name in `x-model-id`."""
    return exchange.headers.get(HEADER, b"").decode("latin-1").strip() or None


def routed(engine: Engine, scope: Scope) -> Scope:
    """The scope with the path that routes know: `server.url_prefix` and `/m/{model}` taken off, the model noted."""
    path: str = scope["path"]
    prefix = engine.config.server.url_prefix
    if prefix and (path == prefix or path.startswith(prefix + "/")):
        path = path[len(prefix) :] or "/"
    if path.startswith(PREFIX):
        name, path = split_model(engine, path[len(PREFIX) :])
        return {**scope, "path": path, ADDRESSED: name}
    return scope if path is scope["path"] else {**scope, "path": path}


def split_model(engine: Engine, path: str) -> tuple[str, str]:
    """`owner/name/v1/embeddings` as `owner/name` and `/v1/embeddings`: the longest name that is served.

    Servers decode `%2F` before the app sees a path, so an id reads the same whether it was encoded or not.
    Of a path that begins with no name, the first part is taken for one.
    """
    parts = path.split("/", MOST_PARTS)
    for count in range(len(parts), 0, -1):
        name = "/".join(parts[:count])
        if is_name(engine, name):
            return name, "/" + "/".join(parts[count:])
    return parts[0], "/" + "/".join(parts[1:])


def is_name(engine: Engine, name: str) -> bool:
    """Whether `name` is served, or is short for several that are."""
    if not name or name in UNNAMED:
        return False
    try:
        engine.resolve(name, None)
    except ModelNotFound:
        return False
    except CotenantError:
        return True
    return True


def bound(app: ASGIApp, models: dict[int, str]) -> ASGIApp:
    """The app, told by the port of a connection which model is meant."""

    async def by_port(scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        model = models.get(server[1]) if server else None
        await app(scope if model is None else {**scope, ADDRESSED: model}, receive, send)

    return by_port if models else app
