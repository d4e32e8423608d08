"""A dry run's workspace is never less than what a real forward takes, nor much more; nothing is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from runtime.devices.cpu import CpuDevice
from runtime.models.base import Model
from runtime.models.dry_run import dry_bytes_per_token
from runtime.models.loading import load_model
from runtime.registry import ModelSpec
from runtime.work import Prepared, Task

BATCH_TOKENS = 1024
PACKED = ("bert-embedder", "qwen3-embedder")
OTHERS = ("mpnet-embedder", "deberta-v2-embedder", "roformer-embedder", "convbert-embedder", "t5-embedder")


def measured_bytes_per_token(model: Model, length: int) -> float:
    """The allocator's own peak over a batch of inputs of `length` tokens, in this thread."""
    items = [Prepared(token_ids=np.full(length, 7, dtype=np.int32)) for _ in range(BATCH_TOKENS // length)]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
        model.launch(items).land()
    results = profiled.profiler.kineto_results
    events = sorted((each.start_ns(), each.nbytes()) for each in results.events() if each.name() == "[memory]")
    assert events
    return float(np.cumsum([size for _, size in events]).max()) / BATCH_TOKENS


@pytest.mark.parametrize("name", [*PACKED, *OTHERS])
def test_a_real_forward_takes_no_more_and_at_least_half(tiny_model: Callable[[str], Path], name: str) -> None:
    folder = tiny_model(name)
    model = load_model(ModelSpec(id="m", source=str(folder)), Task.EMBED, folder, CpuDevice(lanes=1))
    for length in (16, 64):
        dry = dry_bytes_per_token(folder, length)
        assert dry is not None
        assert 0.5 * dry <= measured_bytes_per_token(model, length) <= dry


@pytest.mark.parametrize("name", ["modernbert-embedder", "clip", "colpali"])
def test_a_network_that_cannot_be_run_dry_is_left_to_the_rule(tiny_model: Callable[[str], Path], name: str) -> None:
    assert dry_bytes_per_token(tiny_model(name), 16) is None


def test_a_folder_without_a_config_has_no_dry_run(tmp_path: Path) -> None:
    assert dry_bytes_per_token(tmp_path, 16) is None


def test_it_is_run_again_when_the_checkpoint_changed_and_leaves_the_process_as_it_was(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    small, large = (tiny_model(name) / "config.json" for name in ("bert-embedder", "deberta-v2-embedder"))
    state, default = torch.random.get_rng_state(), torch.get_default_dtype()
    found = []
    for config in (small, large):
        (tmp_path / "config.json").write_bytes(config.read_bytes())
        found.append(dry_bytes_per_token(tmp_path, 64))
    assert found == [dry_bytes_per_token(file.parent, 64) for file in (small, large)]
    assert found[0] != found[1]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_default_dtype() is default
    assert torch.ones(1).untyped_storage().nbytes() == 4
