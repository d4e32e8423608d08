"""What is true at the moment of a scrape: queues, states and memory, read when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runtime.admission import Admission
from runtime.devices.base import Device
from runtime.metering import Gauge
from runtime.work import Lane
from runtime.worker import State, Worker


def gauges(workers: Sequence[Worker], admission: Admission | None, device: Device | None) -> Iterator[Gauge]:
    """Every gauge; memory from when the device is open."""
    lanes = [(worker, lane) for worker in workers for lane in Lane]
    yield (
        "queue_items",
        "Inputs that wait",
        ("model", "lane"),
        [((w.spec.name, lane), w.queue.items(lane)) for w, lane in lanes],
    )
    yield (
        "queue_tokens",
        "Tokens that wait",
        ("model", "lane"),
        [((w.spec.name, lane), w.queue.tokens(lane)) for w, lane in lanes],
    )
    yield (
        "model_state",
        "1 for the state that a model is in",
        ("model", "state"),
        [((w.spec.name, state), float(w.state is state)) for w in workers for state in State],
    )
    yield (
        "model_memory_bytes",
        "Memory by model",
        ("model", "kind"),
        [((w.spec.name, kind), float(size)) for w in workers for kind, size in memory_by_kind(w).items()],
    )
    if admission is not None and device is not None:
        sizes = device_memory_by_kind(admission, device)
        yield "memory_bytes", "Device memory", ("kind",), [((kind,), float(size)) for kind, size in sizes.items()]


def memory_by_kind(worker: Worker) -> dict[str, int]:
    """What a model holds or may need. An offloaded one holds nothing on the device."""
    here = worker.model is not None
    footprint = worker.footprint
    return {
        "weights": footprint.weight_bytes if here else 0,
        "graphs": footprint.graph_bytes if here else 0,
        "host": footprint.host_bytes if here or worker.parked is not None else 0,
        "activations": footprint.activation_bytes if here else 0,
        "offloaded": footprint.weight_bytes if worker.parked is not None else 0,
    }


def device_memory_by_kind(admission: Admission, device: Device) -> dict[str, int]:
    """The ledger, and beside it what the driver says."""
    books, memory = admission.books(), device.memory()
    return {
        "limit": books.limit_bytes,
        "booked": books.used_bytes,
        "base": books.base_bytes,
        "weights": books.weight_bytes,
        "graphs": books.graph_bytes,
        "host": books.host_bytes,
        "workspace": books.workspace_bytes,
        "used": memory.used_by_us_bytes,
        "free": memory.free_bytes,
        "total": memory.total_bytes,
    }
