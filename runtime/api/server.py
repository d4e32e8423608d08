"""Listens in this process: hypercorn, or uvicorn where it is installed. The sockets are made by `listening`.

The servers' defaults that hurt a service are replaced here: hypercorn closes a connection after 1,000 requests
or 5 idle seconds, accepts a backlog of 100, and turns requests that outlive 3 s of shutdown into errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, cast

import hypercorn.asyncio
import hypercorn.config
from starlette.types import ASGIApp

from runtime.api import connection, descriptors
from runtime.api.addressing import bound
from runtime.api.listening import BACKLOG, Listening
from runtime.errors import ConfigurationError
from runtime.registry import ServerSettings

if TYPE_CHECKING:
    import uvicorn
    from hypercorn.typing import ASGIFramework

Runner = Callable[[ASGIApp, "Listening", asyncio.Event, float], Awaitable[None]]
OnBound = Callable[[str, int], None]

LOG = logging.getLogger("cotenant.server")

IDLE_S = 75.0
"""Longer than common proxies and client pools stay idle: they close first and never meet a reset."""
GRACE_MARGIN_S = 5.0
"""Beyond the drain timeout: by then the engine has failed what is left, and those answers need to go out."""


async def serve(
    app: ASGIApp, settings: ServerSettings, stop: asyncio.Event, *, on_bound: OnBound | None = None
) -> None:
    """Serve until `stop` is set and the requests in flight have their answers.

    `on_bound` gets the address and the real port before the first request. On `stop` the port closes at once;
    requests in flight get `drain_timeout_s` and a margin. Call the engine's `begin_drain` just before setting
    `stop` and its `stop` right after, while this winds down. Installs no signal handlers. Raises
    ConfigurationError where the port can't be had or the server isn't installed.
    """
    run = runner(settings)
    listening = Listening(settings)
    if on_bound is not None:
        on_bound(*listening.address)
    grace_s = settings.drain_timeout_s + GRACE_MARGIN_S
    serving = asyncio.ensure_future(run(bound(app, listening.models), listening, stop, grace_s))
    stopping = asyncio.create_task(stop.wait())
    watching = asyncio.create_task(descriptors.watch())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        # From Python 3.12 on, asyncio's own wait for open connections knows no limit.
        await asyncio.wait({serving}, timeout=grace_s + GRACE_MARGIN_S)
        if serving.done():
            serving.result()
    finally:
        watching.cancel()
        stopping.cancel()
        serving.cancel()
        listening.remove_path()


def runner(settings: ServerSettings) -> Runner:
    """The server that the settings name. Raises ConfigurationError."""
    if settings.http == "hypercorn":
        return run_hypercorn
    if importlib.util.find_spec("uvicorn") is None:
        raise ConfigurationError("http: uvicorn is not installed; install cotenant[uvicorn] or use hypercorn")
    return run_uvicorn


async def run_hypercorn(app: ASGIApp, listening: Listening, stop: asyncio.Event, grace_s: float) -> None:
    """Serve with hypercorn: HTTP/1.1 and HTTP/2."""
    connection.install()
    config = hypercorn.config.Config()
    config.certfile, config.keyfile = listening.certificate, listening.key
    config.bind = [f"fd://{each.detach()}" for each in listening.sockets]
    config.backlog = BACKLOG
    config.keep_alive_timeout = IDLE_S
    config.keep_alive_max_requests = 2**31
    config.graceful_timeout = grace_s
    config.accesslog = None
    config.errorlog = LOG
    config.include_server_header = False
    await hypercorn.asyncio.serve(cast("ASGIFramework", app), config, shutdown_trigger=stop.wait, mode="asgi")


async def run_uvicorn(app: ASGIApp, listening: Listening, stop: asyncio.Event, grace_s: float) -> None:
    """Serve with uvicorn: HTTP/1.1 at a quarter of hypercorn's cost a request."""
    server = uvicorn_server(app, listening, grace_s)

    async def ask_to_exit() -> None:
        await stop.wait()
        server.should_exit = True

    asking = asyncio.create_task(ask_to_exit())
    try:
        await server.serve(sockets=listening.sockets)
    finally:
        asking.cancel()


def uvicorn_server(app: ASGIApp, listening: Listening, grace_s: float) -> uvicorn.Server:
    """An uvicorn that leaves signals and logging to the process it is in."""
    import uvicorn

    from runtime.api.uvicorn_connection import UvicornConnection

    class EmbeddedServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return EmbeddedServer(
        uvicorn.Config(
            app,
            interface="asgi3",
            http=UvicornConnection,
            ssl_certfile=listening.certificate,
            ssl_keyfile=listening.key,
            lifespan="off",
            ws="none",
            backlog=BACKLOG,
            timeout_keep_alive=math.ceil(IDLE_S),
            timeout_graceful_shutdown=math.ceil(grace_s),
            access_log=False,
            log_config=None,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
        )
    )
