"""What a device would do with a registry before anything is loaded: who fits, who makes way, how long a corpus takes.

The verdicts come from the server's own admission and ledger, on predicted footprints: weights from the checkpoints'
headers, workspace from the family's prior. Nothing is loaded; a source on the hub is fetched, as loading it would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from runtime.admission import Admission
from runtime.backend import Backend
from runtime.chunk_limit import slow_unit
from runtime.devices.base import Device, Memory
from runtime.errors import DoesNotFit, NoRoomNow, PinnedOut, SourceNotFound, UnsupportedModel
from runtime.eviction import Candidate
from runtime.footprint import Footprint
from runtime.loader import wanted_tokens
from runtime.memory_limit import memory_limit_bytes
from runtime.metering import Metering
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.work import MAXSIM_ID, Task
from runtime.worker import builtin

Verdict = Literal["loaded", "fits", "evicts", "left_out", "device_full", "pinned_out", "does_not_fit", "no_files"]
"""`loaded`: at the start. `fits`, `evicts`: when first asked for, beside the others or in the place of some, which
leave memory (offloaded where they can be). `left_out`: it should be loaded at the start, has no room beside the others
then, and comes in their place when asked for. `device_full`: the budget has room, but others use the device's memory.
`pinned_out`: refused while others are pinned. `does_not_fit`: refused, whoever leaves. `no_files`: not to be judged."""
GOOD: frozenset[Verdict] = frozenset({"loaded", "fits", "evicts"})
SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """What becomes of one model."""

    name: str
    resident: str
    verdict: Verdict
    reason: str
    weight_bytes: int = 0
    host_bytes: int = 0
    """What the process keeps for it beside them."""
    workspace_bytes: int = 0
    """Of its largest batch in one lane, as wanted."""
    wanted_batch_tokens: int = 0
    batch_tokens: int | None = None
    """The largest batch once everybody is loaded: fewer than wanted where memory is short. None: it isn't loaded."""
    evicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole registry on one device. Sizes in bytes."""

    device: str
    limit_bytes: int
    base_bytes: int
    used_bytes: int
    """Booked after the start."""
    models: tuple[PlannedModel, ...]

    @property
    def fits(self) -> bool:
        """Whether each model is where the registry wants it, or comes when it is asked for."""
        return all(model.verdict in GOOD for model in self.models)


@dataclass(slots=True)
class _Planner:
    """The books as the start fills them."""

    admission: Admission
    memory: Memory
    booked: dict[str, Footprint] = field(default_factory=dict)
    pinned: dict[str, str] = field(default_factory=dict)
    """Names by id."""

    def start(self, spec: ModelSpec, footprint: Footprint) -> None:
        """Load at the start, when nobody is evicted. Raises NoRoomNow, PinnedOut, DoesNotFit."""
        self.admission.reserve(spec.id, footprint, self._candidates(), self.pinned, evict=False)
        self.admission.verify(spec.id, self._driver())
        self.booked[spec.id] = footprint
        if spec.pinned:
            self.pinned[spec.id] = spec.name

    def ask(self, spec: ModelSpec, footprint: Footprint) -> list[str]:
        """Who would leave if it were asked for after the start, when all are idle.

        Raises NoRoomNow, PinnedOut, DoesNotFit.
        """
        leaving = self.admission.reserve(spec.id, footprint, self._candidates(), self.pinned)
        try:
            self.admission.verify(spec.id, self._driver(leaving))
        finally:
            self.admission.forget(spec.id)
            for model in leaving:
                self.admission.settle(model, self.booked[model])
        return leaving

    def _candidates(self) -> list[Candidate]:
        return [Candidate(model=model, value=0.0) for model in self.booked if model not in self.pinned]

    def _driver(self, leaving: Iterable[str] = ()) -> Memory:
        """What the driver would say with everybody in memory who stays."""
        gone = set(leaving)
        held = sum(footprint.resident_bytes for model, footprint in self.booked.items() if model not in gone)
        return Memory(
            total_bytes=self.memory.total_bytes,
            free_bytes=self.memory.free_bytes - held,
            used_by_us_bytes=self.memory.used_by_us_bytes + held,
        )


def plan(config: RuntimeConfig, backend: Backend, device: Device) -> Plan:
    """What the server would do with `config` on `device`. Blocks: reads headers, fetches from the hub."""
    memory, base_bytes = device.memory(), device.base_bytes()
    limit = memory_limit_bytes(config.memory_budget_bytes, memory)
    admission = Admission(limit, base_bytes, device.concurrency.threads, Metering())
    planner = _Planner(admission, memory)
    footprints: dict[str, Footprint] = {}
    fates: dict[str, PlannedModel] = {}
    for spec in config.models:
        try:
            footprints[spec.id] = backend.predict(spec, device, wanted_tokens(spec, device))
        except (SourceNotFound, UnsupportedModel) as error:
            fates[spec.id] = _fate(spec, Footprint(), "no_files", error.message)
    built_in = builtin(MAXSIM_ID, Task.MAXSIM).spec
    with suppress(NoRoomNow, DoesNotFit):  # beside what the process itself holds; then nothing else fits either
        planner.start(built_in, backend.predict(built_in, device, wanted_tokens(built_in, device)))
    known = [spec for spec in config.models if spec.id in footprints]
    for spec in known:
        if spec.resident == "always":
            fates[spec.id] = _started(planner, spec, footprints[spec.id])
    names = {spec.id: spec.name for spec in config.models}
    for spec in known:
        if fates.get(spec.id) is None or fates[spec.id].verdict == "left_out":
            fates[spec.id] = _asked(planner, spec, footprints[spec.id], names)
    budgets = admission.budgets()
    return Plan(
        device=device.description,
        limit_bytes=limit,
        base_bytes=base_bytes,
        used_bytes=admission.used_bytes(),
        models=tuple(_with_budget(fates[spec.id], budgets.get(spec.id)) for spec in config.models),
    )


def _started(planner: _Planner, spec: ModelSpec, footprint: Footprint) -> PlannedModel:
    try:
        planner.start(spec, footprint)
    except PinnedOut as refusal:
        return _fate(spec, footprint, "pinned_out", refusal.message)
    except NoRoomNow as refusal:
        return _fate(spec, footprint, "left_out", refusal.message)
    except DoesNotFit as refusal:
        return _fate(spec, footprint, "does_not_fit", refusal.message)
    return _fate(spec, footprint, "loaded", "at the start")


def _asked(planner: _Planner, spec: ModelSpec, footprint: Footprint, names: Mapping[str, str]) -> PlannedModel:
    try:
        leaving = tuple(names[model] for model in planner.ask(spec, footprint))
    except PinnedOut as refusal:
        return _fate(spec, footprint, "pinned_out", refusal.message)
    except NoRoomNow as refusal:  # all are idle, so only the driver can have said so
        return _fate(spec, footprint, "device_full", refusal.message)
    except DoesNotFit as refusal:
        return _fate(spec, footprint, "does_not_fit", refusal.message)
    if spec.resident == "always":
        return _fate(spec, footprint, "left_out", "no room at the start beside the others", leaving)
    if leaving:
        return _fate(spec, footprint, "evicts", "when asked for, once those in its place are idle", leaving)
    return _fate(spec, footprint, "fits", "when asked for")


def _fate(
    spec: ModelSpec, footprint: Footprint, verdict: Verdict, reason: str, evicts: tuple[str, ...] = ()
) -> PlannedModel:
    return PlannedModel(
        name=spec.name,
        resident=spec.resident,
        verdict=verdict,
        reason=reason,
        weight_bytes=footprint.weight_bytes,
        host_bytes=footprint.host_bytes,
        workspace_bytes=footprint.activation_bytes,
        wanted_batch_tokens=footprint.budget_tokens,
        evicts=evicts,
    )


def _with_budget(model: PlannedModel, budget: int | None) -> PlannedModel:
    if model.verdict != "loaded":
        return model
    tokens = budget or model.wanted_batch_tokens
    reason = "batches shrink to fit" if tokens < model.wanted_batch_tokens else model.reason
    return replace(model, reason=reason, batch_tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endangered:
    """An objective that one input of a model breaks, since a batch of one input can't be cut."""

    model: str
    unit_ms: float
    objective_of: str
    slo_ms: float


def endangered(specs: Iterable[ModelSpec], units_ms: Mapping[str, float]) -> list[Endangered]:
    """Who breaks whose objective. `units_ms`: by name, device time of one input; models without are passed over."""
    slos_ms = {spec.name: spec.slo_ms for spec in specs}
    found = [(model, unit_ms, slow_unit(unit_ms, slos_ms)) for model, unit_ms in units_ms.items() if model in slos_ms]
    return [
        Endangered(model=model, unit_ms=unit_ms, objective_of=slow[0], slo_ms=slow[1])
        for model, unit_ms, slow in found
        if slow is not None
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Something to be embedded once."""

    chunks: int
    tokens: int
    """Of each chunk."""
    devices: int = 1
    dollars_per_hour: float | None = None
    """Of one device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexing:
    """How long a corpus takes, and what it costs."""

    tokens_per_s: float
    """Of one device."""
    hours: float
    dollars: float | None


def indexing(corpus: Corpus, tokens_per_s: float) -> Indexing:
    """`chunks x tokens / (rate x devices)`: each device works alone on its part, so they take turns at nothing."""
    hours = corpus.chunks * corpus.tokens / (tokens_per_s * corpus.devices) / SECONDS_AN_HOUR
    price = corpus.dollars_per_hour
    return Indexing(
        tokens_per_s=tokens_per_s,
        hours=hours,
        dollars=None if price is None else hours * corpus.devices * price,
    )
