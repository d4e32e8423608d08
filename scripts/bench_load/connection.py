"""Keep-alive HTTP/1.1 connections that send prebuilt bytes and read whole answers, at little cost."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

# A 32-text answer as JSON numbers is about 300 kB; a smaller buffer would pause and resume the socket.
READ_BUFFER_BYTES = 4 * 1024 * 1024


class Answer(NamedTuple):
    """One response, the body whole."""

    status: int
    body: bytes
    head: bytes = b""
    """Status line and headers in small letters."""

    def header(self, name: bytes) -> bytes:
        """A header's value, by its name in small letters; empty where there is none."""
        return _header(self.head, name)


@dataclass
class Connection:
    """One socket; one exchange at a time."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    reusable: bool = True

    async def exchange(self, request: bytes) -> Answer:
        """Sends one request and reads its response.

        Raises:
            OSError: the connection broke.
            EOFError: the server closed it before the response was whole.
            ValueError: the response is not HTTP/1.1.
        """
        self.reusable = False
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        length = _header(head, b"content-length")
        body = await (self.reader.readexactly(int(length)) if length else self._chunks())
        self.reusable = _header(head, b"connection") != b"close"
        return Answer(status, body, head)

    async def _chunks(self) -> bytes:
        """The body under `transfer-encoding: chunked` (RFC 9112 §7.1), trailers not expected."""
        parts = []
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return b"".join(parts)


def _header(head: bytes, name: bytes) -> bytes:
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.partition(b"\r\n")[0].strip() if found else b""


class ConnectionPool:
    """Idle connections to one address; opens another when none is idle."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._idle: deque[Connection] = deque()

    async def exchange(self, request: bytes) -> Answer:
        """As `Connection.exchange`, on an idle connection that the server has not closed meanwhile."""
        connection = await self._take()
        try:
            return await connection.exchange(request)
        finally:
            if connection.reusable:
                self._idle.append(connection)
            else:
                connection.writer.close()

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof():
                return connection
            connection.writer.close()
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=READ_BUFFER_BYTES)
        return Connection(reader, writer)

    def close(self) -> None:
        for connection in self._idle:
            connection.writer.close()
