"""A connection of uvicorn's that is idle before its first request too, and as long as a request's head is unfinished.

Uvicorn 0.54 begins a connection's idle time after an answer and ends it with the next byte: whoever connects and sends
nothing, or half a head, kept a descriptor for ever.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runtime.api.unreadable import unreadable


class UvicornConnection(HttpToolsProtocol):
    """One connection, whose idle time ends with a whole head."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Uvicorn's; its idle time begins."""
        super().connection_made(cast(asyncio.Transport, transport))
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Uvicorn's. The idle time goes on unless a request began."""
        idle, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if idle is None:
            return
        is_idle = getattr(self.cycle, "response_complete", True)  # None before the first
        if is_idle and not self.transport.is_closing():
            self.timeout_keep_alive_task = idle
        else:
            idle.cancel()

    def on_response_complete(self) -> None:
        """Uvicorn's. Where the answer is out and the request's body is not in, nothing more of that is waited for."""
        is_unfinished = self.cycle.more_body and not self.pipeline
        super().on_response_complete()
        if is_unfinished:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what can't be read, and close."""
        answer = unreadable(HTTPStatus.BAD_REQUEST)
        lines = [b"HTTP/1.1 400 Bad Request", *(b"%s: %s" % header for header in answer.headers), b"", answer.body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()
