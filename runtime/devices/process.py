"""The process's own settings, made once before torch is imported. Knows no torch.

Each is a default: a variable that is already set wins. DECISIONS.md says what was measured.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
GIL_SWITCH_INTERVAL_S = 0.0005
"""A forward holds the GIL only between kernels; at 5 ms it would wait that long for each turn."""

_DEFAULTS = {
    # Waiting OpenMP threads must sleep: spinning ones take the core from whoever has work (10 ms became 450 ms).
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "30000",
    "TOKENIZERS_PARALLELISM": "true",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Each counter's time of creation would be a series of its own.
    "PROMETHEUS_DISABLE_CREATED_SERIES": "true",
}


def prepare_process() -> None:
    """Set what torch, OpenMP and the tokenizers read at import. Call before any of them is imported."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAYON_NUM_THREADS", str(min(2, usable_cores())))
    sys.setswitchinterval(GIL_SWITCH_INTERVAL_S)


@contextmanager
def uncollected() -> Iterator[None]:
    """While the libraries are imported: of what that makes next to nothing is garbage, and looking for it takes long.

    Without the collector it takes a fifth less time, and the process holds 7 MiB more, of 800.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def settle_process() -> None:
    """What is in memory now, the libraries above all, stays: the garbage collector need never look at it again.

    A whole collection then takes 10 ms where it held the GIL for 500.
    """
    gc.freeze()


def usable_cores() -> int:
    """Cores that this process may use: its CPU set, cut by the cgroup's quota. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, cores if quota is None else min(cores, int(quota)))


def _cgroup_cores() -> float | None:
    """The CPU quota of cgroup v2 or v1 in cores; None when there is none."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        quota, period = _read_v1("cpu.cfs_quota_us"), _read_v1("cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read_v1(name: str) -> str:
    try:
        return (CGROUP / "cpu" / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def cgroup_memory_bytes() -> int | None:
    """The memory limit of cgroup v2 or v1; None when there is none."""
    for file in (CGROUP / "memory.max", CGROUP / "memory" / "memory.limit_in_bytes"):
        try:
            limit = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        return int(limit) if limit.isdigit() else None
    return None
