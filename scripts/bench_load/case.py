"""One measurement to be made, and the form of what makes it."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from scripts.bench_load.corpus import Corpus
from scripts.bench_load.load import Exchange, Load
from scripts.bench_load.target import Target


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long each measurement takes: the load runs `warmup_s` before anything counts."""

    warmup_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement to be made; `dimensions` is the length of the target's vectors."""

    workload: str
    target: Target
    dimensions: int
    corpus: Corpus
    pace: Pace
    round: int


Figures = dict[str, float]
Run = Callable[[Case, Load], Coroutine[None, None, tuple[Figures, list[Exchange]]]]
