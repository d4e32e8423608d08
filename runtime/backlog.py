"""What waits in the queues of all workers together: which could run, and how long all of it takes.

Sums are kept up as entries come and go, and a queue is looked at again only after it changed, so a job that comes costs
the same beside one model as beside a hundred. Not thread-safe: the executor's lock guards it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runtime.entry import Entry
from runtime.scheduling import NOBODY, Crowd
from runtime.work import Choice, Lane, Waiting
from runtime.worker import Worker


@dataclass(slots=True, eq=False)
class _Place:
    """One queue lane: what was counted of it, and what the policy sees."""

    worker: Worker
    lane: Lane
    items: int = 0
    tokens: int = 0
    drain_ms: float = 0.0
    small_ms: float = 0.0
    patient_ms: float = 0.0
    priority: int = 0
    weight: float = 0.0
    """0: it is in no crowd."""
    lines: list[Waiting] = field(default_factory=list)


@dataclass(slots=True)
class _Sums:
    """The places of one lane, by model, and what they come to."""

    places: dict[str, _Place] = field(default_factory=dict)
    items: int = 0
    tokens: int = 0
    drain_ms: float = 0.0
    small_ms: float = 0.0
    patient_ms: float = 0.0
    crowds: dict[int, Crowd] = field(default_factory=dict)
    """By priority number."""

    def count(self, place: _Place) -> None:
        """Put what waits there now in place of what was counted before."""
        lane, cost, queue = place.lane, place.worker.cost, place.worker.queue
        items, tokens = queue.items(lane), queue.tokens(lane)
        drain_ms = cost.drain_ms(tokens, place.worker.batch_tokens)
        small_ms = cost.ms_per_token * queue.tokens(lane, small=True)
        patient_ms = cost.ms_per_token * queue.patient_tokens(lane)
        self.items += items - place.items
        self.tokens += tokens - place.tokens
        # An empty lane's sums are zero, and not what rounding has left of them.
        self.drain_ms = self.drain_ms + drain_ms - place.drain_ms if self.items else 0.0
        self.small_ms = self.small_ms + small_ms - place.small_ms if self.items else 0.0
        self.patient_ms = self.patient_ms + patient_ms - place.patient_ms if self.items else 0.0
        if bool(items) != bool(place.weight):
            self._crowd(place)
        place.items, place.tokens = items, tokens
        place.drain_ms, place.small_ms, place.patient_ms = drain_ms, small_ms, patient_ms

    def _crowd(self, place: _Place) -> None:
        """A place that was empty joins the crowd of its priority, or leaves it."""
        spec, sign = place.worker.spec, -1 if place.weight else 1
        if not place.weight:
            place.priority, place.weight = spec.priority, spec.weight
        models, weights = self.crowds.pop(place.priority, NOBODY)
        if models + sign:
            self.crowds[place.priority] = Crowd(models + sign, weights + sign * place.weight)
        if sign < 0:
            place.weight = 0.0


class Backlog:
    """The queues that hold something."""

    def __init__(self) -> None:
        self._lanes = {lane: _Sums() for lane in Lane}
        self._changed: set[_Place] = set()
        """Those to look at before the next choice."""
        self._expires_s = math.inf
        """No deadline of an entry in front is earlier."""

    def push(self, worker: Worker, lane: Lane, entries: Sequence[Entry]) -> None:
        """Append all of a Job's entries to its model's queue."""
        worker.queue.push(lane, entries)
        places = self._lanes[lane].places
        place = places.get(worker.spec.id)
        if place is None:
            place = places[worker.spec.id] = _Place(worker, lane)
        place.worker = worker
        self._count(place)

    def take(self, choice: Choice, max_tokens: int, done_s: float) -> list[Entry]:
        """See BatchQueue.take."""
        place = self._lanes[choice.lane].places[choice.model]
        entries = place.worker.queue.take(choice.lane, max_tokens, choice.small, done_s)
        self._count(place)
        return entries

    def drop(self, worker: Worker, lane: Lane, entries: Iterable[Entry]) -> int:
        """See BatchQueue.drop."""
        dropped = worker.queue.drop(lane, entries)
        if dropped:
            self._count(self._lanes[lane].places[worker.spec.id])
        return dropped

    def waiting(self, now_s: float) -> list[Waiting]:
        """What the policy may see; queues that ran empty, and entries whose deadline has passed, leave here."""
        if now_s >= self._expires_s:
            self._expires_s = math.inf
            self._changed.update(place for sums in self._lanes.values() for place in sums.places.values())
        while self._changed:
            self._look(self._changed.pop(), now_s)
        return [line for sums in self._lanes.values() for place in sums.places.values() for line in place.lines]

    def worker(self, choice: Choice) -> Worker:
        """Whose queue was chosen."""
        return self._lanes[choice.lane].places[choice.model].worker

    def drain_ms(self, lane: Lane) -> float:
        """Predicted device time of all that waits in `lane`."""
        return self._lanes[lane].drain_ms

    def before_ms(self, lane: Lane, worker: Worker, tenant: str, tokens: int) -> tuple[float, float]:
        """Predicted device time of what waits in `lane` and runs before so many more tokens of `tenant` have run.

        Of the worker's own work, and of all the other models'.
        """
        sums = self._lanes[lane]
        place = sums.places.get(worker.spec.id)
        if place is None:
            return 0.0, sums.drain_ms
        before = worker.queue.tokens_before(lane, tenant, tokens)
        # Mostly there is one tenant, and all of it has been predicted.
        own_ms = place.drain_ms if before == place.tokens else worker.cost.drain_ms(before, worker.batch_tokens)
        return own_ms, sums.drain_ms - place.drain_ms

    def others(self, lane: Lane, worker: Worker) -> Mapping[int, Crowd]:
        """The other models that something waits for in `lane`, by their priority number."""
        sums = self._lanes[lane]
        place = sums.places.get(worker.spec.id)
        if place is None or not place.weight:
            return sums.crowds
        models, weights = sums.crowds[place.priority]
        return {**sums.crowds, place.priority: Crowd(models - 1, weights - place.weight)}

    def small_ms(self, lane: Lane) -> float:
        """Predicted device time of the small inputs that wait in `lane`, as parts of some batch."""
        return self._lanes[lane].small_ms

    def patient_ms(self, lane: Lane) -> float:
        """Predicted device time of the inputs that wait in `lane` without a deadline, as parts of some batch."""
        return self._lanes[lane].patient_ms

    @property
    def tokens(self) -> int:
        """Tokens that wait."""
        return sum(sums.tokens for sums in self._lanes.values())

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        return not any(sums.items for sums in self._lanes.values())

    @property
    def is_contended(self) -> bool:
        """Something waits in either lane."""
        return all(sums.items for sums in self._lanes.values())

    def _count(self, place: _Place) -> None:
        self._lanes[place.lane].count(place)
        self._changed.add(place)

    def _look(self, place: _Place, now_s: float) -> None:
        """See who stands in front of a queue."""
        worker, lane, sums = place.worker, place.lane, self._lanes[place.lane]
        place.lines = []
        for small in (True, False):
            front = worker.queue.front(lane, small, now_s)
            if front is not None:
                place.lines.append(_as_waiting(worker, lane, small, front))
                self._expires_s = min(self._expires_s, front.deadline_s)
        if worker.queue.items(lane) != place.items:  # some came too late
            sums.count(place)
        if not place.items:
            del sums.places[worker.spec.id]


def _as_waiting(worker: Worker, lane: Lane, small: bool, front: Entry) -> Waiting:
    return Waiting(
        model=worker.spec.id,
        lane=lane,
        items=worker.queue.items(lane, small),
        tokens=worker.queue.tokens(lane, small),
        first_tokens=front.prepared.tokens,
        due_s=front.due_s,
        budget_tokens=worker.batch_tokens,
        small=small,
        queued_s=front.queued_s,
    )
