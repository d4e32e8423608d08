"""A connection of hypercorn's that gives its descriptor back as soon as the client has closed it.

Hypercorn 0.18 closes a socket after the connection's last task, and one of these is the timer of the idle time: whoever
closes between two requests, or before the first, left a descriptor in CLOSE_WAIT until that ran out.
"""

from __future__ import annotations

import hypercorn.asyncio.run
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Event, Updated


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


def install() -> None:
    """Let hypercorn serve with it. There is no setting for that: the name that its worker looks up is replaced.

    Of the tests, `test_connection.py` fails once hypercorn needs this no more, `test_connections.py` once it looks
    elsewhere.
    """
    vars(hypercorn.asyncio.run)["TCPServer"] = Connection
