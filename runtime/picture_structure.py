"""A picture's skeleton, walked before Pillow sees it: how many blocks it has, never what is in them.

Pillow reads headers in Python, a block at a time, and keeps what it reads: 20 MB of empty blocks cost it half a minute
or a gigabyte. Each walk here ends at its limit, far above what encoders write. What is malformed is left to Pillow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from runtime.errors import InvalidImage, UnsupportedImage

MAX_PNG_CHUNKS: Final = 20_000
MAX_PNG_EXTRA_CHUNKS: Final = 2_000
"""Those that hold no pixels."""
MAX_JPEG_SEGMENTS: Final = 2_000
MAX_JPEG_EXIF_SEGMENTS: Final = 16
MAX_JPEG_SCANS: Final = 64
"""A progressive JPEG has about ten. Each costs a pass over the whole picture, however few bytes it has."""
MAX_GIF_BLOCKS: Final = 10_000
MAX_TIFF_VALUES: Final = 65_536
"""Of one tag. A strip is an offset and a length; A4 at 600 dpi has 7,016 rows."""
MIN_TIFF_TILE_PIXELS: Final = 2**20
MAX_TIFF_TILE_SHARE: Final = 4
"""A tile may be larger than its picture, but not by more than this, as it is decoded whole."""

TIFF_BYTE_TYPES: Final = frozenset({1, 2, 7})
"""BYTE, ASCII and UNDEFINED: kept as they are, not as a list of numbers."""
TIFF_WIDTH, TIFF_HEIGHT, TIFF_TILE_WIDTH, TIFF_TILE_HEIGHT = 256, 257, 322, 323
TIFF_PLACES: Final = frozenset({273, 279, 324, 325})
"""Offsets and lengths of strips and tiles."""


def check_structure(data: bytes) -> None:
    """Raises InvalidImage where a picture has more blocks than any real one, UnsupportedImage for BigTIFF."""
    for signature, check in CHECKS:
        if data.startswith(signature):
            check(data)
            return


def _check_png(data: bytes) -> None:
    chunks = extra = 0
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        at += 12 + length
        chunks += 1
        extra += kind not in (b"IDAT", b"fdAT")
        if chunks > MAX_PNG_CHUNKS or extra > MAX_PNG_EXTRA_CHUNKS:
            raise _too_many("chunks")


def _check_jpeg(data: bytes) -> None:
    exif = 0
    for segments, (marker, at) in enumerate(_jpeg_segments(data)):
        exif += marker == 0xE1 and data.startswith(b"Exif", at + 4)
        if segments > MAX_JPEG_SEGMENTS or exif > MAX_JPEG_EXIF_SEGMENTS:
            raise _too_many("segments")
    if data.count(b"\xff\xda") > MAX_JPEG_SCANS:
        raise _too_many("scans")


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and place of each segment before the pixels; a fill byte counts as one."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xDA:
            return
        yield marker, at
        if marker == 0xFF:
            at += 1
        elif marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD9:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _check_gif(data: bytes) -> None:
    if len(data) < 13:
        return
    flags = data[10]
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    blocks = 0
    in_extension = False
    while at < len(data) and (in_extension or data[at] != 0x2C):
        # An extension is two bytes, then sub-blocks behind their lengths up to one of length 0. Any other byte
        # before the first image is skipped, as Pillow does.
        if in_extension:
            in_extension = data[at] > 0
            at += 1 + data[at]
        else:
            in_extension = data[at] == 0x21
            at += 2 if in_extension else 1
        blocks += 1
        if blocks > MAX_GIF_BLOCKS:
            raise _too_many("blocks")


def _check_tiff(data: bytes) -> None:
    order = "<" if data.startswith(b"II") else ">"
    if len(data) < 8:
        return
    version, start = struct.unpack_from(f"{order}HI", data, 2)
    if version == 43:
        raise UnsupportedImage("BigTIFF is not taken: send TIFF or PNG")
    if start + 2 > len(data):
        return
    (entries,) = struct.unpack_from(f"{order}H", data, start)
    sizes: dict[int, int] = {}
    for at in range(start + 2, min(start + 2 + 12 * entries, len(data) - 11), 12):
        tag, kind, count = struct.unpack_from(f"{order}HHI", data, at)
        if count > MAX_TIFF_VALUES and (kind not in TIFF_BYTE_TYPES or tag in TIFF_PLACES):
            raise _too_many("strips or values")
        (value,) = struct.unpack_from(f"{order}H" if kind == 3 else f"{order}I", data, at + 8)
        sizes.setdefault(tag, value)  # of two alike, Pillow reads the first
    tile = sizes.get(TIFF_TILE_WIDTH, 0) * sizes.get(TIFF_TILE_HEIGHT, 0)
    whole = sizes.get(TIFF_WIDTH, 0) * sizes.get(TIFF_HEIGHT, 0)
    if tile > max(MIN_TIFF_TILE_PIXELS, MAX_TIFF_TILE_SHARE * whole):
        raise InvalidImage("the picture's tiles are much larger than itself")


def _too_many(what: str) -> InvalidImage:
    return InvalidImage(f"the picture has more {what} than a real one")


CHECKS: Final[tuple[tuple[bytes, Callable[[bytes], None]], ...]] = (
    (b"\x89PNG\r\n\x1a\n", _check_png),
    (b"\xff\xd8", _check_jpeg),
    (b"GIF8", _check_gif),
    (b"II", _check_tiff),
    (b"MM", _check_tiff),
)
"""The formats that Pillow reads block by block; WebP's and BMP's headers are of one piece."""
