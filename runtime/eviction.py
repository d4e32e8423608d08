"""Who leaves when a model needs room: the least worth a byte first, and nobody who is needed now.

Value density is request rate x reload seconds / bytes: what it would cost to have the model back when it is asked for
again, over what its leaving gives. Pure: knows no model, no thread and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DEMAND_MEMORY_S = 300.0
"""Requests count less by a factor e after so long."""
RELOADS_OF_RESIDENCE = 20.0
"""A model stays at least so many times as long as it took to load: loading never takes over 5 % of the time."""
SOON_S = 1.0
"""When to ask again for a model whose place is taken by one that is at work."""


class Demand:
    """How often a model is asked for: an exponentially fading mean of requests per second."""

    def __init__(self) -> None:
        self._count = 0.0
        self._at_s = 0.0

    def note(self, now_s: float) -> None:
        """One request came."""
        self._count = self._faded(now_s) + 1.0
        self._at_s = now_s

    def per_s(self, now_s: float) -> float:
        """Requests per second."""
        return self._faded(now_s) / DEMAND_MEMORY_S

    def _faded(self, now_s: float) -> float:
        return self._count * math.exp(-max(now_s - self._at_s, 0.0) / DEMAND_MEMORY_S)


def value_density(requests_per_s: float, reload_s: float, resident_bytes: int) -> float:
    """Expected reload seconds a second that a byte of this model's memory saves."""
    return requests_per_s * reload_s / max(resident_bytes, 1)


def min_residence_s(base_s: float, reload_s: float) -> float:
    """How long a model stays once it is loaded, so that two that don't fit together don't chase each other."""
    return max(base_s, RELOADS_OF_RESIDENCE * reload_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A resident model that isn't pinned."""

    model: str
    value: float
    """Its value density."""
    busy: bool = False
    """It has work queued or in flight, or somebody waits for it."""
    stays_s: float = 0.0
    """What is left of its minimum residence, seconds."""

    @property
    def free(self) -> bool:
        """Whether it may leave now."""
        return not self.busy and self.stays_s <= 0.0

    @property
    def wait_s(self) -> float:
        """When to look again, seconds."""
        return max(self.stays_s, SOON_S if self.busy else 0.0)


Fits = Callable[[frozenset[str]], bool]
"""Whether the newcomer fits once these have left."""


def victims(candidates: Sequence[Candidate], fits: Fits) -> list[str] | None:
    """Who has to leave, least value first; None: not even all who may leave now give enough room."""
    chosen: list[str] = []
    for candidate in sorted((each for each in candidates if each.free), key=lambda each: (each.value, each.model)):
        if fits(frozenset(chosen)):
            break
        chosen.append(candidate.model)
    if not fits(frozenset(chosen)):
        return None
    # A large one that came late may have made the leaving of smaller ones before it needless.
    for model in chosen[::-1]:
        rest = frozenset(chosen) - {model}
        if fits(rest):
            chosen.remove(model)
    return chosen


def wait_for_room_s(candidates: Sequence[Candidate], fits: Fits) -> float | None:
    """After how long enough of them may leave; None: not even all of them give enough room."""
    gone: frozenset[str] = frozenset()
    for candidate in sorted(candidates, key=lambda each: each.wait_s):
        gone |= {candidate.model}
        if fits(gone):
            return candidate.wait_s
    return None
