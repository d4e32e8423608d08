"""A connection of hypercorn's that gives its descriptor back as soon as the client has closed it, and refuses in words.

Hypercorn 0.18 closes a socket after the connection's last task, and one of these is the timer of the idle time: whoever
closes between two requests, or before the first, left a descriptor in CLOSE_WAIT until that ran out.
"""

from __future__ import annotations

import h11
import hypercorn.asyncio.run
import hypercorn.protocol
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Event, Updated
from hypercorn.protocol.h11 import H11Protocol

from runtime.api.unreadable import unreadable


class Connection(TCPServer):
    """One connection, whose idle time ends with what the client sends. A request in flight goes on as it did."""

    _has_ended = False
    """The client has closed, or is gone: nothing more will come."""

    async def protocol_send(self, event: Event) -> None:
        """Hypercorn's. A request that outlives the connection begins no new idle time."""
        await super().protocol_send(event)
        if self._has_ended and isinstance(event, Updated):
            await self.idle_task.stop()

    async def _read_data(self) -> None:
        await super()._read_data()
        self._has_ended = True
        await self.idle_task.stop()


class Http1(H11Protocol):
    """HTTP/1.1, whose own refusals have a body and an id: hypercorn's are a status alone."""

    async def _send_error_response(self, status_code: int) -> None:
        answer = unreadable(status_code)
        headers = [*answer.headers, *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=answer.status, headers=headers))
        await self._send_h11_event(h11.Data(data=answer.body))
        await self._send_h11_event(h11.EndOfMessage())


def install() -> None:
    """Let hypercorn serve with them. There is no setting for that: the names that it looks up are replaced.

    Of the tests, `test_connection.py` fails once hypercorn needs `Connection` no more, `test_connections.py` once it
    looks elsewhere.
    """
    vars(hypercorn.asyncio.run)["TCPServer"] = Connection
    vars(hypercorn.protocol)["H11Protocol"] = Http1
