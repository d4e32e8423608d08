"""Pictures: what a person sees is what is decoded, and a hostile header costs nothing."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from runtime.errors import CotenantError, ImageTooLarge, InvalidImage, UnsupportedImage
from runtime.pictures import MAX_ASPECT, PictureLimits, decode, inspect

LIMITS = PictureLimits(max_pixels=40_000_000, max_bytes=20 * 2**20)
ORIENTATION = 0x0112


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def grey_picture() -> Image.Image:
    """Smooth, so that JPEG keeps it; taller than wide, so that a turn shows."""
    down, across = np.mgrid[0:60, 0:40]
    return Image.fromarray((down * 3 + across).astype(np.uint8))


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 40), np.uint8))


def pixels(data: bytes) -> NDArray[np.int16]:
    picture = inspect(data, LIMITS)
    image = decode(picture)
    assert image.mode == "RGB"
    assert image.size == (picture.width, picture.height)
    return np.asarray(image, dtype=np.int16)


CANONICAL = np.asarray(grey_picture().convert("RGB"), dtype=np.int16)


def oriented(kind: str, orientation: int = 6, **options: Any) -> bytes:
    """The picture turned on its side, with the note that says so."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(grey_picture().convert("RGB").transpose(Image.Transpose.ROTATE_90), kind, exif=exif, **options)


def with_holes(mode: str) -> bytes:
    """White where the canonical picture is made white; transparent there over black."""
    image = grey_picture().convert("RGBA")
    alpha = np.full((60, 40), 255, np.uint8)
    alpha[10:20] = 0
    image.paste("black", (0, 10, 40, 20))
    image.putalpha(Image.fromarray(alpha))
    return encoded(image.convert(mode))


def palette_with_transparency() -> bytes:
    image = Image.open(io.BytesIO(with_holes("LA")))
    indices = np.asarray(image.convert("L")).copy()
    indices[10:20] = 255  # index 255 is never used by the picture itself
    palette = Image.fromarray(indices).convert("P")
    palette.putpalette([value for grey in range(256) for value in (grey, grey, grey)])
    return encoded(palette, transparency=255)


def holed() -> NDArray[np.int16]:
    seen = CANONICAL.copy()
    seen[10:20] = 255
    return seen


ENCODINGS: dict[str, tuple[bytes, NDArray[np.int16], int]] = {
    # name: bytes, what is seen, how far a pixel may differ
    "png": (encoded(grey_picture()), CANONICAL, 0),
    "jpeg on its side": (oriented("JPEG", quality=95), CANONICAL, 6),
    "png on its side": (oriented("PNG"), CANONICAL, 0),
    "tiff on its side": (oriented("TIFF"), CANONICAL, 0),
    "webp on its side": (oriented("WEBP", lossless=True), CANONICAL, 0),
    "palette with a transparent index": (palette_with_transparency(), holed(), 0),
    "RGBA": (with_holes("RGBA"), holed(), 0),
    "LA": (with_holes("LA"), holed(), 0),
    "16-bit grey": (
        encoded(Image.fromarray(np.asarray(grey_picture()).astype(np.uint16) * 257)),
        CANONICAL,
        0,
    ),
    "16-bit grey tiff": (
        encoded(Image.fromarray(np.asarray(grey_picture()).astype(np.uint16) * 257), "TIFF"),
        CANONICAL,
        0,
    ),
    "CMYK": (encoded(grey_picture().convert("RGB").convert("CMYK"), "TIFF"), CANONICAL, 1),
    "CMYK jpeg": (encoded(grey_picture().convert("RGB").convert("CMYK"), "JPEG", quality=95), CANONICAL, 6),
    "first frame of a gif": (
        encoded(grey_picture(), "GIF", save_all=True, append_images=[Image.new("L", (40, 60), 7)]),
        CANONICAL,
        0,
    ),
    "first frame of a webp": (
        encoded(grey_picture(), "WEBP", lossless=True, save_all=True, append_images=[Image.new("L", (40, 60), 7)]),
        CANONICAL,
        0,
    ),
    "bmp": (encoded(grey_picture(), "BMP"), CANONICAL, 0),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_of_a_picture_is_seen_alike(name: str) -> None:
    data, seen, tolerance = ENCODINGS[name]
    assert np.abs(pixels(data) - seen).max() <= tolerance


def test_one_bit_is_black_and_white() -> None:
    image = grey_picture().point(lambda value: 255 * (value > 100)).convert("1")
    assert np.array_equal(pixels(encoded(image)), np.asarray(image.convert("RGB")))


def test_half_transparent_is_half_white() -> None:
    assert pixels(encoded(Image.new("RGBA", (2, 2), (0, 0, 0, 128))))[0, 0].tolist() == [127, 127, 127]


def test_a_transparent_16_bit_value_is_white() -> None:
    values = np.array([[0, 4660], [65535, 256]], np.uint16)
    png = encoded(Image.fromarray(values), transparency=4660)
    assert pixels(png)[:, :, 0].tolist() == [[0, 255], [255, 1]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_undone(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(grey_picture().convert("RGB"), exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(pixels(data), np.asarray(upright))


def empty_png(width: int, height: int, rows: int) -> bytes:
    """A PNG of black pixels of one bit, made a row at a time: small however large it claims to be."""
    deflate = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    packed = b"".join(deflate.compress(row) for _ in range(rows)) + deflate.flush()
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)),
        (b"IDAT", packed),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


REFUSED_BY_THE_HEADER: dict[str, tuple[bytes, type[CotenantError]]] = {
    "empty": (b"", InvalidImage),
    "text": (b"this is no picture", UnsupportedImage),
    "12,000 squared": (empty_png(12_000, 12_000, rows=12_000), ImageTooLarge),
    "a header of 30,000 squared": (empty_png(30_000, 30_000, rows=0), ImageTooLarge),
    "a header of 9,000 squared": (empty_png(9_000, 9_000, rows=0), ImageTooLarge),
    "no width": (empty_png(0, 10, rows=10), UnsupportedImage),
    "3 x 1000": (encoded(Image.new("RGB", (3, 1000))), InvalidImage),
    "half of a header": (encoded(grey_picture())[:20], InvalidImage),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", UnsupportedImage),
    "floats": (encoded(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), UnsupportedImage),
    "icon": (encoded(grey_picture(), "ICO"), UnsupportedImage),
}


@pytest.mark.parametrize("name", REFUSED_BY_THE_HEADER)
def test_a_hostile_picture_is_refused_by_its_header(name: str) -> None:
    data, kind = REFUSED_BY_THE_HEADER[name]
    with pytest.raises(kind) as caught:
        inspect(data, LIMITS)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    "data",
    [
        empty_png(10, 10, rows=0),
        encoded(noise())[:-200],
        encoded(grey_picture(), "JPEG")[:400],
        encoded(grey_picture(), "GIF")[:-200],
        encoded(grey_picture(), "BMP")[:-200],
        encoded(grey_picture(), "TIFF", compression="tiff_lzw")[:-900],
    ],
    ids=["no pixels", "png", "jpeg", "gif", "bmp", "tiff"],
)
def test_a_picture_that_is_cut_off_is_an_error_and_not_grey_below(data: bytes) -> None:
    with pytest.raises(InvalidImage, match="damaged or cut off"):
        decode(inspect(data, LIMITS))


def test_the_byte_limit_comes_first() -> None:
    with pytest.raises(ImageTooLarge, match="2000 bytes"):
        inspect(bytes(2000), PictureLimits(max_pixels=1, max_bytes=1999))


@pytest.mark.parametrize("size", [(1, 1), (1, MAX_ASPECT), (MAX_ASPECT, 1)])
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "1"])
def test_tiny_pictures_are_pictures(size: tuple[int, int], mode: str) -> None:
    assert pixels(encoded(Image.new(mode, size))).shape == (size[1], size[0], 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_does_not_cost_the_picture() -> None:
    data = encoded(grey_picture().convert("RGB"), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert pixels(data).shape == (60, 40, 3)
