"""Pictures of a million blocks, which would keep Pillow busy for half a minute, are refused by their skeleton."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from runtime.errors import InvalidImage, UnsupportedImage
from runtime.picture_structure import (
    MAX_GIF_BLOCKS,
    MAX_JPEG_EXIF_SEGMENTS,
    MAX_JPEG_SCANS,
    MAX_JPEG_SEGMENTS,
    MAX_PNG_CHUNKS,
    MAX_PNG_EXTRA_CHUNKS,
    MAX_TIFF_VALUES,
    check_structure,
)
from runtime.pictures import PictureLimits, decode, inspect

LIMITS = PictureLimits(max_pixels=40_000_000, max_bytes=20 * 2**20)
EXIF = b"\xff\xe1" + struct.pack(">H", 12) + b"Exif\0\0" + bytes(4)


def encoded(kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_with(extra: int, kind: bytes = b"prVt", *, before: bool = True) -> bytes:
    data = encoded("PNG")
    at = data.index(b"IDAT" if before else b"IEND") - 4
    return data[:at] + chunk(kind) * extra + data[at:]


def jpeg_with(segments: bytes) -> bytes:
    data = encoded("JPEG")
    return data[:2] + segments + data[2:]


def gif_with(extension: bytes) -> bytes:
    data = encoded("GIF")
    at = 13 + 3 * 256
    return data[:at] + extension + data[at:]


def tiff_with(*entries: tuple[int, int, int, int]) -> bytes:
    """A little-endian TIFF of these entries: tag, type, count, value or place."""
    ifd = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<I", 8) + ifd + bytes(400)


REFUSED: dict[str, Callable[[], bytes]] = {
    "png chunks before": lambda: png_with(MAX_PNG_EXTRA_CHUNKS),
    "png chunks after": lambda: png_with(MAX_PNG_EXTRA_CHUNKS, before=False),
    "png pixel chunks": lambda: png_with(MAX_PNG_CHUNKS, b"IDAT"),
    "jpeg comments": lambda: jpeg_with(b"\xff\xfe\x00\x02" * (MAX_JPEG_SEGMENTS + 1)),
    "jpeg fill bytes": lambda: jpeg_with(b"\xff" * (MAX_JPEG_SEGMENTS + 1)),
    "jpeg exif": lambda: jpeg_with(EXIF * (MAX_JPEG_EXIF_SEGMENTS + 1)),
    "jpeg scans": lambda: encoded("JPEG") + b"\xff\xda\x00\x02" * MAX_JPEG_SCANS,
    "gif extensions": lambda: gif_with(b"!\xf0\x01a\x00" * MAX_GIF_BLOCKS),
    "gif sub-blocks": lambda: gif_with(b"!\xf0" + b"\x01a" * MAX_GIF_BLOCKS + b"\x00"),
    "gif bytes of no block": lambda: gif_with(b"\x00" * (MAX_GIF_BLOCKS + 1)),
    "tiff strips": lambda: tiff_with((256, 4, 1, 9), (257, 4, 1, 9), (273, 4, MAX_TIFF_VALUES + 1, 200)),
    "tiff strips as bytes": lambda: tiff_with((256, 4, 1, 9), (257, 4, 1, 9), (273, 1, MAX_TIFF_VALUES + 1, 200)),
    "tiff values": lambda: tiff_with((256, 4, 1, 9), (274, 3, MAX_TIFF_VALUES + 1, 200)),
    "tiff tiles": lambda: tiff_with((256, 4, 1, 100), (257, 4, 1, 100), (322, 4, 1, 30_000), (323, 4, 1, 30_000)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_more_blocks_than_a_real_picture_has_are_refused(name: str) -> None:
    with pytest.raises(InvalidImage) as caught:
        inspect(REFUSED[name](), LIMITS)
    assert "damaged" not in caught.value.message


def test_big_tiff_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedImage, match="BigTIFF"):
        check_structure(b"II" + struct.pack("<HHHQ", 43, 8, 0, 16))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {"compress_level": 0}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": EXIF[4:], "comment": b"made by a camera", "icc_profile": bytes(200_000)}),
        ("GIF", {"comment": b"x" * 60_000}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw", "tiffinfo": {278: 1}}),
        ("TIFF", {"big_endian": True}),
        ("WEBP", {}),
        ("BMP", {}),
    ],
)
def test_real_pictures_pass(kind: str, options: dict[str, object]) -> None:
    assert decode(inspect(encoded(kind, **options), LIMITS)).size == (64, 64)


@pytest.mark.parametrize("signature", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"GIF89a", b"II*\x00", b"MM\x00*"])
@pytest.mark.parametrize("length", range(0, 40, 3))
def test_what_is_cut_off_anywhere_ends_the_walk(signature: bytes, length: int) -> None:
    check_structure(signature + bytes(range(length)))
