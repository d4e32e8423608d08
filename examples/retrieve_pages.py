"""Find the page of a PDF that answers a question, and show where on it, against a running server.

Start one with `./scripts/serve`, then run this with the project's environment:

    "$(scripts/setup | tail -n 1)/bin/python" examples/retrieve_pages.py --query "revenue by quarter" report.pdf

Without a PDF it draws one of three pages. The server's default page model has random weights: with it, the best page is
one of chance, but every step is the same as with a trained model.
"""

import argparse
import base64
import io
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pypdfium2
from numpy.typing import NDArray
from PIL import Image, ImageDraw

PAGES = {
    "Revenue by quarter": ("Q1  12.1 million", "Q2  13.4 million", "Q3  11.9 million", "Q4  15.0 million"),
    "Parts of the pump": ("1  housing  84.00", "2  impeller  31.50", "3  seal  4.20", "4  shaft  57.00"),
    "Opening hours": ("Monday to Friday 9 to 17", "Saturday 10 to 14", "Sunday closed"),
}
RENDER_DPI = 100
INCH_POINTS = 72
"""Of a PDF."""


class Server:
    """The routes that are needed here."""

    def __init__(self, url: str, model: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=300)
        self._model = model

    def post(self, path: str, **fields: Any) -> dict[str, Any]:
        """The answer's JSON; ends the program with the server's words where it refuses."""
        try:
            response = self._client.post(path, json={"model": self._model, **fields})
        except httpx2.ConnectError:
            url = self._client.base_url
            raise SystemExit(f"no server answers at {url}: start one with ./scripts/serve") from None
        answer: dict[str, Any] = response.json()
        if response.status_code != 200:
            raise SystemExit(f"{path}: {answer['error']['message']}")
        return answer

    def embed(self, inputs: list[str], **fields: Any) -> list[dict[str, Any]]:
        """A multi-vector for each input: base64 of float32 rows, with `shape` and `dtype`."""
        items: list[dict[str, Any]] = self.post("/v1/embeddings", input=inputs, encoding_format="base64", **fields)[
            "data"
        ]
        return items


def draw_pdf() -> bytes:
    """Three pages, each a title and a few lines."""
    sheets = []
    for title, lines in PAGES.items():
        sheet = Image.new("RGB", (850, 1100), "white")
        draw = ImageDraw.Draw(sheet)
        draw.text((80, 80), title, fill="black", font_size=48)
        for number, line in enumerate(lines):
            draw.text((80, 200 + 70 * number), line, fill="black", font_size=32)
        sheets.append(sheet)
    data = io.BytesIO()
    sheets[0].save(data, format="PDF", save_all=True, append_images=sheets[1:], resolution=100)
    return data.getvalue()


def render_pages(pdf: bytes) -> list[Image.Image]:
    """Every page as a picture."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        scale = RENDER_DPI / INCH_POINTS
        return [document[number].render(scale=scale).to_pil().convert("RGB") for number in range(len(document))]
    finally:
        document.close()


def as_data_uri(page: Image.Image) -> str:
    """A page as it travels in JSON, without loss."""
    data = io.BytesIO()
    page.save(data, format="PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def heatmap(page: Image.Image, warmth: NDArray[np.float32]) -> Image.Image:
    """The page with a red veil, the denser the higher `warmth`, `(rows, columns)`, is there."""
    span = float(np.ptp(warmth)) or 1.0
    shades = ((warmth - warmth.min()) / span * 160).astype(np.uint8)
    veil = Image.fromarray(shades).resize(page.size, Image.Resampling.BILINEAR)
    return Image.composite(Image.new("RGB", page.size, "red"), page, veil)


def main() -> None:
    """Embed the pages and the question, rank the pages by MaxSim, draw where the best one answers."""
    parser = argparse.ArgumentParser(description="Find the page of a PDF that answers a question.")
    parser.add_argument("pdf", nargs="?", type=Path, help="default: one of three pages that is drawn here")
    parser.add_argument("--query", default="revenue by quarter", help="default: %(default)s")
    parser.add_argument("--url", default="http://127.0.0.1:7997", help="default: %(default)s")
    parser.add_argument("--model", default="demo/random-colpali", help="default: %(default)s")
    parser.add_argument("--heatmap", type=Path, default=Path("heatmap.png"), help="default: %(default)s")
    options = parser.parse_args()
    server = Server(options.url, options.model)

    pages = render_pages(options.pdf.read_bytes() if options.pdf else draw_pdf())
    uris = list(map(as_data_uri, pages))
    embedded = server.embed(uris, modality="image")
    [query] = server.embed([options.query], prompt_name="query")
    rows = sum(page["shape"][0] for page in embedded)
    print(f"{len(pages)} pages, {rows} rows of {query['shape'][1]} numbers")

    documents = [{**page, "id": f"page {number}"} for number, page in enumerate(embedded, start=1)]
    results = server.post("/v1/maxsim", query=query, documents=documents)["results"]
    for result in results:
        print(f"{result['relevance_score']:8.3f}  {result['id']}")

    best = results[0]["index"]
    answer = server.post("/v1/similarity_map", query=options.query, image=uris[best])
    maps = np.frombuffer(base64.b64decode(answer["maps"]), "<f4").reshape(answer["shape"])
    heatmap(pages[best], maps.max(axis=0)).save(options.heatmap)
    print(f"where page {best + 1} is like the question: {options.heatmap}")


if __name__ == "__main__":
    main()
