"""A listener on 127.0.0.1 that counts who connects, and answers each path in its own way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

PNG_HEAD = b"\x89PNG\r\n\x1a\n"
ENDLESS_CHUNK = bytes(16 * 1024)


class Canary:
    """What was asked of it."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[str] = []
        self.hosts: list[str] = []
        self.answers: dict[str, bytes] = {}
        """Whole HTTP answers by path. `/slow` never answers, `/endless` never ends."""
        self.port = 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, path: str, body: bytes, *headers: str, status: str = "200 OK") -> str:
        """The address of an answer."""
        head = "\r\n".join((f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers))
        self.answers[path] = f"{head}\r\n\r\n".encode() + body
        return self.origin + path

    def redirect(self, path: str, location: str) -> str:
        return self.serve(path, b"", f"location: {location}", status="302 Found")

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ", 2)[1]
            self.requests.append(path)
            self.hosts += [line[6:] for line in head.split("\r\n") if line.lower().startswith("host: ")]
            if path == "/slow":
                await reader.read()  # until the client gives up
            elif path == "/endless":
                await self._pour(writer)
            else:
                writer.write(self.answers[path])
                await writer.drain()
        writer.close()

    async def _pour(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + PNG_HEAD)
        while True:
            writer.write(ENDLESS_CHUNK)
            await writer.drain()


@contextlib.asynccontextmanager
async def canary() -> AsyncIterator[Canary]:
    """A listening canary."""
    bird = Canary()
    server = await asyncio.start_server(bird.answer, "127.0.0.1", 0)
    bird.port = server.sockets[0].getsockname()[1]
    try:
        yield bird
    finally:
        server.close()
        await server.wait_closed()
