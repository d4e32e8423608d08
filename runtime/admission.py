"""The door to memory and to the queues: what may load, what may wait, each verdict with its reason, on record.

Knows no torch and no thread; called from the loader, the lanes and the event loop, so a lock guards the books.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from runtime.decisions import Decision, Question, Record
from runtime.devices.base import Memory
from runtime.errors import CotenantError, DoesNotFit, NoRoomNow, PinnedOut, QueueFull
from runtime.eviction import SOON_S, Candidate, victims, wait_for_room_s
from runtime.footprint import Footprint
from runtime.ledger import Books, Ledger, Resident
from runtime.metering import Metering
from runtime.work import Lane

DEVICE_FULL_RETRY_S = 5.0
"""Nobody knows when another process will free its memory."""
NOBODY: Mapping[str, str] = MappingProxyType({})


class Admission:
    """Decides what becomes resident and what may queue."""

    def __init__(self, limit_bytes: int, base_bytes: int, lanes: int, metering: Metering) -> None:
        self.ledger = Ledger(limit_bytes=limit_bytes, base_bytes=base_bytes, lanes=lanes)
        self._record = Record(metering)
        self._resident: dict[str, Footprint] = {}
        self._offloaded: dict[str, Footprint] = {}
        """What is left of models that are offloaded, or were until they returned; those that left first, first."""
        self._lock = threading.Lock()

    @property
    def limit_bytes(self) -> int:
        """Most bytes that may be booked."""
        return self.ledger.limit_bytes

    @property
    def decisions(self) -> deque[Decision]:
        """The latest, oldest first."""
        return self._record.latest

    # -- may this model load? -----------------------------------------------------------------------------------

    def reserve(
        self,
        model: str,
        footprint: Footprint,
        candidates: Sequence[Candidate] = (),
        pinned: Mapping[str, str] = NOBODY,
        evict: bool = True,
    ) -> list[str]:
        """Book `footprint` for `model` before it is loaded; the models that must leave first, off the books already.

        Batch budgets shrink before anybody is evicted. `candidates`: residents that may be asked to leave; `pinned`:
        the names, by id, of those that may not. `evict` False: nobody need leave for this. Raises DoesNotFit with
        needed and free bytes when not even everybody's leaving would do, PinnedOut when only the pinned ones are in the
        way, NoRoomNow when some must stay for now. Nobody is disturbed by a refusal.
        """
        with self._lock:
            before = self._booked()
            others = {name: held for name, held in self._resident.items() if name != model}

            def fits(gone: frozenset[str]) -> bool:
                staying = {name: held for name, held in others.items() if name not in gone}
                return self.ledger.fits({**staying, model: footprint})

            if fits(frozenset()):
                leaving: list[str] | None = []
            else:
                leaving = victims(candidates, fits) if evict else None
            if leaving is not None:
                for name in leaving:
                    del self._resident[name]
                self._resident[model] = footprint
            after = self._booked()
        if leaving is None:
            raise self._refusal(model, footprint, others, pinned, wait_for_room_s(candidates, fits))
        reason = "evicting" if leaving else "fits"
        needed, free = self._figures(model, footprint, others)
        self._record.add(
            Decision(
                model=model,
                question="load",
                asked=needed,
                free=free,
                verdict="admitted",
                reason=reason,
                evicted=tuple(leaving),
            )
        )
        self._record_budgets(before, after)
        return leaving

    def bytes_short(self, model: str, memory: Memory) -> int:
        """By how much the weights of `model`, which is booked, exceed what is really free; 0: they fit."""
        with self._lock:
            needed = self._still_needed(model)
        return max(needed - self._really_free(memory), 0)

    def verify(self, model: str, memory: Memory, retry_after_s: float = DEVICE_FULL_RETRY_S) -> None:
        """Compare the books with what the driver says, just before `model` is loaded.

        Raises NoRoomNow, and takes `model` off the books, where its weights don't fit into what is really free.
        """
        if not self.bytes_short(model, memory):
            return
        free = self._really_free(memory)
        with self._lock:
            needed = self._still_needed(model)
            del self._resident[model]
        self._record_refusal(model, needed, free, "device_full")
        raise NoRoomNow(
            f"needs {needed:,} bytes; the device has {free:,} bytes free", retry_after_s=max(retry_after_s, 1.0)
        )

    def _still_needed(self, model: str) -> int:
        """Bytes that the coming of `model` takes; of one that is offloaded a part is here."""
        return self._resident[model].resident_bytes - self._offloaded.get(model, Footprint()).resident_bytes

    def _really_free(self, memory: Memory) -> int:
        return max(min(memory.free_bytes, self.limit_bytes - memory.used_by_us_bytes), 0)

    def settle(self, model: str, footprint: Footprint) -> None:
        """Replace the prediction by what was measured after loading."""
        self._change(model, footprint)

    def forget(self, model: str) -> None:
        """`model` left memory, or did not come."""
        self._change(model, None)

    def _change(self, model: str, footprint: Footprint | None) -> None:
        with self._lock:
            before = self._booked()
            self._resident.pop(model, None)
            if footprint is not None:
                self._resident[model] = footprint
            after = self._booked()
        self._record_budgets(before, after)

    # -- what is left of those that are offloaded ---------------------------------------------------------------

    def has_room_offloaded(self, model: str, footprint: Footprint) -> bool:
        """Whether what `model`, which is leaving, keeps in the process while it is offloaded fits beside the rest."""
        with self._lock:
            left = {**self._booked(), model: Footprint(host_bytes=footprint.host_bytes)}
        return not footprint.host_bytes or self.ledger.fits(left)

    def note_offloaded(self, model: str, footprint: Footprint) -> None:
        """`model` is offloaded now: what it keeps in the process stays on the books."""
        with self._lock:
            self._offloaded.pop(model, None)
            self._offloaded[model] = Footprint(host_bytes=footprint.host_bytes)

    def note_let_go(self, model: str) -> None:
        """Nothing is left of `model`, which was offloaded."""
        with self._lock:
            self._offloaded.pop(model, None)

    def crowding(self) -> list[str]:
        """Offloaded models that have to be let go, so that what is booked beside them fits: those that left first."""
        with self._lock:
            booked, found = self._booked(), []
            for name in [name for name in self._offloaded if name not in self._resident]:
                if self.ledger.fits(booked):
                    break
                del booked[name]
                found.append(name)
        return found

    def _booked(self) -> dict[str, Footprint]:
        """Everybody who holds anything; with the lock held."""
        return {**self._offloaded, **self._resident}

    def _refusal(
        self, model: str, footprint: Footprint, others: Resident, pinned: Mapping[str, str], wait_s: float | None
    ) -> CotenantError:
        """Why there is no room, with the figures of who stays: the others for now, or the pinned, or nobody."""
        built_in = {name: held for name, held in others.items() if not held.resident_bytes}
        staying = {name: held for name, held in others.items() if name in pinned}
        if wait_s is None and self.ledger.fits({**staying, model: footprint}):
            wait_s = SOON_S  # somebody is about to leave
        if wait_s is not None:
            figures = self._refused(model, self._figures(model, footprint, others), "no_room_now")
            return NoRoomNow(f"{figures} while other models stay", retry_after_s=max(wait_s, 1.0))
        if self.ledger.fits({**built_in, model: footprint}):
            figures = self._refused(model, self._figures(model, footprint, staying), "pinned_out")
            names = sorted(pinned[name] for name in staying.keys() - built_in.keys())
            return PinnedOut(f"{figures} beside what is pinned: {', '.join(names)}")
        figures = self._refused(model, self._figures(model, footprint, built_in), "over_budget")
        return DoesNotFit(f"{figures}{self.ledger.base_note}")

    def _refused(self, model: str, figures: tuple[int, int], reason: str) -> str:
        """Record it; the figures in words."""
        needed, free = figures
        self._record_refusal(model, needed, free, reason)
        return f"needs {needed:,} bytes (weights and workspace); {max(free, 0):,} bytes are free"

    def _figures(self, model: str, footprint: Footprint, staying: Resident) -> tuple[int, int]:
        """Bytes that `model` needs beside those that stay, and that are free beside them."""
        held = self.ledger.least_bytes(staying)
        return self.ledger.least_bytes({**staying, model: footprint}) - held, self.limit_bytes - held

    def _record_refusal(self, model: str, needed: int, free: int, reason: str) -> None:
        self._record.add(
            Decision(model=model, question="load", asked=needed, free=free, verdict="refused", reason=reason)
        )

    # -- how large may a batch be? ------------------------------------------------------------------------------

    def budgets(self) -> dict[str, int]:
        """The largest batch of each resident model whose budget is elastic, in tokens."""
        with self._lock:
            return self.ledger.budgets(self._booked())

    def _record_budgets(self, before: dict[str, Footprint], after: dict[str, Footprint]) -> None:
        was, now = self.ledger.budgets(before), self.ledger.budgets(after)
        for model, tokens in now.items():
            earlier = was.get(model, after[model].budget_tokens)
            if tokens != earlier:
                verdict = "shrunk" if tokens < earlier else "grown"
                self._record.add(
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
        self._record.add(
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
        self._record.add(
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
            return self.ledger.used_bytes(self._booked())

    def books(self) -> Books:
        """The ledger by kind."""
        with self._lock:
            return self.ledger.books(self._booked())
