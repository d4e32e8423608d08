"""The memory ledger and the door to the queues: what may load, what may wait, each verdict with its reason.

The ledger keeps `base + sum of weights + lanes x max over models of the batch workspace x 1.15 <= limit`. Workspace
is the maximum, not the sum, since one lane runs one batch at a time, whoever's it is. Knows no torch and no thread;
called from the loader and the event loop, so a lock guards the sums.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from runtime.errors import DoesNotFit, QueueFull
from runtime.metering import Metering
from runtime.work import Footprint, Lane

WORKSPACE_MARGIN = 1.15
DECISIONS_KEPT = 1_000
DEFAULT_SHARE_OF_MEMORY = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One verdict. Bytes for loads, milliseconds for waits."""

    at_unix_s: float
    model: str
    question: str
    asked: float
    free: float
    verdict: str
    reason: str


class Admission:
    """Decides what becomes resident and what may queue."""

    def __init__(self, limit_bytes: int, base_bytes: int, lanes: int, metering: Metering) -> None:
        self.limit_bytes = limit_bytes
        self.base_bytes = base_bytes
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._lanes = lanes
        self._metering = metering
        self._resident: dict[str, Footprint] = {}
        self._lock = threading.Lock()

    def reserve(self, model: str, footprint: Footprint) -> None:
        """Book `footprint` for `model` before it is loaded.

        Raises DoesNotFit, naming needed and free bytes, when it can't be resident beside the others.
        """
        with self._lock:
            others = {name: held for name, held in self._resident.items() if name != model}
            free = self.limit_bytes - self._used_bytes(others)
            after = self._used_bytes({**others, model: footprint})
            fits = after <= self.limit_bytes
            if fits:
                self._resident[model] = footprint
        needed = after - (self.limit_bytes - free)
        self._record(model, "load", needed, free, "admitted" if fits else "refused", "fits" if fits else "over_budget")
        if not fits:
            raise DoesNotFit(f"needs {needed:,} bytes (weights and workspace); {max(free, 0):,} bytes are free")

    def settle(self, model: str, footprint: Footprint) -> None:
        """Replace the prediction by what was measured after loading."""
        with self._lock:
            self._resident[model] = footprint

    def forget(self, model: str) -> None:
        """`model` left memory."""
        with self._lock:
            self._resident.pop(model, None)

    def may_wait(self, model: str, lane: Lane, wait_ms: float, most_ms: float) -> None:
        """Let a job into the queue unless what is ahead of it takes longer than `most_ms`.

        The job's own size doesn't count, so one input and a list are treated alike. Raises QueueFull with the
        predicted wait.
        """
        if wait_ms <= most_ms:
            return
        self._record(model, "wait", wait_ms, most_ms, "refused", "queue_full")
        raise QueueFull(
            f"the {lane} queue already holds about {wait_ms / 1000:.1f} s of work",
            retry_after_s=max(1.0, (wait_ms - most_ms) / 1000.0),
        )

    def used_bytes(self) -> int:
        """Everything on the ledger."""
        with self._lock:
            return self._used_bytes(self._resident)

    def _used_bytes(self, resident: dict[str, Footprint]) -> int:
        weights = sum(held.weight_bytes for held in resident.values())
        workspace = max((held.activation_bytes for held in resident.values()), default=0)
        return self.base_bytes + weights + int(self._lanes * workspace * WORKSPACE_MARGIN)

    def _record(self, model: str, question: str, asked: float, free: float, verdict: str, reason: str) -> None:
        self.decisions.append(
            Decision(
                at_unix_s=time.time(),
                model=model,
                question=question,
                asked=asked,
                free=free,
                verdict=verdict,
                reason=reason,
            )
        )
        self._metering.observe_decision(model, verdict, reason)
