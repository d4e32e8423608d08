"""Six real pages of different aspect: two of a PDF, a table, a narrow receipt, and two photographs."""

from __future__ import annotations

import io
from functools import cache

import pypdfium2
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_image

from runtime.work import Picture
from tests.tiny_models.vocabularies import english_lines

QUERIES = [
    "how is a class defined",
    "how is a class defined",
    "What did the fourth quarter bring?",
    "",
    "naïve café 東京 🙂 price < 5 €",
    "which statement raises an exception when the name is not bound in any enclosing scope of the function",
]


@cache
def pages() -> tuple[Image.Image, ...]:
    """Canonical RGB. The first two share a size."""
    first, second = _pdf_pages()
    photos = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    return first, second, _table(700, 420), _receipt(120, 900), photos[0], photos[1].crop((100, 0, 527, 427))


def as_picture(page: Image.Image) -> Picture:
    """The page as a client sends it, without loss."""
    data = io.BytesIO()
    page.save(data, format="PNG")
    return Picture(data.getvalue(), page.width, page.height)


def _pdf_pages() -> list[Image.Image]:
    """Two text pages, rendered from a PDF."""
    sheets = [_text_sheet(600, 780, start) for start in (0, 60)]
    data = io.BytesIO()
    sheets[0].save(data, format="PDF", save_all=True, append_images=sheets[1:], resolution=72)
    document = pypdfium2.PdfDocument(data.getvalue())
    try:
        return [document[number].render(scale=0.75).to_pil().convert("RGB") for number in range(len(document))]
    finally:
        document.close()


def _text_sheet(width: int, height: int, start: int) -> Image.Image:
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for row, line in enumerate(english_lines()[start : start + height // 16 - 4]):
        draw.text((30, 30 + 16 * row), line[:90].encode("ascii", "replace").decode(), fill="black")
    return sheet


def _table(width: int, height: int) -> Image.Image:
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    for row in range(12):
        for column in range(5):
            box = (20 + 130 * column, 20 + 32 * row, 150 + 130 * column, 52 + 32 * row)
            draw.rectangle(box, outline="black", fill="#dde6f5" if row == 0 else None)
            draw.text((box[0] + 6, box[1] + 8), f"Q{column + 1} {17 * row * (column + 3) % 991}", fill="black")
    return sheet


def _receipt(width: int, height: int) -> Image.Image:
    sheet = Image.new("RGB", (width, height), "#fffdf3")
    draw = ImageDraw.Draw(sheet)
    for row in range(height // 20 - 2):
        draw.text((8, 16 + 20 * row), f"item {row}  {row * 1.37:.2f}", fill="#222222")
    return sheet
