"""The process's settings are defaults that a user's own win over, and its cores are those it may really use."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.backend import TorchBackend
from runtime.cli import _become_a_server
from runtime.devices import process
from runtime.devices.process import GIL_SWITCH_INTERVAL_S, uncollected, usable_cores
from runtime.registry import RuntimeConfig
from tests.fakes import spec

ROOT = Path(__file__).parent.parent
DEFAULTS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
SCRIPT = """
import json, os, sys
from runtime.devices.process import prepare_process
prepare_process()
print(json.dumps([dict(os.environ), sys.getswitchinterval(), sorted(sys.modules)]))
"""


def prepared_process(**variables: str) -> tuple[dict[str, str], float, set[str]]:
    """Variables, switch interval and imported modules of a fresh process after `prepare_process`."""
    kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**kept, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        check=True,
        timeout=60,
        text=True,
    )
    environment, interval, modules = json.loads(done.stdout)
    return environment, interval, set(modules)


def test_a_fresh_process_gets_every_default_before_anything_that_reads_them() -> None:
    environment, interval, modules = prepared_process()
    assert environment.items() >= DEFAULTS.items()
    assert int(environment["GOMP_SPINCOUNT"]) > 0
    assert 1 <= int(environment["RAYON_NUM_THREADS"]) <= 2
    assert interval == pytest.approx(GIL_SWITCH_INTERVAL_S)
    assert not modules & {"torch", "tokenizers", "transformers", "huggingface_hub", "numpy"}


def test_a_variable_that_is_set_already_wins_and_so_does_an_empty_one() -> None:
    chosen = {"OMP_WAIT_POLICY": "ACTIVE", "RAYON_NUM_THREADS": "7", "GOMP_SPINCOUNT": ""}
    environment, _, _ = prepared_process(**chosen)
    assert environment.items() >= chosen.items()
    assert environment["TOKENIZERS_PARALLELISM"] == "true"


# -- the collector ----------------------------------------------------------------------------------------------


def test_the_collector_rests_in_the_block_and_is_as_it_was_after_it() -> None:
    with uncollected():
        assert not gc.isenabled()
        with pytest.raises(ImportError), uncollected():
            raise ImportError
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_rests_while_the_libraries_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def stop(*_: object) -> None:
        seen.append(gc.isenabled())
        raise ImportError

    monkeypatch.setattr("runtime.devices.opening.open_device", lambda *_: None)
    monkeypatch.setattr(importlib, "import_module", stop)
    with pytest.raises(ImportError):
        _become_a_server()
    with pytest.raises(ImportError):
        TorchBackend().open_device(RuntimeConfig(models=(spec(),)))
    assert seen == [False, False]
    assert gc.isenabled()


# -- cores ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cgroup folder, on a machine with eight cores in the CPU set."""
    monkeypatch.setattr(process, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("written", "cores"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1600000 100000\n", 8),
        ("300000 50000\n", 6),
        ("100000 0\n", 8),
        ("garbage\n", 8),
        ("", 8),
    ],
)
def test_a_quota_of_cgroup_v2_cuts_the_cores_in_whole_ones_and_at_least_one(
    cgroup: Path, written: str, cores: int
) -> None:
    (cgroup / "cpu.max").write_text(written, encoding="ascii")
    assert usable_cores() == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"), [("-1", "100000", 8), ("300000", "100000", 3), ("20000", "100000", 1)]
)
def test_a_quota_of_cgroup_v1_counts_where_there_is_no_v2(cgroup: Path, quota: str, period: str, cores: int) -> None:
    (cgroup / "cpu").mkdir()
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n", encoding="ascii")
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text(f"{period}\n", encoding="ascii")
    assert usable_cores() == cores


def test_without_a_cgroup_the_cpu_set_decides(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    assert usable_cores() == 1


def test_where_the_system_knows_no_cpu_sets_its_cores_count(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
