"""OpenVINO's trial at load: it must give the same vectors, or in int8 the same neighbours, in less time.

In fp32 torch stays where OpenVINO fails. int8 was asked for by name, so that nothing takes its place: a model that
loses its neighbours is refused, and one that is merely slower says so. The texts are those that every Python carries,
the language reference behind `help()`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.devices.base import Device
from runtime.errors import UnsupportedModel
from runtime.models.base import Execution
from runtime.models.exactness import Checkable, exactness_problem
from runtime.work import Job, Prepared, Row, Task

log = logging.getLogger(__name__)

OPENVINO: Final = "openvino-buckets"
ACTIVATION_GROUPS = (64, 32)
"""Tried in turn in int8. For all-MiniLM-L6-v2, 64 is 15 % faster in batches and costs 0.004 of recall."""
NEIGHBOURS = 10
CORPUS_TEXTS = 300
CORPUS_TOKENS = 48
"""Texts are cut there: longer ones cost time and say the same."""
LEAST_WORDS = 8
QUERY = "how can a class change the way its instances are compared"
MEASURE_S = 1.0
LEAST_TURNS = 3
"""Each workload runs so long and so often at least. The best run counts, as others may use the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What is asked of OpenVINO."""

    recall: float = 0.97
    """In int8: least recall@10 of the neighbours that the exact vectors have."""
    speedup: float = 1.0
    """Least speed relative to torch, for a query and for a batch."""


class Compilable(Checkable, Protocol):
    """A model that torch runs and OpenVINO may."""

    @property
    def window_tokens(self) -> int | None:
        """The attention window of local layers, when the architecture has one."""

    def compile(self, activation_group: int | None = None) -> None:
        """Make the layout OPENVINO available; in 8 bits with groups of so many activations. Raises where it can't."""


def try_exact(model: Compilable, device: Device, demands: Demands, torch_reason: str) -> str:
    """Leave `model` on OpenVINO if its vectors are the reference's and it is fast enough, else as it is.

    The reason is returned for the log and `/models`. `torch_reason`: why torch's layout is the one it has.
    """
    torch_layout = model.execution
    problem = _compile_problem(model) or exactness_problem(model, OPENVINO, model.window_tokens)
    if problem is None:
        speedups = measure_speedups(model, device, torch_layout, OPENVINO)
        if speedups.least >= demands.speedup:
            model.use(OPENVINO)
            return f"{OPENVINO}: equal to the reference; {speedups} ({torch_layout})"
        problem = str(speedups)
    model.use(torch_layout)
    log.warning("OpenVINO passed over: %s", problem)
    return f"{OPENVINO}: {problem}; {torch_reason}"


def try_quantized(model: Compilable, device: Device, demands: Demands) -> str:
    """Leave `model` on OpenVINO in int8; the reason is returned for the log and `/models`.

    Raises UnsupportedModel where it can't be compiled or finds too few of the neighbours that the exact vectors have.
    """
    torch_layout = model.execution
    expected = corpus_vectors(model, device)
    best = 0.0
    for group in ACTIVATION_GROUPS:
        found = _quantized_recall(model, device, group, expected)
        best = max(best, found)
        if found >= demands.recall:
            break
    else:
        raise UnsupportedModel(
            f"quantize: int8 keeps {best:.3f} of the ten nearest neighbours (recall@10 against fp32);"
            f" {demands.recall} are needed"
        )
    speedups = measure_speedups(model, device, torch_layout, OPENVINO)
    if speedups.least < demands.speedup:
        log.warning("int8 was asked for and is used, but not faster: %s", speedups)
    model.use(OPENVINO)
    return f"{OPENVINO} in int8: recall@10 {found:.3f} against fp32; {speedups} ({torch_layout})"


def _quantized_recall(model: Compilable, device: Device, group: int, expected: Sequence[Row]) -> float:
    problem = _compile_problem(model, group)
    if problem is not None:
        raise UnsupportedModel(f"quantize: int8: {problem}")
    model.use(OPENVINO)
    return recall(corpus_vectors(model, device), expected)


def _compile_problem(model: Compilable, activation_group: int | None = None) -> str | None:
    try:
        model.compile(activation_group)
    except Exception as error:
        detail = error.message if isinstance(error, UnsupportedModel) else type(error).__name__
        return f"can't be compiled: {detail}"
    return None


@dataclass(frozen=True, slots=True)
class Speedups:
    """How many times as fast as torch."""

    query: float
    batch: float

    @property
    def least(self) -> float:
        """The worse of the two."""
        return min(self.query, self.batch)

    def __str__(self) -> str:
        return f"{self.query:.2f} times torch's speed for a query, {self.batch:.2f} for a mixed batch"


@cache
def corpus() -> tuple[str, ...]:
    """CORPUS_TEXTS different paragraphs, in alphabetical order."""
    from pydoc_data.topics import topics

    paragraphs = {" ".join(part.split()) for text in topics.values() for part in text.split("\n\n")}
    long_enough = sorted(paragraph for paragraph in paragraphs if len(paragraph.split()) >= LEAST_WORDS)
    return tuple(long_enough[:: max(1, len(long_enough) // CORPUS_TEXTS)][:CORPUS_TEXTS])


def corpus_vectors(model: Checkable, device: Device) -> list[Row]:
    """The vectors of the corpus in the layout that `model` is in."""
    items = model.prepare(_job(corpus(), max_tokens=CORPUS_TOKENS))
    size = max(1, device.default_batch_tokens // CORPUS_TOKENS)
    rows: list[Row] = []
    for start in range(0, len(items), size):
        with device.working(alone=False):
            rows += model.launch(items[start : start + size]).land()
    return rows


def recall(rows: Sequence[Row], expected: Sequence[Row]) -> float:
    """recall@10: which part of each vector's ten nearest others, by cosine, are those that it is expected to have.

    0 where either has numbers that are not finite.
    """
    if not all(np.isfinite(row).all() for row in (*rows, *expected)):
        return 0.0
    found, wanted = _neighbours(rows), _neighbours(expected)
    shared = [len(set(ours) & set(theirs)) for ours, theirs in zip(found.tolist(), wanted.tolist(), strict=True)]
    return sum(shared) / wanted.size


def _neighbours(rows: Sequence[Row]) -> NDArray[np.intp]:
    """`(texts, 10)` indices of the nearest others."""
    vectors = np.stack(rows).astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    return np.argsort(-likeness, axis=1, kind="stable")[:, :NEIGHBOURS]


def measure_speedups(model: Checkable, device: Device, exact: Execution, other: Execution) -> Speedups:
    """Time both layouts in turns, some 2 s; on one thread, since several depend on who else uses the machine."""
    query = model.prepare(_job([QUERY]))
    batch = _mixed_batch(model, device.default_batch_tokens)

    def measure() -> Speedups:
        return Speedups(
            query=_speedup(model, device, (exact, other), query), batch=_speedup(model, device, (exact, other), batch)
        )

    # Like a lane's, the thread gives way to others: OpenVINO's own threads do, and torch must not win by that.
    with ThreadPoolExecutor(1, initializer=device.enter_lane, initargs=(False,)) as lane:
        return lane.submit(measure).result()


def _mixed_batch(model: Checkable, max_tokens: int) -> list[Prepared]:
    """A batch of a lane's size in texts of all lengths."""
    items: list[Prepared] = []
    for item in model.prepare(_job(corpus()[::7], max_tokens=max_tokens // 2)):
        if sum(taken.tokens for taken in items) + item.tokens > max_tokens:
            break
        items.append(item)
    return items


def _speedup(
    model: Checkable, device: Device, layouts: tuple[Execution, Execution], items: Sequence[Prepared]
) -> float:
    """The first layout's time for `items` in the second's."""
    for layout in layouts:  # the first run also pays for memory and kernels
        _time_s(model, device, layout, items)
    turns: list[tuple[float, float]] = []
    end_s = time.perf_counter() + MEASURE_S
    while len(turns) < LEAST_TURNS or time.perf_counter() < end_s:
        turns.append((_time_s(model, device, layouts[0], items), _time_s(model, device, layouts[1], items)))
    return min(first for first, _ in turns) / min(second for _, second in turns)


def _time_s(model: Checkable, device: Device, layout: Execution, items: Sequence[Prepared]) -> float:
    model.use(layout)
    started_s = time.perf_counter()
    with device.working(alone=False):
        model.launch(items).land()
    return time.perf_counter() - started_s


def _job(texts: Sequence[str], max_tokens: int | None = None) -> Job:
    return Job(id="trial", model="", task=Task.EMBED, inputs=texts, max_tokens=max_tokens)
