"""Fair turns: who has had the least of the device, by weight.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): a queue's virtual time grows by milliseconds / weight and the
least goes first. A queue that wakes starts at the present, where the queue chosen last stood, so that idling earns no
credit.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Queue = TypeVar("Queue", bound=Hashable)


class FairTurns(Generic[Queue]):
    """The virtual times of queues that share a device."""

    def __init__(self) -> None:
        self._virtual_ms: dict[Queue, float] = {}
        self._present_ms = 0.0

    def stand_ms(self, queue: Queue) -> float:
        """Where a queue that waits stands; the least has had least."""
        return max(self._virtual_ms.get(queue, 0.0), self._present_ms)

    def take(self, queue: Queue) -> None:
        """It is the turn of `queue`, which becomes the present.

        Not when its batch is charged: lanes work side by side, and the present may not pass a queue that waits.
        """
        self._present_ms = self._virtual_ms[queue] = self.stand_ms(queue)

    def charge(self, queue: Queue, device_ms: float, weight: float = 1.0) -> None:
        """A batch of `queue` took so long."""
        self._virtual_ms[queue] = self._virtual_ms.get(queue, 0.0) + device_ms / weight
