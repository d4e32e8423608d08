"""Pictures: encoded bytes -> a checked header (`inspect`), and that -> canonical RGB pixels (`decode`).

What a person sees is what the model gets: the EXIF orientation is applied, transparency lies on white, 16-bit
grey keeps its high byte, CMYK and palettes become RGB, an animation is its first frame. Nothing is decoded before
the header's width and height have passed the limits. Both functions may run in any thread.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image, ImageChops, ImageFile, UnidentifiedImageError

from runtime.errors import CotenantError, ImageTooLarge, InvalidImage, UnsupportedImage
from runtime.picture_structure import check_structure
from runtime.work import Picture

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")
FORMAT_WORDS: Final = "JPEG, PNG, WebP, GIF, TIFF or BMP"

MAX_ASPECT: Final = 200
"""Long side over short side. A picture beyond it has nothing to read, and Qwen's processor refuses it too."""

MAX_EXIF_BYTES: Final = 64 * 1024
"""As much as a JPEG can hold; an orientation in more than this is not looked for."""

ORIENTATION_TAG: Final = 0x0112
SIDEWAYS: Final = frozenset({5, 6, 7, 8})
"""Orientations that swap width and height."""

TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each EXIF orientation (EXIF 2.32, tag 274)."""

GREY_16: Final = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})
MODES: Final = GREY_16 | {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr"}
"""Kinds of pixels that have one meaning as RGB; 32-bit integers and floats have none."""

# Pillow warns before it refuses; a picture that it warns of is far beyond any limit here. Of damaged metadata it
# warns in words of its own making: callers' pictures don't write in this server's log.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """How large a picture may be before it is decoded."""

    max_pixels: int
    """Width times height. A decoded pixel takes 4 bytes, and 8 while transparency or 16 bits are converted."""
    max_bytes: int
    """As encoded."""


def inspect(data: bytes, limits: PictureLimits) -> Picture:
    """The picture with the size that its header claims, as it will be seen (upright); no pixel is decoded.

    Raises InvalidImage, UnsupportedImage (another format, or pixels of no known meaning), ImageTooLarge.
    """
    if not data:
        raise InvalidImage("the picture is empty")
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(f"a picture has {len(data)} bytes, this server takes at most {limits.max_bytes}")
    with _reading():
        check_structure(data)
        image = _open(data)
        width, height = image.size
        _check_shape(width, height, limits.max_pixels)
        _check_pixels(image)
        # Pillow gives a TIFF's size as it will be after turning.
        if image.format != "TIFF" and _orientation(image) in SIDEWAYS:
            width, height = height, width
    return Picture(data, width, height)


def decode(picture: Picture) -> Image.Image:
    """The picture as canonical RGB of 8 bits. Its header must have passed `inspect`.

    Raises InvalidImage where the bytes after the header are damaged or cut off.
    """
    with _reading():
        image = _open(picture.data)
        _check_pixels(image)
        image.load()
        # Read after loading: a PNG may keep it behind its pixels, and Pillow turns a TIFF by itself.
        turn = TURNS.get(_orientation(image)) if image.format != "TIFF" else None
        upright = _rgb(image) if turn is None else _rgb(image).transpose(turn)
    return upright


def _open(data: bytes) -> ImageFile.ImageFile:
    return Image.open(io.BytesIO(data), formats=FORMATS)


@contextmanager
def _reading() -> Iterator[None]:
    """Pillow's many ways to fail on hostile bytes as ours; its words may repeat the caller's bytes and stay out."""
    try:
        yield
    except CotenantError:
        raise
    except UnidentifiedImageError as error:
        raise UnsupportedImage(f"the picture is not a {FORMAT_WORDS} that can be read") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning, MemoryError) as error:
        raise ImageTooLarge("the picture has more pixels than this server takes") from error
    except Exception as error:
        raise InvalidImage("the picture is damaged or cut off") from error


def _check_shape(width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise InvalidImage("the picture has no pixels")
    if width * height > max_pixels:
        raise ImageTooLarge(f"a picture has {width} x {height} pixels, this server takes at most {max_pixels}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise InvalidImage(f"a picture of {width} x {height} pixels is too thin: at most {MAX_ASPECT} to 1")


def _check_pixels(image: ImageFile.ImageFile) -> None:
    if image.mode not in MODES:
        raise UnsupportedImage("the picture's pixels are not 1, 8 or 16-bit grey, palette, RGB or CMYK")
    if any(tile.codec_name == "bmp_rle" for tile in image.tile):
        # Pillow decodes it in Python, a pixel at a time.
        raise UnsupportedImage("run-length encoded BMP is not taken: send PNG")


def _orientation(image: ImageFile.ImageFile) -> int:
    """The EXIF orientation, 1 where there is none that can be read."""
    exif = image.info.get("exif", b"")
    if not 0 < len(exif) <= MAX_EXIF_BYTES:
        return 1
    try:
        orientation = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF: the pixels are still good
        return 1
    return orientation if isinstance(orientation, int) else 1


def _rgb(image: Image.Image) -> Image.Image:
    """RGB of 8 bits, whatever the loaded picture's mode."""
    if image.mode in GREY_16:
        return _grey_16(image)
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        # White over what is transparent, in place: half the memory of a second picture.
        seen.paste("white", mask=ImageChops.invert(seen.getchannel("A")))
        return seen.convert("RGB")
    return image.convert("RGB")


def _grey_16(image: Image.Image) -> Image.Image:
    """The high byte of each pixel, as PNG readers reduce 16 bits; the one transparent value becomes white."""
    values = np.asarray(image)
    grey = np.empty(values.shape, np.uint8)
    np.right_shift(values, 8, out=grey, casting="unsafe")
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")
