"""Bodies that come late, over a real socket: the answer, its connection, and its descriptor."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from runtime.api import exchange
from runtime.registry import ServerSettings
from tests.api.live import SERVERS, WAIT_S, HttpServer, LiveServer, live_server
from tests.fakes import FakeEngine

BODY = b'{"input":"abc"}'
LONG_S = 600.0
"""Never reached."""
SHORT_S = 0.1
GAP_S = 0.15
LINGER_S = 0.5
STALL_S = 1.0
"""Less than all bytes of BODY take at that gap, much more than one does."""


@pytest.fixture(params=SERVERS)
def http(request: pytest.FixtureRequest) -> HttpServer:
    server: HttpServer = request.param
    return server


@pytest.fixture(autouse=True)
def _no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LINGER_S", 0.05)


@contextmanager
def serving(http: HttpServer, stall_s: float = LONG_S, total_s: float = LONG_S) -> Iterator[LiveServer]:
    settings = ServerSettings(body_stall_timeout_s=stall_s, body_timeout_s=total_s)
    engine = FakeEngine(settings=settings)
    with live_server(engine, http) as server:
        yield server


def head(path: str = "/v1/embeddings", *headers: str, framing: str = f"content-length: {len(BODY)}") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: x", framing, *headers, "", ""]).encode()


def connect(server: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)


def until_closed(client: socket.socket) -> bytes:
    """All that the server says before it closes."""
    answer = b""
    while part := client.recv(2**16):
        answer += part
    return answer


def parsed(answer: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON."""
    top, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = top.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert int(headers["content-length"]) == len(body)
    return int(status.split(" ")[1]), headers, json.loads(body)


def descriptors(server: LiveServer) -> int:
    """The server's, of its connections, in whatever state."""
    found = psutil.Process().net_connections("tcp")
    return sum(each.laddr[1] == server.port and each.status != "LISTEN" for each in found)


def refused(server: LiveServer, *parts: bytes) -> tuple[int, dict[str, str], Any]:
    """The answer to a request of which no more comes than these parts; its connection is at an end on both sides."""
    with connect(server) as client:
        for part in parts:
            client.sendall(part)
        answer = until_closed(client)
        server.wait_until(lambda: descriptors(server) == 0)  # while the client holds its own
    assert server.engine.jobs == []
    return parsed(answer)


def answered(server: LiveServer, sent: Sequence[bytes], gap_s: float) -> int:
    """The status of a request sent in these parts, with a pause before each."""
    with connect(server) as client:
        for part in sent:
            time.sleep(gap_s)
            client.sendall(part)
        return int(client.recv(2**16).split(b" ")[1])


@pytest.mark.parametrize(
    "parts",
    [
        (head(),),
        (head(), BODY[:5]),
        (head(framing="transfer-encoding: chunked"), b"5\r\n" + BODY[:5] + b"\r\n"),
    ],
    ids=["none", "half", "chunked"],
)
def test_a_stalled_body_is_a_408_and_the_end_of_its_connection(http: HttpServer, parts: tuple[bytes, ...]) -> None:
    with serving(http, stall_s=SHORT_S) as server:
        status, headers, body = refused(server, *parts)
        assert (status, headers["connection"]) == (408, "close")
        assert headers["x-request-id"]
        assert body["error"]["code"] == "body_timeout"
        assert body["error"]["type"] == "timeout_error"
        assert not {"x-should-retry", "retry-after"} & set(headers)  # 408 alone is what clients try again
        assert server.engine.metering.request_errors == [("openai", "body_timeout")]
        assert answered(server, [head(), BODY], 0.0) == 200


def test_a_body_that_takes_too_long_is_a_408(http: HttpServer) -> None:
    with serving(http, total_s=SHORT_S) as server:
        status, headers, body = refused(server, head(), BODY[:5])
        assert (status, headers["connection"]) == (408, "close")
        assert body["error"]["code"] == "body_timeout"
        assert "0.1 s" in body["error"]["message"]


@pytest.mark.parametrize("header", ["x-deadline-ms: 100", "x-request-timeout-ms: 100"])
def test_a_body_that_misses_its_deadline_is_a_504(http: HttpServer, header: str) -> None:
    with serving(http) as server:
        status, headers, body = refused(server, head("/v1/embeddings", header), BODY[:5])
        assert (status, headers["connection"]) == (504, "close")
        assert body["error"]["code"] == "deadline_exceeded"


def test_a_deadline_that_makes_no_sense_is_refused_with_the_body(http: HttpServer) -> None:
    with serving(http, stall_s=SHORT_S) as server:
        assert refused(server, head("/v1/embeddings", "x-deadline-ms: soon"), BODY[:5])[0] == 408
        assert answered(server, [head("/v1/embeddings", "x-deadline-ms: soon"), BODY], 0.0) == 400


def test_a_slow_body_that_never_stalls_is_answered(http: HttpServer) -> None:
    with serving(http, stall_s=STALL_S) as server:
        assert answered(server, [head(), *(BODY[at : at + 1] for at in range(len(BODY)))], GAP_S) == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/embed", {"error": "nothing more of the body came for 0.1 s", "error_type": "Overloaded"}),
        ("/vectors", {"error": "nothing more of the body came for 0.1 s"}),
    ],
)
def test_the_caller_s_dialect_is_kept(http: HttpServer, path: str, expected: dict[str, str]) -> None:
    with serving(http, stall_s=SHORT_S) as server:
        status, _, body = refused(server, head(path), BODY[:5])
        assert (status, body) == (408, expected)


def test_a_client_that_goes_on_too_late_still_reads_its_answer(http: HttpServer, monkeypatch: Any) -> None:
    monkeypatch.setattr(exchange, "LINGER_S", WAIT_S)
    with serving(http, stall_s=SHORT_S) as server, connect(server) as client:
        client.sendall(head() + BODY[:5])
        start = client.recv(2**16)  # at once, though the rest of the body is still waited for
        client.sendall(BODY[5:])
        assert parsed(start + until_closed(client))[0] == 408
        server.wait_until(lambda: descriptors(server) == 0)


def test_a_request_s_time_ends_with_its_answer_and_not_with_what_is_thrown_away_after_it(
    http: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "LINGER_S", LINGER_S)
    with serving(http) as server, connect(server) as client:
        begun_s = time.perf_counter()
        client.sendall(head("/v1/embeddings", "content-type: text/plain") + BODY[:1])
        until_closed(client)
        took_s = time.perf_counter() - begun_s
        server.wait_until(lambda: len(server.engine.metering.observations) == 1)
    # As much as was lingered, give or take a clock's grain, is not in it.
    assert took_s - server.engine.metering.observations[0].seconds > LINGER_S / 2
