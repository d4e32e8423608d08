"""The page-image model of the default registry: random, named so, and served like a trained one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from runtime.devices.cpu import CpuDevice
from runtime.models.detection import task_of_files
from runtime.models.loading import load_model
from runtime.registry import ModelSpec
from runtime.work import Job, Task
from scripts.random_page_model import NAME, VISUAL_TOKENS, make
from tests.pages import as_picture, pages


def test_it_is_made_once_says_what_it_is_and_embeds_pages(tmp_path: Path) -> None:
    folder = make(tmp_path)
    made = (folder / "model.safetensors").stat()
    assert make(tmp_path) == folder
    assert (folder / "model.safetensors").stat() == made
    assert [path.name for path in tmp_path.iterdir()] == [NAME], "nothing temporary is left"
    assert "RANDOM WEIGHTS" in (folder / "README.md").read_text()
    assert task_of_files(folder) is Task.MULTI_VECTOR

    model = load_model(ModelSpec(id=NAME, source=str(folder)), Task.MULTI_VECTOR, folder, CpuDevice(lanes=1))
    job = Job(id="job", model=NAME, task=Task.MULTI_VECTOR, inputs=[*map(as_picture, pages()[:2]), "a question"])
    first, second, query = model.launch(model.prepare(job)).land()
    assert VISUAL_TOKENS == 256 < first.shape[0] == second.shape[0] < 300
    assert query.shape[0] < 20
    assert np.abs(first - second).max() > 0.01, "different pages look different"
