"""When a connection on which nothing is asked is closed, and that one on which something is asked isn't."""

from __future__ import annotations

import asyncio
import socket
import time

import psutil
import pytest

from runtime.api import server as serving
from tests.api.live import SERVERS, WAIT_S, HttpServer, LiveServer, live_server
from tests.fakes import FakeEngine

IDLE_S = 1.0
BODY = b'{"input":"abc"}'
POST = b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n"
GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def _short_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE_S", IDLE_S)


def connect(server: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)


def held(server: LiveServer) -> int:
    """Connections whose descriptors the server still has."""
    found = psutil.Process().net_connections("tcp")
    return sum(each.laddr[1] == server.port and each.status != "LISTEN" for each in found)


@pytest.mark.parametrize("http", SERVERS)
@pytest.mark.parametrize("sent", [b"", POST, GET, GET + GET[:7]], ids=["nothing", "half", "one", "one-and-a-half"])
def test_a_connection_without_a_request_is_closed(http: HttpServer, sent: bytes) -> None:
    with live_server(FakeEngine(), http) as server, connect(server) as client:
        client.sendall(sent)
        while client.recv(2**16):
            pass
        server.wait_until(lambda: held(server) == 0)


@pytest.mark.parametrize("http", SERVERS)
def test_bytes_of_an_unfinished_head_are_no_request(http: HttpServer) -> None:
    with live_server(FakeEngine(), http) as server, connect(server) as client:
        client.settimeout(IDLE_S / 5)
        sent = 0
        open_ = True
        while open_ and sent < len(POST):
            client.sendall(POST[sent : sent + 1])
            sent += 1
            try:
                open_ = client.recv(2**16) != b""
            except TimeoutError:
                continue
            except ConnectionError:
                open_ = False
        assert not open_


@pytest.mark.parametrize("http", SERVERS)
def test_a_request_in_flight_is_not_idle(http: HttpServer) -> None:
    engine = FakeEngine()
    with live_server(engine, http) as server, connect(server) as client:
        engine.gate = asyncio.Event()
        client.sendall(POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        server.wait_until(lambda: len(engine.jobs) == 1)
        time.sleep(1.5 * IDLE_S)
        server.call(engine.gate.set)
        assert client.recv(2**16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("http", SERVERS)
def test_a_body_on_its_way_is_not_idle(http: HttpServer) -> None:
    with live_server(FakeEngine(), http) as server, connect(server) as client:
        client.sendall(POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY[:5])
        time.sleep(1.5 * IDLE_S)
        client.sendall(BODY[5:])
        assert client.recv(2**16).startswith(b"HTTP/1.1 200 ")
