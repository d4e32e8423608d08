"""The load-time check of models that give multi-vectors: one batch must give each input's rows as if it were alone.

A few inputs of every kind that the model reads are computed by the reference library one by one and by us in one
batch. The fastest layout whose rows agree is taken; a model that none of them reproduces is refused.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image, ImageDraw

from runtime.devices.base import LayerSwap
from runtime.errors import UnsupportedModel
from runtime.models.base import Execution, Flight
from runtime.models.exactness import FP32_TOLERANCE, HALF_COSINE, SWAP_SHARE, refuse_broken, swap_layers
from runtime.work import Input, Job, Picture, Prepared, Row, Task

log = logging.getLogger(__name__)

PROBE_SHAPES = ((320, 440), (440, 320), (320, 440))
"""Width and height in pixels; two of one shape, so that they share a forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Inputs under one prompt, and the reference's rows for each of them alone."""

    inputs: Sequence[Input]
    prompt_name: str | None = None
    reference: Sequence[Row]


class Checkable(Protocol):
    """What the check needs of the model."""

    execution: Execution

    @property
    def half(self) -> bool:
        """Whether arithmetic is in half precision."""

    def use(self, execution: Execution) -> None:
        """Switch the layout."""

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        """Groups of faster layers; of each group one may be put in place, the fastest first."""

    def prepare(self, job: Job) -> list[Prepared]:
        """Preprocess."""

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Run one batch."""


def choose_layout(
    model: Checkable, probes: Sequence[Probe], layouts: Sequence[Execution], task: Task = Task.MULTI_VECTOR
) -> str:
    """Leave `model` in the first of `layouts` that is exact; the reason is returned for the log and `/models`.

    Raises UnsupportedModel when no layout agrees with the reference.
    """
    refuse_broken([row for probe in probes for row in probe.reference])
    count = sum(len(probe.inputs) for probe in probes)
    reasons: list[str] = []
    for execution in layouts:
        model.use(execution)
        problem = _problem(model, probes, task)
        if problem is None:
            swapped = swap_layers(model.layer_swaps(), lambda: _problem(model, probes, task, SWAP_SHARE))
            return "; ".join([*reasons, f"{execution}: equal to the reference on {count} inputs", *swapped])
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


def _problem(model: Checkable, probes: Sequence[Probe], task: Task, share: float = 1.0) -> str | None:
    """What differs by more than a share of the tolerance; None where nothing does."""
    expected = [row for probe in probes for row in probe.reference]
    try:
        items = [item for probe in probes for item in model.prepare(_job(probe, task))]
        rows = model.launch(items).land()
    except Exception as error:
        return f"raised {type(error).__name__}"
    if [row.shape for row in rows] != [row.shape for row in expected]:
        return "gives rows of other shapes"
    for row, other in zip(rows, expected, strict=True):
        if not _agrees(row, other, model.half, FP32_TOLERANCE * share):
            return f"differs by {float(np.abs(row - other).max()):.1e}"
    return None


def _job(probe: Probe, task: Task) -> Job:
    return Job(id="exactness-check", model="", task=task, inputs=probe.inputs, prompt_name=probe.prompt_name)


def _agrees(row: Row, expected: Row, half: bool, tolerance: float) -> bool:
    """By the length of the rows in fp32, by their mean cosine in half precision."""
    if not np.isfinite(row).all():
        return False  # NaN is near nothing; what is expected is finite (refuse_broken)
    lengths = np.linalg.norm(expected, axis=-1)
    if not half:
        longest = max(float(np.max(lengths, initial=0.0)), 1e-12)
        return bool(np.abs(row - expected).max(initial=0.0) <= tolerance * longest)
    products = (row * expected).sum(axis=-1) / np.maximum(lengths * np.linalg.norm(row, axis=-1), 1e-12)
    return bool(products.mean() >= HALF_COSINE)
