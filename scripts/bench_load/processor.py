"""Who takes the processor: the server measured, the load generator, and everything else on the machine."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

# A server may spin for a moment after its last request before it sleeps, and one of several models answers for the
# first of them while it loads the others.
SETTLE_S = 2.0
SETTLE_LIMIT_S = 120.0
IDLE_S = 2.0
IDLE_CORES_LIMIT = 0.05
"""A server that takes more than this while idle lowers the other's figures on the same cores."""


@dataclass(frozen=True)
class Cores:
    """Processor seconds per second, over one measurement.

    `others` holds every other process, time stolen by the host included: anything above a few hundredths
    means that the figures beside it are not the server's own. None where the server's process cannot be seen.
    """

    server: float | None
    generator: float
    others: float | None


class CoreWatch:
    """Counts from its creation until `cores`."""

    def __init__(self, port: int) -> None:
        self._family = family(port)
        self._begin_s = time.perf_counter()
        self._begin = self._seconds()

    def cores(self) -> Cores:
        elapsed_s = time.perf_counter() - self._begin_s
        server, generator, machine = (
            (end - begin) / elapsed_s for begin, end in zip(self._begin, self._seconds(), strict=True)
        )
        if not self._family:
            return Cores(None, generator, None)
        return Cores(server, generator, max(0.0, machine - server - generator))

    def _seconds(self) -> tuple[float, float, float]:
        machine = psutil.cpu_times()._asdict()
        # Guest time is part of user time already.
        busy_s = sum(machine.get(kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))
        return _processor_s(self._family), time.process_time(), busy_s


@dataclass(frozen=True)
class Idleness:
    """What a server takes while nobody asks it anything."""

    cores: float
    memory_mib: float


def idleness(port: int) -> Idleness | None:
    """Over the listening process and its children, once they have come to rest; None where they cannot be seen."""
    give_up_s = time.perf_counter() + SETTLE_LIMIT_S
    idle = _idleness(port)
    while idle is not None and idle.cores > IDLE_CORES_LIMIT and time.perf_counter() < give_up_s:
        idle = _idleness(port)
    return idle


def _idleness(port: int) -> Idleness | None:
    processes = family(port)
    if not processes:
        return None
    time.sleep(SETTLE_S)
    before_s = _processor_s(processes)
    time.sleep(IDLE_S)
    memory_bytes = sum(process.memory_info().rss for process in processes if process.is_running())
    return Idleness((_processor_s(processes) - before_s) / IDLE_S, memory_bytes / 2**20)


def family(port: int) -> list[psutil.Process]:
    """The process that listens on the port, with its descendants; where several share it, the oldest's."""
    with suppress(psutil.AccessDenied, psutil.NoSuchProcess):
        pids = {
            each.pid
            for each in psutil.net_connections(kind="tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid
        }
        if pids:
            oldest = psutil.Process(min(pids))
            return [oldest, *oldest.children(recursive=True)]
    return []


def _processor_s(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes if process.is_running()]
    return sum(each.user + each.system for each in times)


def usable_cores() -> int:
    """What the scheduler lets this process use; macOS does not say, and there it is all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
