"""Fair turns: who has had the least of the device, by weight.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): a queue's virtual time grows by cost / weight and the least
goes first. A queue that wakes starts at the present, where the queue chosen last stood, so that idling earns no
credit.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Queue = TypeVar("Queue", bound=Hashable)


class FairTurns(Generic[Queue]):
    """The virtual times of queues that share a device."""

    def __init__(self) -> None:
        self._stands: dict[Queue, float] = {}
        self._present = 0.0

    def stand(self, queue: Queue) -> float:
        """The virtual time of a queue that waits, in what is charged; the least has had least."""
        return max(self._stands.get(queue, 0.0), self._present)

    def take(self, queue: Queue) -> None:
        """It is the turn of `queue`, which becomes the present.

        Not when its batch is charged: lanes work side by side, and the present may not pass a queue that waits.
        """
        self._present = self._stands[queue] = self.stand(queue)

    def charge(self, queue: Queue, cost: float, weight: float = 1.0) -> None:
        """`queue` has had so much: milliseconds of the device, or tokens."""
        self._stands[queue] = self._stands.get(queue, 0.0) + cost / weight
