"""Who leaves when a model needs room: the least worth a byte first, and nobody who is needed now.

Value density is request rate x reload seconds / bytes: what it would cost to have the model back when it is asked for
again, over what its leaving gives. A model in use gives way only to one that is worth more, and that outbids it the
sooner the longer it was refused; an idle one gives way at once. Pure: knows no model, no thread and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DEMAND_MEMORY_S = 300.0
"""Requests count less by a factor e after so long."""
RELOADS_OF_RESIDENCE = 20.0
"""A model stays at least so many times as long as it took to load: loading never takes over 5 % of the time."""
OUTBID = 1.25
"""A newcomer must be worth so many times as much as a model in use: swaps for less would be for noise."""
RESIDENCES_TO_AGE = 15.0
"""A model that is refused gains a factor e in so many times its minimum residence, so that none starves for ever."""
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

    @property
    def latest_s(self) -> float:
        """When the latest request came."""
        return self._at_s

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
class Standing:
    """What a model has for its claim to memory. Times are seconds up to now."""

    requests_per_s: float
    """Those that were refused included."""
    reload_s: float
    resident_bytes: int
    idle_s: float = 0.0
    """Since somebody asked for it."""
    resident_s: float = 0.0
    """Since it was loaded."""
    refused_s: float = 0.0
    """Since it was first asked for in vain; infinite: an operator wants it now."""
    timed: bool = True
    """Its load was measured, and isn't a guess."""

    @property
    def value(self) -> float:
        """Its value density."""
        return value_density(self.requests_per_s, self.reload_s, self.resident_bytes)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a resident model's place is worth to it, and how long it keeps it from the newcomer."""

    value: float
    stays_s: float


Replacement = Callable[[Standing, Standing, float], Claim]
"""How a resident (the first) stands against a newcomer (the second); the third is `min_residence_s` of the registry."""


def by_value(resident: Standing, newcomer: Standing, base_s: float) -> Claim:
    """The rule that serves: minimum residence, then until it is outbid or idle for as long as that."""
    residence_s = min_residence_s(base_s, resident.reload_s)
    contest_s = min(_outbid_s(resident, newcomer, base_s), residence_s - resident.idle_s)
    return Claim(resident.value, max(residence_s - resident.resident_s, contest_s, 0.0))


def _outbid_s(resident: Standing, newcomer: Standing, base_s: float) -> float:
    """After how long `newcomer`, as it ages, is worth OUTBID times as much as `resident`."""
    # Bytes load at about one speed, so a load that was never timed is taken to be as fast as the resident's.
    per_byte_s = resident.reload_s / max(resident.resident_bytes, 1)
    bid = newcomer.value if newcomer.timed else newcomer.requests_per_s * per_byte_s
    if resident.value <= 0.0 or math.isinf(newcomer.refused_s):
        return 0.0
    if bid <= 0.0:
        return math.inf
    aging_s = RESIDENCES_TO_AGE * min_residence_s(base_s, resident.reload_s)
    return aging_s * math.log(OUTBID * resident.value / bid) - newcomer.refused_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A resident model that isn't pinned."""

    model: str
    value: float
    """Its value density."""
    busy: bool = False
    """It has work queued or in flight, or somebody waits for it."""
    stays_s: float = 0.0
    """How long it keeps its place yet, seconds."""

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
