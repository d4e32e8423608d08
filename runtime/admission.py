"""The door to memory and to the queues: what may load, what may wait, each verdict with its reason, on record.

Knows no torch and no thread; called from the loader, the lanes and the event loop, so a lock guards the books.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from runtime.devices.base import Memory
from runtime.errors import DoesNotFit, NoRoomNow, QueueFull
from runtime.eviction import Candidate, victims, wait_for_room_s
from runtime.ledger import Ledger
from runtime.metering import Metering
from runtime.work import Footprint, Lane

log = logging.getLogger(__name__)

DECISIONS_KEPT = 1_000
DEFAULT_SHARE_OF_MEMORY = 0.90
DEVICE_FULL_RETRY_S = 5.0
"""Nobody knows when another process will free its memory."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The ledger by kind, bytes."""

    limit_bytes: int
    base_bytes: int
    weight_bytes: int
    graph_bytes: int
    workspace_bytes: int
    used_bytes: int


def memory_limit_bytes(budget_bytes: int | None, memory: Memory) -> int:
    """Most bytes that may be booked on a device: what the registry says, or else 90 % of its memory."""
    return budget_bytes or int(memory.total_bytes * DEFAULT_SHARE_OF_MEMORY)


class Admission:
    """Decides what becomes resident and what may queue."""

    def __init__(self, limit_bytes: int, base_bytes: int, lanes: int, metering: Metering) -> None:
        self.ledger = Ledger(limit_bytes=limit_bytes, base_bytes=base_bytes, lanes=lanes)
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._metering = metering
        self._resident: dict[str, Footprint] = {}
        self._lock = threading.Lock()

    @property
    def limit_bytes(self) -> int:
        """Most bytes that may be booked."""
        return self.ledger.limit_bytes

    # -- may this model load? -----------------------------------------------------------------------------------

    def reserve(
        self, model: str, footprint: Footprint, candidates: Sequence[Candidate] = (), evict: bool = True
    ) -> list[str]:
        """Book `footprint` for `model` before it is loaded; the models that must leave first, off the books already.

        Batch budgets shrink before anybody is evicted. `candidates`: residents that aren't pinned. `evict` False: none
        of them need leave for this. Raises DoesNotFit with needed and free bytes when not even all their leaving would
        do, NoRoomNow when it would but some must stay for now. Nobody is disturbed by a refusal.
        """
        with self._lock:
            before = dict(self._resident)
            others = {name: held for name, held in before.items() if name != model}

            def fits(gone: frozenset[str]) -> bool:
                staying = {name: held for name, held in others.items() if name not in gone}
                return self.ledger.fits({**staying, model: footprint})

            if fits(frozenset()):
                leaving: list[str] | None = []
            else:
                leaving = victims(candidates, fits) if evict else None
            wait_s = wait_for_room_s(candidates, fits) if leaving is None else None
            free = self.limit_bytes - self.ledger.least_bytes(others)
            needed = self.ledger.least_bytes({**others, model: footprint}) - (self.limit_bytes - free)
            if leaving is not None:
                for name in (model, *leaving):
                    self._resident.pop(name, None)
                self._resident[model] = footprint
            after = dict(self._resident)
        if leaving is None:
            self._refuse(model, needed, free, wait_s)
        reason = "evicting" if leaving else "fits"
        self.record(
            Decision(
                model=model,
                question="load",
                asked=needed,
                free=free,
                verdict="admitted",
                reason=reason,
                evicted=tuple(leaving or ()),
            )
        )
        self._record_budgets(before, after)
        return leaving or []

    def bytes_short(self, model: str, memory: Memory) -> int:
        """By how much the weights of `model`, which is booked, exceed what is really free; 0: they fit."""
        with self._lock:
            needed = self._resident[model].resident_bytes
        return max(needed - self._really_free(memory), 0)

    def verify(self, model: str, memory: Memory) -> None:
        """Compare the books with what the driver says, just before `model` is loaded.

        Raises NoRoomNow, and takes `model` off the books, where its weights don't fit into what is really free.
        """
        if not self.bytes_short(model, memory):
            return
        free = self._really_free(memory)
        with self._lock:
            needed = self._resident.pop(model).resident_bytes
        self.record(
            Decision(model=model, question="load", asked=needed, free=free, verdict="refused", reason="device_full")
        )
        raise NoRoomNow(
            f"needs {needed:,} bytes; the device has {free:,} bytes free", retry_after_s=DEVICE_FULL_RETRY_S
        )

    def _really_free(self, memory: Memory) -> int:
        return max(min(memory.free_bytes, self.limit_bytes - memory.used_by_us_bytes), 0)

    def settle(self, model: str, footprint: Footprint) -> None:
        """Replace the prediction by what was measured after loading."""
        with self._lock:
            before = dict(self._resident)
            self._resident[model] = footprint
            after = dict(self._resident)
        self._record_budgets(before, after)

    def forget(self, model: str) -> None:
        """`model` left memory."""
        with self._lock:
            before = dict(self._resident)
            self._resident.pop(model, None)
            after = dict(self._resident)
        self._record_budgets(before, after)

    def _refuse(self, model: str, needed: int, free: int, wait_s: float | None) -> None:
        figures = f"needs {needed:,} bytes (weights and workspace); {max(free, 0):,} bytes are free"
        if wait_s is None:
            self.record(
                Decision(model=model, question="load", asked=needed, free=free, verdict="refused", reason="over_budget")
            )
            raise DoesNotFit(figures)
        self.record(
            Decision(model=model, question="load", asked=needed, free=free, verdict="refused", reason="no_room_now")
        )
        raise NoRoomNow(f"{figures} while other models stay", retry_after_s=max(wait_s, 1.0))

    # -- how large may a batch be? ------------------------------------------------------------------------------

    def budgets(self) -> dict[str, int]:
        """The largest batch of each resident model whose budget is elastic, in tokens."""
        with self._lock:
            return self.ledger.budgets(self._resident)

    def _record_budgets(self, before: dict[str, Footprint], after: dict[str, Footprint]) -> None:
        was, now = self.ledger.budgets(before), self.ledger.budgets(after)
        for model, tokens in now.items():
            earlier = was.get(model, after[model].budget_tokens)
            if tokens != earlier:
                verdict = "shrunk" if tokens < earlier else "grown"
                self.record(
                    Decision(
                        model=model,
                        question="batch",
                        asked=after[model].budget_tokens,
                        free=tokens,
                        verdict=verdict,
                        reason="memory",
                    )
                )

    # -- may this request wait? ---------------------------------------------------------------------------------

    def may_wait(self, model: str, lane: Lane, wait_ms: float, most_ms: float) -> None:
        """Let a job into the queue unless what is ahead of it takes longer than `most_ms`.

        The job's own size doesn't count, so one input and a list are treated alike. Raises QueueFull with the
        predicted wait.
        """
        if wait_ms <= most_ms:
            return
        self.record(
            Decision(model=model, question="wait", asked=wait_ms, free=most_ms, verdict="refused", reason="queue_full")
        )
        raise QueueFull(
            f"the {lane} queue already holds about {wait_ms / 1000:.1f} s of work",
            retry_after_s=max(1.0, (wait_ms - most_ms) / 1000.0),
        )

    # -- what now, after an out-of-memory? ----------------------------------------------------------------------

    def note_out_of_memory(self, model: str, tokens: int, leaving: Sequence[str]) -> None:
        """One input of `tokens` failed even alone; `leaving`: the idle models that make room for another try."""
        verdict, reason = ("admitted", "evicting") if leaving else ("refused", "nobody_idle")
        self._note_evicting(model, "out_of_memory", tokens, (verdict, reason), leaving)

    def note_device_full(self, model: str, short_bytes: int, leaving: Sequence[str]) -> None:
        """`model` has room in the books and lacks `short_bytes` on the device; `leaving`: who makes room for it."""
        self._note_evicting(model, "load", short_bytes, ("admitted", "evicting"), leaving)

    def _note_evicting(
        self, model: str, question: Question, asked: int, outcome: tuple[str, str], leaving: Sequence[str]
    ) -> None:
        verdict, reason = outcome
        evicted = tuple(leaving)
        self.record(
            Decision(
                model=model, question=question, asked=asked, free=0, verdict=verdict, reason=reason, evicted=evicted
            )
        )

    def most_tokens_ever(self, model: str) -> int | None:
        """The largest single input of a resident model that could run were the device its own; None: not known."""
        with self._lock:
            footprint = self._resident.get(model)
        return None if footprint is None else self.ledger.most_tokens(footprint)

    # -- what is on the books, and on record --------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Everything on the ledger."""
        with self._lock:
            return self.ledger.used_bytes(self._resident)

    def books(self) -> Books:
        """The ledger by kind."""
        with self._lock:
            resident = dict(self._resident)
        return Books(
            limit_bytes=self.ledger.limit_bytes,
            base_bytes=self.ledger.base_bytes,
            weight_bytes=sum(held.weight_bytes for held in resident.values()),
            graph_bytes=sum(held.graph_bytes for held in resident.values()),
            workspace_bytes=self.ledger.workspace_bytes(resident),
            used_bytes=self.ledger.used_bytes(resident),
        )

    def record(self, decision: Decision) -> None:
        """Keep, count and log one decision. Thread-safe."""
        with self._lock:
            # A storm of refused requests may not push everything else out of the record.
            last = self.decisions[-1] if self.decisions else None
            if last is not None and decision.verdict == "refused" and _kind(last) == _kind(decision):
                self.decisions[-1] = replace(decision, times=last.times + 1)
            else:
                self.decisions.append(decision)
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
