"""Pictures: encoded bytes become canonical RGB pixels."""

from __future__ import annotations

import io

from PIL import Image

from runtime.work import Picture


def decode(picture: Picture) -> Image.Image:
    """The pixels of `picture` as RGB."""
    with Image.open(io.BytesIO(picture.data)) as image:
        return image.convert("RGB")
