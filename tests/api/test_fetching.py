"""Pictures by address: only from hosts that were named, and never from the inside, whatever it is called."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import pytest
from httpcore2 import AnyIOBackend

from runtime.api.fetching import Fetcher, is_public
from runtime.errors import CotenantError, ImageTooLarge, ImageUnreachable, ImageUrlRefused
from tests.api.canary import canary

pytestmark = pytest.mark.anyio

BODY = b"\x89PNG" + bytes(1000)

INSIDE = [
    "http://127.0.0.1:{port}/a",
    "http://127.1:{port}/a",
    "http://0.0.0.0:{port}/a",
    "http://[::1]:{port}/a",
    "http://[::]:{port}/a",
    "http://[::ffff:127.0.0.1]:{port}/a",
    "http://[::ffff:7f00:1]:{port}/a",
    "http://[64:ff9b::7f00:1]:{port}/a",
    "http://2130706433:{port}/a",
    "http://0x7f000001:{port}/a",
    "http://0x7f.0.0.1:{port}/a",
    "http://0177.0.0.1:{port}/a",
    "http://017700000001:{port}/a",
    "http://127.0.0.1.:{port}/a",
    "http://localhost:{port}/a",
    "http://localhost.:{port}/a",
    "http://LOCALHOST:{port}/a",
    "http://ip6-localhost:{port}/a",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://metadata.google.internal/computeMetadata/v1/",
    "http://10.0.0.1/a",
    "http://192.168.0.1/a",
    "http://allowed.example@127.0.0.1:{port}/a",
    "http://127.0.0.1:{port}#@allowed.example/a",
    "http://127.0.0.1:{port}\\@allowed.example/a",
    "http://user:word@allowed.example/a",
    "//127.0.0.1:{port}/a",
    "http:/127.0.0.1:{port}/a",
    "http:\\\\127.0.0.1:{port}\\a",
    " http://127.0.0.1:{port}/a",
    "http://\uff11\uff12\uff17.0.0.1:{port}/a",
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "ftp://127.0.0.1:{port}/a",
    "gopher://127.0.0.1:{port}/_GET",
    "dict://127.0.0.1:{port}/info",
    "unix:///var/run/docker.sock",
    "http://allowed.example:{port}/a",
    "https://allowed.example.evil.example/a",
    "http://" + "a" * 5000 + "/",
    "http://\x00/",
    "http://",
]
"""Addresses of a server with `allowed.example` on its list; the canary listens on `port`."""


def fetcher(*hosts: str, timeout_s: float = 10.0, max_bytes: int = 100_000) -> Fetcher:
    return Fetcher(hosts, timeout_s=timeout_s, max_bytes=max_bytes)


async def refused(what: Fetcher, address: str, kind: type[CotenantError] = ImageUrlRefused) -> str:
    with pytest.raises(kind) as caught:
        await what.fetch(address)
    assert type(caught.value) is kind
    assert address not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("address", INSIDE)
@pytest.mark.parametrize("hosts", [(), ("allowed.example",)], ids=["none", "one"])
async def test_every_way_inside_is_refused_without_a_connection(address: str, hosts: tuple[str, ...]) -> None:
    async with canary() as bird:
        await refused(fetcher(*hosts), address.format(port=bird.port))
        assert bird.connections == 0


@pytest.mark.parametrize("name", ["localhost", "2130706433", "0x7f.1", "127.1", "allowed.example"])
async def test_an_allowed_name_that_leads_inside_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a name in the operator's own list, as its owner may point it anywhere."""

    def resolved(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    async with canary() as bird:
        message = await refused(fetcher(f"{name}:{bird.port}"), f"http://{name}:{bird.port}/a")
        assert "not public" in message
        assert bird.connections == 0


async def test_one_inside_address_among_a_names_many_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("93.184.215.14", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    await refused(fetcher("allowed.example"), "http://allowed.example/a")


async def test_a_name_is_resolved_once_and_the_connection_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second answer, such as a rebinding name server gives, is never asked for."""
    asked: list[str] = []
    dialled: list[str] = []

    def resolved(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        asked.append(host)
        ip = "93.184.215.14" if host == "allowed.example" else host
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    async with canary() as bird:
        bird.serve("/a", BODY)

        async def dial(self: Any, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
            dialled.append(host)
            return await connect(self, "127.0.0.1", bird.port, *args, **kwargs)

        connect = AnyIOBackend.connect_tcp
        monkeypatch.setattr(AnyIOBackend, "connect_tcp", dial)
        assert await fetcher("allowed.example").fetch("http://Allowed.Example/a") == BODY
        assert bird.hosts == ["allowed.example"]
    assert asked.count("allowed.example") == 1
    assert dialled == ["93.184.215.14"]


async def test_a_named_host_is_fetched_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with canary() as bird:
        what = fetcher(f"127.0.0.1:{bird.port}")
        assert await what.fetch(bird.serve("/a", BODY)) == BODY
        assert bird.hosts == [f"127.0.0.1:{bird.port}"]


async def test_redirects_are_followed_within_the_list_and_only_so_far() -> None:
    async with canary() as bird:
        what = fetcher(f"127.0.0.1:{bird.port}")
        bird.serve("/end", BODY)
        bird.redirect("/3", "/end")
        bird.redirect("/2", bird.origin + "/3")
        bird.redirect("/1", "/2")
        assert await what.fetch(bird.redirect("/one", "/end")) == BODY
        assert await what.fetch(bird.origin + "/1") == BODY
        assert "redirects" in await refused(what, bird.redirect("/0", "/1"))


@pytest.mark.parametrize(
    "location",
    [
        "http://localhost:{port}/end",
        "http://127.0.0.1:{other}/end",
        "//[::1]:{other}/end",
        "file:///etc/passwd",
        "http://169.254.169.254/latest/",
        "http://u:p@127.0.0.1:{port}/end",
        "https://127.0.0.1/end",
    ],
)
async def test_a_redirect_out_of_the_list_is_refused_without_a_connection(location: str) -> None:
    async with canary() as bird, canary() as other:
        start = bird.redirect("/start", location.format(port=bird.port, other=other.port))
        await refused(fetcher(f"127.0.0.1:{bird.port}"), start)
        assert bird.requests == ["/start"]
        assert other.connections == 0


async def test_what_never_comes_is_given_up() -> None:
    async with canary() as bird:
        what = fetcher(f"127.0.0.1:{bird.port}", timeout_s=0.2)
        await refused(what, bird.origin + "/slow", ImageUnreachable)


async def test_what_never_ends_is_cut_at_the_limit() -> None:
    async with canary() as bird:
        what = fetcher(f"127.0.0.1:{bird.port}")
        await refused(what, bird.origin + "/endless", ImageTooLarge)
        await refused(what, bird.serve("/large", bytes(100_001)), ImageTooLarge)
        assert await what.fetch(bird.serve("/fits", bytes(100_000))) == bytes(100_000)


async def test_other_answers_are_no_picture() -> None:
    async with canary() as bird:
        what = fetcher(f"127.0.0.1:{bird.port}")
        assert "404" in await refused(what, bird.serve("/a", b"", status="404 Not Found"), ImageUnreachable)
        await refused(what, bird.serve("/b", BODY, "content-encoding: gzip"), ImageUnreachable)
        bird.answers["/c"] = b"no HTTP at all\r\n\r\n"
        await refused(what, bird.origin + "/c", ImageUnreachable)
        bird.answers["/d"] = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"
        await refused(what, bird.origin + "/d", ImageUnreachable)
        port = bird.port
    await refused(fetcher(f"127.0.0.1:{port}"), f"http://127.0.0.1:{port}/a", ImageUnreachable)


async def test_a_cancelled_fetch_hangs_up() -> None:
    async with canary() as bird:
        task = asyncio.create_task(fetcher(f"127.0.0.1:{bird.port}").fetch(bird.origin + "/slow"))
        async with asyncio.timeout(10):
            while not bird.requests:
                await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:4700:4700::1111", True),
        ("::ffff:93.184.215.14", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::a9fe:a9fe", False),
    ],
)
def test_public_is_what_the_open_internet_reaches(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public
