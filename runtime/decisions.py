"""The record of decisions about memory and queues: kept, counted and logged, each with its reason."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Literal

from runtime.metering import Metering

log = logging.getLogger(__name__)

DECISIONS_KEPT = 1_000

Question = Literal["load", "batch", "wait", "out_of_memory"]
"""May this model load? How large may its batches be? May this request wait? What now, after an out-of-memory?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One verdict. `asked` and `free` are bytes of a load, tokens of a batch, milliseconds of a wait."""

    model: str
    question: Question
    asked: float
    free: float
    verdict: str
    reason: str
    evicted: tuple[str, ...] = ()
    at_unix_s: float = field(default_factory=time.time)
    times: int = 1
    """How often the same was decided in a row; `at_unix_s` is the latest."""


class Record:
    """The latest decisions, oldest first. Thread-safe."""

    def __init__(self, metering: Metering) -> None:
        self.latest: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._metering = metering
        self._lock = threading.Lock()

    def add(self, decision: Decision) -> None:
        """Keep, count and log one decision."""
        with self._lock:
            # A storm of refused requests may not push everything else out of the record.
            last = self.latest[-1] if self.latest else None
            if last is not None and decision.verdict == "refused" and _kind(last) == _kind(decision):
                self.latest[-1] = replace(decision, times=last.times + 1)
            else:
                self.latest.append(decision)
        self._metering.observe_decision(decision.model, decision.verdict, decision.reason)
        for name in decision.evicted:
            self._metering.observe_decision(name, "evicted", decision.question)
        log.log(
            logging.DEBUG if decision.question == "wait" else logging.INFO,
            "%s of %s: %s (%s), asked %.0f, free %.0f%s",
            decision.question,
            decision.model,
            decision.verdict,
            decision.reason,
            decision.asked,
            decision.free,
            f", evicted {', '.join(decision.evicted)}" if decision.evicted else "",
        )


def _kind(decision: Decision) -> tuple[str, str, str, str]:
    return decision.model, decision.question, decision.verdict, decision.reason
