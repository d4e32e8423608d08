"""One picture in eight encodings, and pictures that mean harm, as clients send them."""

from __future__ import annotations

import base64

import numpy as np
from PIL import Image

from tests.pages import pages
from tests.test_pictures import ORIENTATION, empty_png, encoded

WHITE = 255


def encodings() -> tuple[bytes, dict[str, bytes]]:
    """The canonical PNG of a page in grey, and the same page otherwise written. Its white is transparent in some."""
    grey = pages()[2].convert("L")
    rgb, shades = grey.convert("RGB"), np.asarray(grey)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    black = Image.fromarray(np.where(shades == WHITE, 0, shades).astype(np.uint8))
    opaque = Image.fromarray(np.where(shades == WHITE, 0, WHITE).astype(np.uint8))
    palette = Image.frombytes("P", grey.size, grey.tobytes())
    palette.putpalette([0 if shade == WHITE else shade for shade in range(256) for _ in "rgb"])
    return encoded(rgb), {
        "png": encoded(grey),
        "jpeg on its side": encoded(rgb.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=95, exif=exif),
        "palette with transparency": encoded(palette, transparency=WHITE),
        "RGBA": encoded(Image.merge("RGBA", (black, black, black, opaque))),
        "LA": encoded(Image.merge("LA", (black, opaque))),
        "16-bit grey": encoded(Image.fromarray(shades.astype(np.uint16) * 257)),
        "CMYK": encoded(rgb.convert("CMYK"), "TIFF"),
        "GIF": encoded(grey, "GIF"),
    }


def hostile() -> dict[str, str]:
    """References to pictures that are broken, tiny, thin, or larger than they look."""
    whole = encoded(pages()[4], "JPEG")
    pictures = {
        "truncated jpeg": whole[: len(whole) // 2],
        "a pixel of grey and alpha": encoded(Image.new("LA", (1, 1), (9, 9))),
        "a pixel": encoded(Image.new("RGB", (1, 1), "red")),
        "3 x 1000": encoded(Image.new("RGB", (3, 1000), "red")),
        "190 x 1": encoded(Image.new("RGB", (190, 1), "red")),
        "12,000 squared": empty_png(12_000, 12_000, rows=12_000),
        "a header of 30,000 squared": empty_png(30_000, 30_000, rows=0),
        "text": b"just words",
    }
    references = {name: "data:image/png;base64," + base64.b64encode(data).decode() for name, data in pictures.items()}
    return references | {
        "an empty data URI": "data:image/png;base64,",
        "bad base64": "data:image/png;base64,@@@@",
        "text by its media type": "data:text/plain;base64," + base64.b64encode(b"just words").decode(),
    }
