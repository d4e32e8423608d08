"""The load-time check of page-image models: a batch must give the rows that colpali-engine gives for each input alone.

A few generated pictures of different shapes and a few queries run in one batch. Where a row differs, each item gets a
forward of its own; where it differs even then, the model is refused.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw

from runtime.errors import UnsupportedModel
from runtime.models.base import Execution, Flight
from runtime.models.exactness import FP32_TOLERANCE, HALF_COSINE
from runtime.work import Input, Job, Picture, Prepared, Row, Task

log = logging.getLogger(__name__)

PROBE_SHAPES = ((320, 440), (440, 320), (320, 440))
"""Width and height in pixels; two of one shape, so that they share a forward."""
PROBE_QUERIES = ("revenue by quarter", "revenue by quarter", "which table lists the parts of the pump and their price")


class Checkable(Protocol):
    """What the check needs of the model."""

    execution: Execution

    @property
    def half(self) -> bool:
        """Whether arithmetic is in half precision."""

    def use(self, execution: Execution) -> None:
        """Switch the layout."""

    def reference_row(self, item: str | Image.Image) -> Row:
        """colpali-engine's own rows for one input."""

    def prepare(self, job: Job) -> list[Prepared]:
        """Preprocess."""

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Run one batch."""


def choose_page_execution(model: Checkable) -> str:
    """Leave `model` in the fastest layout that is exact; the reason is returned for the log and `/models`.

    Raises UnsupportedModel when no layout agrees with the reference.
    """
    pages = [probe_page(width, height) for width, height in PROBE_SHAPES]
    reference = [*map(model.reference_row, pages), *map(model.reference_row, PROBE_QUERIES)]
    inputs: list[Input] = [*map(as_picture, pages), *PROBE_QUERIES]
    job = Job(id="exactness-check", model="", task=Task.MULTI_VECTOR, inputs=inputs)
    reasons: list[str] = []
    layouts: tuple[Execution, ...] = ("equal-length", "one-by-one")
    for execution in layouts:
        model.use(execution)
        problem = _problem(model, job, reference)
        if problem is None:
            equal = f"equal to the reference on {len(pages)} pictures and {len(PROBE_QUERIES)} queries"
            return "; ".join([*reasons, f"{execution}: {equal}"])
        reasons.append(f"{execution}: {problem}")
        log.warning("layout passed over: %s", reasons[-1])
    raise UnsupportedModel("no layout gives the reference's vectors: " + "; ".join(reasons))


def probe_page(width: int, height: int) -> Image.Image:
    """A picture with something to see everywhere."""
    page = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    draw = ImageDraw.Draw(page)
    for top in range(8, height - 8, 16):
        draw.line([(8, top), (8 + (top * 37) % (width - 16), top)], fill=(top % 256, 40, 200), width=5)
    return page


def as_picture(page: Image.Image) -> Picture:
    """The page as a client sends it, without loss."""
    data = io.BytesIO()
    page.save(data, format="PNG")
    return Picture(data.getvalue(), page.width, page.height)


def _problem(model: Checkable, job: Job, reference: Sequence[Row]) -> str | None:
    try:
        rows = model.launch(model.prepare(job)).land()
    except Exception as error:
        return f"raised {type(error).__name__}"
    if [row.shape for row in rows] != [expected.shape for expected in reference]:
        return "gives other numbers of rows"
    for row, expected in zip(rows, reference, strict=True):
        if not _agrees(row, expected, model.half):
            return f"differs by {float(np.abs(row - expected).max()):.1e}"
    return None


def _agrees(row: Row, expected: Row, half: bool) -> bool:
    """Rows have length 1, so differences need no scale and the mean of products is the mean cosine."""
    if not np.isfinite(expected).all():
        return not np.isfinite(row).all()  # broken weights: each request will be told
    if half:
        lengths = np.linalg.norm(row, axis=1) * np.linalg.norm(expected, axis=1)
        return bool(((row * expected).sum(axis=1) / np.maximum(lengths, 1e-12)).mean() >= HALF_COSINE)
    return bool(np.abs(row - expected).max() <= FP32_TOLERANCE)
