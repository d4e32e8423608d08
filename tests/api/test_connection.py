"""What hypercorn leaves open, and ours doesn't: the day hypercorn's own ends too, ours can go."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Updated
from hypercorn.utils import wrap_app

from runtime.api.connection import Connection

TURNS = 200
"""Of the event loop: many more than an ended connection needs."""


async def begun(kind: type[TCPServer]) -> tuple[TCPServer, asyncio.Task[None]]:
    """A connection that the client has closed at once, and its task after so many turns."""
    ours, theirs = socket.socketpair()
    theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    loop = asyncio.get_running_loop()

    async def absent(scope: object, receive: object, send: object) -> None:
        """An app that nobody calls."""

    app = wrap_app(absent, 0, "asgi")
    server = kind(app, loop, Config(), WorkerContext(None), {}, reader, writer)
    task = loop.create_task(server.run())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return server, task


@pytest.mark.parametrize(("kind", "ends"), [(TCPServer, False), (Connection, True)])
def test_a_closed_connection_ends_with_ours_and_not_with_hypercorn_s(kind: type[TCPServer], ends: bool) -> None:
    async def check() -> None:
        server, task = await begun(kind)
        assert (task.done(), server.writer.is_closing()) == (ends, ends)
        await server.idle_task.stop()
        await task

    asyncio.run(check())


def test_an_answer_after_the_end_begins_no_idle_time() -> None:
    async def check() -> None:
        server, task = await begun(Connection)
        async with asyncio.TaskGroup() as group, asyncio.timeout(20):
            server._task_group = type("Group", (), {"_task_group": group})()
            await server.protocol_send(Updated(idle=True))  # the group would wait for it
        assert task.done()

    asyncio.run(check())
