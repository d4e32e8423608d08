"""What an operator may see and change: models in and out of memory, pins, the ledger, the decisions, a new registry."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.admission import Admission
from runtime.decisions import Decision
from runtime.devices.base import Device
from runtime.errors import CotenantError
from runtime.gauges import device_memory_by_kind, memory_by_kind
from runtime.registry import ModelSpec
from runtime.residency import Residency
from runtime.router import Router
from runtime.worker import ModelStatus, State, Worker

KEPT_LOADED = frozenset(
    {
        *("served_name", "aliases", "default", "required", "accept_token_ids"),
        *("slo_ms", "weight", "priority", "max_queue_tokens"),
        *("resident", "pinned", "idle_ttl_s"),
    }
)
"""Keys that may change while a model is loaded; a change of any other loads it anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """One device's memory, bytes by kind."""

    device: str
    description: str
    by_kind: dict[str, int]
    by_model: dict[str, dict[str, int]]


class Administration:
    """Used on the event loop. Names are resolved like a request's: id, served name, alias or unique basename."""

    def __init__(self, router: Router, residency: Residency, admission: Admission, device: Device) -> None:
        self.residency = residency
        self._router = router
        self._admission = admission
        self._device = device

    async def load(self, name: str) -> ModelStatus:
        """Load the model now, making room if need be; returns when it serves.

        Raises as a request for the model would: ModelNotFound, ModelFailed, DoesNotFit, NoRoomNow and the like.
        """
        worker = self._router.resolve(name, None)
        try:
            await self.residency.load(worker)
        except CotenantError:  # perhaps one that is about the start of a server and reaches no client
            worker.check_not_failed()
            raise
        return worker.status()

    async def unload(self, name: str) -> ModelStatus:
        """Take the model out of memory once what it has queued is answered; the next request loads it again."""
        worker = self._router.resolve(name, None)
        await self.residency.unload(worker)
        return worker.status()

    def pin(self, name: str, pinned: bool) -> ModelStatus:
        """Keep the model from being evicted, or no longer."""
        worker = self._router.resolve(name, None)
        worker.pinned = pinned
        return worker.status()

    def memory(self) -> MemoryReport:
        """The ledger by kind and by model, its limit, and what the driver says."""
        return MemoryReport(
            device=self._device.name,
            description=self._device.description,
            by_kind=device_memory_by_kind(self._admission, self._device),
            by_model={worker.spec.name: memory_by_kind(worker) for worker in self._router.workers},
        )

    def decisions(self, limit: int) -> Sequence[Decision]:
        """The latest decisions, newest first."""
        return list(itertools.islice(reversed(self._admission.decisions), limit))

    def succession(self, specs: Iterable[ModelSpec]) -> Router:
        """A router to workers of these specs: present ones where they may stay loaded, new ones for the rest."""
        specs = list(specs)
        Router(Worker(spec) for spec in specs)  # raises ConfigurationError before anything has changed
        present = {worker.spec.id: worker for worker in self._router.workers}
        return Router([_successor(present.get(spec.id), spec) for spec in specs])


def _successor(present: Worker | None, spec: ModelSpec) -> Worker:
    """The present worker with its new spec, or a new worker where the model must be loaded anew."""
    if present is None or present.state is State.FAILED or _load_keys(present.spec) != _load_keys(spec):
        return Worker(spec)
    if spec.pinned != present.spec.pinned:
        present.pinned = spec.pinned
    if spec.resident != present.spec.resident:
        present.started = present.serves or spec.resident == "on_demand"
    present.spec = spec
    return present


def _load_keys(spec: ModelSpec) -> dict[str, object]:
    return spec.model_dump(exclude=set(KEPT_LOADED))
