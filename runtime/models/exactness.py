"""The load-time check: a model may run packed or in buckets only if that changes no vector.

A few texts of different lengths are computed by sentence-transformers one by one and by us in one batch. The fastest
layout whose vectors agree is taken; a layout that raises or differs is passed over, with the reason on record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from runtime.devices.base import LayerSwap
from runtime.errors import UnsupportedModel
from runtime.models.base import Execution, Flight
from runtime.work import Job, Prepared, Row, Task

log = logging.getLogger(__name__)

FP32_TOLERANCE = 1e-5
"""Largest difference of unit vectors in fp32; rounding alone gives about 2e-7."""
HALF_COSINE = 0.999
"""Least cosine in half precision, where the order of additions shows."""
HALF_LOGIT_TOLERANCE = 0.03
"""Largest difference of logits in half precision, relative to the largest logit: bfloat16 keeps 3 digits."""
SWAP_SHARE = 0.25
"""Of the tolerance is what faster layers may take of it on the probes, so that other inputs keep within it."""
LONGEST_PROBE_WORDS = 1200


class Layouts(Protocol):
    """What the check needs of a model family."""

    execution: Execution

    def can_pack(self) -> str | None:
        """Why it can't take a flat row; None when it can."""

    def use(self, execution: Execution) -> None:
        """Switch the layout."""

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        """Groups of faster layers; of each group one may be put in place, the fastest first."""

    def accelerate(self, example: Sequence[Prepared]) -> str | None:
        """Record the forward for replay; what was recorded, None if nothing was."""

    def decelerate(self) -> None:
        """Replay nothing."""

    def prepare(self, job: Job) -> list[Prepared]:
        """Tokenize."""

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Run one batch."""


class Checkable(Layouts, Protocol):
    """An embedder of texts, whose probes are the texts below."""

    def reference_vectors(self, texts: Sequence[str]) -> list[Row]:
        """The reference library's vectors, one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What is computed twice."""

    job: Job
    reference: Callable[[], list[Row]]
    """The reference library's rows for the job's inputs, one by one. Called while the layout is `buckets`."""
    logits: bool = False
    """Rows are logits, whose size says nothing: they are compared with the largest of all."""


def choose_execution(model: Checkable, wanted: str, window_tokens: int | None, half: bool) -> str:
    """Leave an embedder in the fastest layout that is exact; see choose_layout."""
    texts = probe_texts(window_tokens)
    job = Job(id="exactness-check", model="", task=Task.EMBED, inputs=texts)
    return choose_layout(model, wanted, half, Probes(job=job, reference=lambda: model.reference_vectors(texts)))


def choose_layout(model: Layouts, wanted: str, half: bool, probes: Probes) -> str:
    """Leave `model` in the fastest layout that is exact; the reason is returned for the log and `/models`.

    Raises UnsupportedModel when no layout agrees with the reference.
    """
    model.use("buckets")
    rows = probes.reference()
    refuse_broken(rows)
    expected = _Expected(rows, half, probes.logits)
    count = len(probes.job.inputs)
    reasons: list[str] = []
    for execution in _candidates(model, wanted, reasons):
        model.use(execution)
        problem = _problem(model, probes.job, expected)
        if problem is None:
            kind = "inputs" if probes.logits else "texts"
            reasons.append(f"{execution}: equal to the reference on {count} {kind}")
            return "; ".join([*reasons, *_hastened(model, probes.job, expected)])
        reasons.append(f"{execution}: {problem}")
        log.warning("layout passed over: %s", reasons[-1])
    raise UnsupportedModel("no layout gives the reference's vectors: " + "; ".join(reasons))


def refuse_broken(reference: Sequence[Row]) -> None:
    """Raises UnsupportedModel where the reference itself is not finite: nothing can be told to agree with it."""
    broken = sum(not np.isfinite(row).all() for row in reference)
    if broken:
        raise UnsupportedModel(
            f"it computes NaN or infinity for {broken} of {len(reference)} usual inputs, as its own library does:"
            " its weights are broken, or its dtype can't hold its numbers (float32 can)"
        )


def swap_layers(groups: Sequence[Sequence[LayerSwap]], problem: Callable[[], str | None]) -> list[str]:
    """Leave the first of each group in place that `problem` finds no fault with; reasons for the log and `/models`."""
    return [reason for group in groups for reason in _swap_one(group, problem)]


def _swap_one(group: Sequence[LayerSwap], problem: Callable[[], str | None]) -> list[str]:
    reasons: list[str] = []
    for swap in group:
        swap.apply()
        found = problem()
        if found is None:
            return [*reasons, swap.name]
        swap.undo()
        reasons.append(f"{swap.name} not used: it {found}")
        log.info("%s", reasons[-1])
    return reasons


def exactness_problem(model: Checkable, execution: Execution, window_tokens: int | None) -> str | None:
    """How vectors in fp32 differ from the reference's in `execution`; None where they agree. It stays in force."""
    texts = probe_texts(window_tokens)
    model.use("buckets")
    reference = model.reference_vectors(texts)
    model.use(execution)
    job = Job(id="exactness-check", model="", task=Task.EMBED, inputs=texts)
    return _problem(model, job, _Expected(reference, half=False, logits=False))


def probe_texts(window_tokens: int | None) -> list[str]:
    """Texts of 1 to 200 words and one longer than the model's attention window.

    Two have one length; others, short and long, are so near each other that the bucket path pads them.
    """
    longest = min(2 * (window_tokens or 0), LONGEST_PROBE_WORDS)
    counts = [1, 8, 8, 40, 42, 44, 2, 2, 2, 2, 2, 10, 11, 200, *([longest] if longest > 200 else [])]
    return [" ".join(f"word{(7 * i + 3 * k) % 97}" for i in range(count)) for k, count in enumerate(counts)]


class _Expected:
    """The reference's rows and how near to them is near enough."""

    def __init__(
        self, rows: Sequence[Row], half: bool, logits: bool, scale: float | None = None, share: float = 1.0
    ) -> None:
        """`share`: how much of the tolerance may be taken."""
        self.rows = rows
        self._share = share
        self._half = half
        self._logits = logits
        sizes = [float(np.linalg.norm(row)) for row in rows]
        self._scale = scale if scale is not None else (max(sizes, default=0.0) if logits else 0.0)

    def part(self, which: slice) -> _Expected:
        """Those of some inputs."""
        return _Expected(self.rows[which], self._half, self._logits, self._scale)

    def stricter(self, share: float) -> _Expected:
        """The same with less tolerance."""
        return _Expected(self.rows, self._half, self._logits, self._scale, share)

    def agrees(self, row: Row, expected: Row) -> bool:
        """Whether one row is near enough."""
        if not np.isfinite(row).all():
            return False  # NaN is near nothing; what is expected is finite (refuse_broken)
        if self._half and not self._logits:
            return _cosine(row, expected) >= HALF_COSINE
        tolerance = HALF_LOGIT_TOLERANCE if self._half else FP32_TOLERANCE
        return self.difference(row, expected) <= tolerance * self._share

    def difference(self, row: Row, expected: Row) -> float:
        """Largest absolute difference, relative to the vector's length (not every model normalises)."""
        scale = max(float(np.linalg.norm(expected)), self._scale, 1e-12)
        return float(np.abs(row - expected).max()) / scale


def _candidates(model: Layouts, wanted: str, reasons: list[str]) -> list[Execution]:
    obstacle = "asked for buckets" if wanted == "buckets" else model.can_pack()
    if obstacle is None:
        return ["packed"] if wanted == "packed" else ["packed", "buckets", "equal-length"]
    reasons.append(obstacle)
    return [] if wanted == "packed" else ["buckets", "equal-length"]


def _hastened(model: Layouts, job: Job, expected: _Expected) -> list[str]:
    """Whatever makes the chosen layout faster and keeps within the tolerance."""
    strict = expected.stricter(SWAP_SHARE)
    swapped = swap_layers(model.layer_swaps(), lambda: _problem(model, job, strict))
    return [*swapped, *(_accelerated(model, job, expected) if model.execution == "packed" else [])]


def _accelerated(model: Layouts, job: Job, expected: _Expected) -> list[str]:
    """Record the forward and keep the recording if it is exact on batches of other shapes, too."""
    what = model.accelerate(model.prepare(job)[1:5])
    if what is None:
        return []
    shapes = [slice(None), slice(0, 1), slice(1, 3), slice(3, 6), slice(len(job.inputs) - 1, None)]
    for part in shapes:
        some = replace(job, inputs=job.inputs[part])
        problem = _problem(model, some, expected.part(part))
        if problem is not None:
            model.decelerate()
            log.warning("%s not used: it %s on %d inputs", what, problem, len(some.inputs))
            return [f"{what} not used: it {problem}"]
    return [what]


def _problem(model: Layouts, job: Job, expected: _Expected) -> str | None:
    try:
        rows = model.launch(model.prepare(job)).land()
    except Exception as error:
        return f"raised {type(error).__name__}"
    if [row.shape for row in rows] != [right.shape for right in expected.rows]:
        return "gives vectors of other shapes"
    for row, right in zip(rows, expected.rows, strict=True):
        if not expected.agrees(row, right):
            return f"differs by {expected.difference(row, right):.1e}"
    return None


def _cosine(row: Row, expected: Row) -> float:
    a, b = row.astype(np.float64), expected.astype(np.float64)
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
