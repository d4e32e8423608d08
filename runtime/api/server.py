"""Listens on one port in this process: hypercorn, or uvicorn where it is installed.

The servers' defaults that hurt a service are replaced here: hypercorn closes a connection after 1,000 requests
or 5 idle seconds, accepts a backlog of 100, and turns requests that outlive 3 s of shutdown into errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, cast

import hypercorn.asyncio
import hypercorn.config
from starlette.types import ASGIApp

from runtime.errors import ConfigurationError
from runtime.registry import ServerSettings

if TYPE_CHECKING:
    import uvicorn
    from hypercorn.typing import ASGIFramework

Runner = Callable[[ASGIApp, socket.socket, asyncio.Event, float], Awaitable[None]]
OnBound = Callable[[str, int], None]

LOG = logging.getLogger("cotenant.server")

BACKLOG = 2048
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
    listener = listen(settings)
    if on_bound is not None:
        on_bound(*listener.getsockname()[:2])
    grace_s = settings.drain_timeout_s + GRACE_MARGIN_S
    serving = asyncio.ensure_future(run(app, listener, stop, grace_s))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        # From Python 3.12 on, asyncio's own wait for open connections knows no limit.
        await asyncio.wait({serving}, timeout=grace_s + GRACE_MARGIN_S)
        if serving.done():
            serving.result()
    finally:
        stopping.cancel()
        serving.cancel()


def runner(settings: ServerSettings) -> Runner:
    """The server that the settings name. Raises ConfigurationError."""
    if settings.http == "hypercorn":
        return run_hypercorn
    if importlib.util.find_spec("uvicorn") is None:
        raise ConfigurationError("http: uvicorn is not installed; install cotenant[uvicorn] or use hypercorn")
    return run_uvicorn


def listen(settings: ServerSettings) -> socket.socket:
    """A listening socket. Raises ConfigurationError."""
    address = (settings.host, settings.port)
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"can't listen on {settings.host} port {settings.port}: {error.strerror}") from error
    listener.setblocking(False)
    # Inherited by every connection: asyncio sets it only on sockets that name their protocol, which these don't,
    # and without it an answer's second packet waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def run_hypercorn(app: ASGIApp, listener: socket.socket, stop: asyncio.Event, grace_s: float) -> None:
    """Serve with hypercorn: HTTP/1.1 and HTTP/2."""
    config = hypercorn.config.Config()
    config.bind = f"fd://{listener.detach()}"
    config.backlog = BACKLOG
    config.keep_alive_timeout = IDLE_S
    config.keep_alive_max_requests = 2**31
    config.graceful_timeout = grace_s
    config.accesslog = None
    config.errorlog = LOG
    config.include_server_header = False
    await hypercorn.asyncio.serve(cast("ASGIFramework", app), config, shutdown_trigger=stop.wait, mode="asgi")


async def run_uvicorn(app: ASGIApp, listener: socket.socket, stop: asyncio.Event, grace_s: float) -> None:
    """Serve with uvicorn: HTTP/1.1 at a quarter of hypercorn's cost a request."""
    server = uvicorn_server(app, grace_s)

    async def ask_to_exit() -> None:
        await stop.wait()
        server.should_exit = True

    asking = asyncio.create_task(ask_to_exit())
    try:
        await server.serve(sockets=[listener])
    finally:
        asking.cancel()


def uvicorn_server(app: ASGIApp, grace_s: float) -> uvicorn.Server:
    """An uvicorn that leaves signals and logging to the process it is in."""
    import uvicorn

    class EmbeddedServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return EmbeddedServer(
        uvicorn.Config(
            app,
            interface="asgi3",
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
