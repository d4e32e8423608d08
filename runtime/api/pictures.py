"""Pictures of a request: `data:` URIs, bare base64 and addresses -> pictures whose header was checked.

`data:` URIs as in RFC 2397; the media type is not believed, the bytes are looked at.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pybase64

from runtime.api.edge import Edge
from runtime.api.inference import off_loop
from runtime.api.parts import Reference, Source
from runtime.api.places import Places
from runtime.errors import CotenantError, ImageTooLarge, InvalidImage
from runtime.pictures import PictureLimits, inspect
from runtime.work import Input, Picture

DATA_URI = re.compile(r"\s*data:([^,]{0,512}),", re.IGNORECASE)
ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.-]{0,31}):", re.IGNORECASE)
"""base64 has no colon, so whatever begins like this is an address of some scheme."""

URL_SAFE = str.maketrans("-_", "+/")
FETCHES_AT_ONCE = 4
"""Of one request."""


async def picture_inputs(edge: Edge, sources: Sequence[Source], places: Places) -> list[Input]:
    """The sources with every reference replaced by its picture, in order. `places`: of the sources, for errors.

    Raises InvalidImage, UnsupportedImage, ImageTooLarge, ImageUrlRefused, ImageUnreachable.
    """
    texts = {index: source.text for index, source in enumerate(sources) if isinstance(source, Reference)}
    try:
        fetched = await _fetch_all(edge, {text: index for index, text in texts.items() if is_address(text)}, places)
        size_bytes = sum(map(len, texts.values())) + sum(map(len, fetched.values()))
        return await off_loop(size_bytes, _looked_at, sources, fetched, edge.picture_limits, places)
    except CotenantError as error:
        raise places.named(error) from None


def is_address(text: str) -> bool:
    """Whether the reference is an address of any scheme and not the picture itself."""
    scheme = ADDRESS.match(text)
    return scheme is not None and scheme[1].lower() != "data"


def data_of(text: str, max_bytes: int) -> bytes:
    """The bytes in a `data:` URI or in bare base64. Raises InvalidImage, ImageTooLarge."""
    header = DATA_URI.match(text)
    if header is not None:
        *_, marker = header[1].split(";")
        if marker.strip().lower() != "base64":
            raise InvalidImage("a data URI of a picture must be base64")
    start = header.end() if header else 0
    if (len(text) - start) * 3 // 4 > 2 * max_bytes + 4:
        raise ImageTooLarge(f"a picture is larger than the {max_bytes} bytes that this server takes")
    return _decoded(text[start:])


def _decoded(payload: str) -> bytes:
    """base64 of either alphabet, with or without padding and line breaks."""
    try:
        return pybase64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        plain = "".join(payload.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=").split())
    plain = plain.translate(URL_SAFE).rstrip("=")
    try:
        return pybase64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidImage("a picture is not valid base64") from None


async def _fetch_all(edge: Edge, addresses: Mapping[str, int], places: Places) -> dict[str, bytes]:
    """Each address, of the source at its index. All of a request's pictures together may be as large as a body."""
    fetched: dict[str, bytes] = {}
    turn = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def fetch(address: str) -> None:
        async with turn:
            with _located(places, addresses[address]):
                fetched[address] = await edge.fetcher.fetch(address)
        if sum(map(len, fetched.values())) > edge.limits.max_body_bytes:
            raise ImageTooLarge("the request's pictures together are larger than a body may be")

    for address, index in addresses.items():
        with _located(places, index):
            edge.fetcher.check(address)
    tasks = [asyncio.create_task(fetch(address)) for address in addresses]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return fetched


def _looked_at(
    sources: Sequence[Source], fetched: dict[str, bytes], limits: PictureLimits, places: Places
) -> list[Input]:
    found: list[Input] = []
    for index, source in enumerate(sources):
        with _located(places, index):
            found.append(_picture(source.text, fetched, limits) if isinstance(source, Reference) else source)
    return found


def _picture(text: str, fetched: dict[str, bytes], limits: PictureLimits) -> Picture:
    data = fetched.get(text)
    return inspect(data_of(text, limits.max_bytes) if data is None else data, limits)


@contextmanager
def _located(places: Places, index: int) -> Iterator[None]:
    """Errors within are about the source at `index`."""
    try:
        yield
    except CotenantError as error:
        raise error.located(places.at(index)) from None
