"""Pictures by address, from hosts that the operator has named and from no other.

Each hop is checked anew: scheme, host and port against the list, then the address that the name resolves to. The
connection goes to that very address, so a name can't point elsewhere a moment later; `Host` and TLS keep the name.
No proxy, cookie or credential is used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import httpx2

from runtime.errors import ImageTooLarge, ImageUnreachable, ImageUrlRefused

MAX_REDIRECTS: Final = 3
MAX_ADDRESS_CHARACTERS: Final = 4096
PORTS: Final = {"http": 80, "https": 443}
NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Fetcher:
    """Fetches one picture at a time on behalf of many requests; holds no connection between them."""

    def __init__(self, hosts: Sequence[str], *, timeout_s: float, max_bytes: int) -> None:
        """`hosts`: `NAME` (the scheme's own port) or `NAME:PORT`; an IPv6 address in brackets."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def check(self, address: str) -> httpx2.URL:
        """The address as it will be asked for, if it may be. Raises ImageUrlRefused; connects to nothing."""
        if not self._hosts:
            raise ImageUrlRefused("this server fetches no pictures: send them as base64 or data URIs")
        if len(address) > MAX_ADDRESS_CHARACTERS:
            raise ImageUrlRefused(f"a picture's address is longer than {MAX_ADDRESS_CHARACTERS} characters")
        try:
            url = httpx2.URL(address.strip())
        except (httpx2.InvalidURL, UnicodeError, ValueError):
            raise ImageUrlRefused("a picture's address can't be read") from None
        return self._allowed(url)

    async def fetch(self, address: str) -> bytes:
        """What stands there. Raises ImageUrlRefused, ImageTooLarge, ImageUnreachable."""
        url = self.check(address)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url)
        except TimeoutError:
            raise ImageUnreachable(f"a picture's address did not answer within {self._timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError):
            raise ImageUnreachable("a picture's address could not be read") from None

    def _allowed(self, url: httpx2.URL) -> httpx2.URL:
        if url.scheme not in PORTS:
            raise ImageUrlRefused("a picture's address must begin with http:// or https://")
        if url.userinfo:
            raise ImageUrlRefused("a picture's address must hold no user name or password")
        host = _bracketed(url.raw_host.decode("ascii").lower())
        default = PORTS[url.scheme]
        names = {f"{host}:{url.port or default}"} | ({host} if (url.port or default) == default else set())
        if not names & self._hosts:
            raise ImageUrlRefused("a picture's host is not among those that this server may fetch from")
        return url

    async def _follow(self, url: httpx2.URL) -> bytes:
        async with httpx2.AsyncClient(
            trust_env=False, verify=self._tls, timeout=self._timeout_s, follow_redirects=False
        ) as client:
            for _ in range(MAX_REDIRECTS + 1):
                answer = await self._ask(client, url, await self._resolve(url))
                if isinstance(answer, bytes):
                    return answer
                url = self._allowed(url.join(answer))
        raise ImageUrlRefused(f"a picture's address redirects more than {MAX_REDIRECTS} times")

    async def _resolve(self, url: httpx2.URL) -> str:
        """The address to connect to. A name must not lead inside; an address that the operator wrote may."""
        host = url.raw_host.decode("ascii")
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            pass
        loop = asyncio.get_running_loop()
        port = url.port or PORTS[url.scheme]
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in found]
        if not addresses or not all(map(is_public, addresses)):
            raise ImageUrlRefused("a picture's host has an address that is not public")
        return str(addresses[0])

    async def _ask(self, client: httpx2.AsyncClient, url: httpx2.URL, address: str) -> bytes | str:
        """The body, or where a redirect leads."""
        pinned = url.copy_with(host=address)
        headers = {"host": url.netloc.decode("ascii"), "accept": "image/*", "accept-encoding": "identity"}
        extensions = {"sni_hostname": url.raw_host.decode("ascii")}
        async with client.stream("GET", pinned, headers=headers, extensions=extensions) as response:
            if response.has_redirect_location:
                return response.headers["location"]
            if response.status_code != httpx2.codes.OK:
                raise ImageUnreachable(f"a picture's address answered with status {response.status_code}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ImageUnreachable("a picture's address answered with a compressed body")
            return await self._read(response)

    async def _read(self, response: httpx2.Response) -> bytes:
        declared = response.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > self._max_bytes:
                raise self._too_large()
        return bytes(data)

    def _too_large(self) -> ImageTooLarge:
        return ImageTooLarge(f"a picture is larger than the {self._max_bytes} bytes that this server takes")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Made once: reading the machine's certificates takes milliseconds."""
        return httpx2.create_ssl_context(trust_env=False)


def is_public(address: IpAddress) -> bool:
    """Whether the address, and an IPv4 address within it, is one of the open internet (IANA's registries)."""
    inner: ipaddress.IPv4Address | None = None
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not address.is_multicast


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
