"""Connections over a real socket: hang-ups, refused bodies, keep-alive, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from runtime.api import exchange
from runtime.registry import ServerSettings
from tests.api.live import SERVERS, WAIT_S, HttpServer, LiveServer, live_server
from tests.fakes import FakeEngine

LIMIT_BYTES = 1024
REFUSED_BYTES = 3 * 2**20
"""More than either server and the socket buffers together hold."""
CLOSED = 30
"""Connections, one after another."""
MORE_THAN_HYPERCORN_S_DEFAULT = 1_010


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    http_server: HttpServer = request.param
    engine = FakeEngine(settings=ServerSettings(max_body_bytes=LIMIT_BYTES, drain_timeout_s=WAIT_S))
    with live_server(engine, http_server) as server:
        yield server


def close_gate(server: LiveServer) -> None:
    """From now on jobs wait."""
    server.engine.gate = asyncio.Event()


def open_gate(server: LiveServer) -> None:
    assert server.engine.gate is not None
    server.call(server.engine.gate.set)


@contextlib.contextmanager
def connect(server: LiveServer) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    with contextlib.closing(connection):
        yield connection


def embed_once(server: LiveServer) -> tuple[int, Any]:
    with connect(server) as connection:
        return embed(connection)


def embed(connection: http.client.HTTPConnection, text: str = "abc") -> tuple[int, Any]:
    connection.request("POST", "/v1/embeddings", json.dumps({"input": text}))
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def head(length: int, path: str = "/v1/embeddings") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()


def statuses(server: LiveServer) -> list[int]:
    return [seen.status for seen in server.engine.metering.observations]


def listening(server: LiveServer) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", server.port))
        except OSError:
            return True
    return False


def test_a_client_that_hangs_up_frees_its_place(server: LiveServer) -> None:
    close_gate(server)
    body = b'{"input":"abc"}'
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(head(len(body)) + body)
        server.wait_until(lambda: len(server.engine.jobs) == 1)
    server.wait_until(lambda: statuses(server) == [499])
    assert server.engine.cancelled == [server.engine.jobs[0].id]
    open_gate(server)
    assert embed_once(server)[0] == 200


def open_here(server: LiveServer) -> int:
    """Connections that the server has not closed."""
    found = psutil.Process().net_connections("tcp")
    return sum(each.laddr[1] == server.port and each.status in ("ESTABLISHED", "CLOSE_WAIT") for each in found)


def ask_and_close(server: LiveServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        if sent:
            client.sendall(sent)
            assert client.recv(2**16)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        head(15) + b'{"input":"abc"}',
        head(5) + b"wrong",
        2 * (head(15) + b'{"input":"abc"}'),
    ],
    ids=["nothing", "no-http", "health", "one", "400", "pipelined"],
)
def test_a_closed_connection_keeps_no_descriptor(server: LiveServer, sent: bytes) -> None:
    for _ in range(CLOSED):
        ask_and_close(server, sent)
    server.wait_until(lambda: open_here(server) == 0)
    assert embed_once(server)[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        head(1)[:-2] + b"content-length: 2\r\n\r\n",
    ],
    ids=["no-http", "bad-header", "two-lengths"],
)
def test_what_is_no_http_is_refused_in_words(server: LiveServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(sent)
        answer = b""
        while part := client.recv(2**16):  # to its end: the server closes
            answer += part
    top, _, body = answer.partition(b"\r\n\r\n")
    lines = top.lower().split(b"\r\n")
    assert lines[0].startswith(b"http/1.1 400 ")
    assert {b"connection: close", b"x-should-retry: false", b"content-length: %d" % len(body)} <= set(lines)
    assert [line for line in lines if line.startswith(b"x-request-id: ")] != []
    assert json.loads(body)["error"]["code"] == "invalid_request"


def test_pipelined_requests_are_all_answered(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(3 * (head(15) + b'{"input":"abc"}'))
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < 3:
            part = client.recv(2**16)
            assert part
            answers += part


def test_a_client_that_hangs_up_in_its_body_starts_no_job(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(head(500) + b'{"input":')
    server.wait_until(lambda: statuses(server) == [499])
    assert server.engine.jobs == []
    assert embed_once(server)[0] == 200


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/embeddings", 413, "request_too_large"),
        ("/nope", 404, "route_not_found"),
        ("/health", 405, "method_not_allowed"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
def test_a_client_that_sends_all_before_it_reads_gets_its_refusal(
    server: LiveServer, path: str, status: int, code: str, chunked: bool
) -> None:
    block = b" " * 2**16
    body = (block for _ in range(REFUSED_BYTES // len(block))) if chunked else b" " * REFUSED_BYTES
    with connect(server) as connection:
        connection.request("POST", path, body, encode_chunked=chunked)
        response = connection.getresponse()
        assert response.status == status
        assert json.loads(response.read())["error"]["code"] == code
        # The refused body was read off, so the connection is good for another request.
        assert embed(connection)[0] == 200


def test_a_body_that_is_announced_too_large_is_refused_before_it_comes(server: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(head(10 * 2**30))
        assert client.recv(1024).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/nope"])
def test_a_body_of_which_not_all_will_be_read_closes_the_connection_and_the_answer_says_so(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(exchange, "LINGER_S", 0.05)
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(head(10 * 2**30, path) + b" " * 1000)
        answer = b""
        while part := client.recv(2**16):  # to its end: the server closes
            answer += part
    assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 404 "))
    assert b"\r\nconnection: close\r\n" in answer.lower()


def test_one_connection_serves_thousands_of_requests(server: LiveServer) -> None:
    with connect(server) as connection:
        connection.connect()
        first = connection.sock
        for _ in range(MORE_THAN_HYPERCORN_S_DEFAULT):
            assert embed(connection)[0] == 200
        assert connection.sock is first


def test_requests_in_flight_outlive_the_stop(server: LiveServer) -> None:
    close_gate(server)
    answers: list[tuple[int, Any]] = []
    clients = [threading.Thread(target=lambda: answers.append(embed_once(server))) for _ in range(16)]
    for client in clients:
        client.start()
    server.wait_until(lambda: len(server.engine.jobs) == 16)
    server.stop()
    server.wait_until(lambda: not listening(server))
    open_gate(server)
    for client in clients:
        client.join(WAIT_S)
    assert [status for status, _ in answers] == [200] * 16
    server.thread.join(WAIT_S)
    assert not server.thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        embed_once(server)


def test_a_client_that_never_stops_sending_is_cut_off(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LINGER_BYTES", 2**17)
    with (
        connect(server) as connection,
        contextlib.suppress(ConnectionError, http.client.HTTPException),
    ):
        connection.request("POST", "/v1/embeddings", b" " * REFUSED_BYTES)
        assert connection.getresponse().status == 413
    server.wait_until(lambda: statuses(server) == [413])
    assert embed_once(server)[0] == 200


def test_a_client_that_stops_in_a_refused_body_is_cut_off(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LINGER_S", 0.05)
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(head(REFUSED_BYTES) + b" ")
        server.wait_until(lambda: statuses(server) == [413])
        assert client.recv(1024).startswith(b"HTTP/1.1 413 ")
