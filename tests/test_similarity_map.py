"""What rows stand for: patches as colpali-engine's interpretability has them, and tokens as they are read."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import colpali_engine
import numpy as np
import pytest
import torch

from runtime.devices.cpu import CpuDevice
from runtime.errors import UnsupportedCapability
from runtime.models.base import Model
from runtime.models.loading import load_model
from runtime.models.maxsim import MaxSim
from runtime.registry import ModelSpec
from runtime.work import Job, MatrixPair, Row, RowLayout, Task
from tests.pages import as_picture, pages

QUERY = "naïve revenue by quarter"
GRIDS = {"colpali": "ColPali", "colqwen2": "ColQwen2", "colqwen2-5": "ColQwen2_5_"}
TILED = ("colidefics3", "colmodernvbert")


def rearrange(tensor: torch.Tensor, pattern: str, *, w: int, h: int) -> torch.Tensor:
    """The one call of einops that the library's module makes; einops itself is no dependency."""
    assert pattern == "(h w) c -> w h c"
    return tensor.reshape(h, w, -1).transpose(0, 1)


@pytest.fixture
def library_maps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[torch.Tensor]]:
    """colpali-engine's function, from its file: the package around it wants drawing libraries."""
    einops = ModuleType("einops")
    einops.__dict__["rearrange"] = rearrange
    monkeypatch.setitem(sys.modules, "einops", einops)
    file = Path(colpali_engine.__file__).parent / "interpretability" / "similarity_map_utils.py"
    spec = importlib.util.spec_from_file_location("similarity_map_utils", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., list[torch.Tensor]] = module.get_similarity_maps_from_embeddings
    return function


def load(name: str, folder: Path) -> Model:
    return load_model(ModelSpec(id=name, source=str(folder)), Task.MULTI_VECTOR, folder, CpuDevice(lanes=1))


def processor_of(name: str, folder: Path) -> Any:
    from colpali_engine import models

    return getattr(models, f"{GRIDS[name]}Processor").from_pretrained(str(folder))


def embedded(model: Model, item: Any, prompt_name: str) -> tuple[Row, RowLayout]:
    job = Job(id="job", model="", task=Task.MULTI_VECTOR, inputs=[item], prompt_name=prompt_name)
    items = model.prepare(job)
    [row] = model.launch(items).land()
    return row, model.layout_of(items[0])


def patches_of(name: str, processor: Any, width: int, height: int) -> tuple[int, int]:
    """Columns and rows, as the library counts them; each processor asks for another number."""
    if name == "colpali":
        side = processor.image_processor.size["width"] // int(processor.image_seq_length**0.5)
        columns, rows = processor.get_n_patches((width, height), patch_size=side)
    else:
        merged = processor.image_processor.merge_size
        columns, rows = processor.get_n_patches((width, height), spatial_merge_size=merged)
    return columns, rows


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_maps_equal_the_library_s_for_pages_of_every_aspect(
    name: str, tiny_model: Callable[[str], Path], library_maps: Callable[..., list[torch.Tensor]]
) -> None:
    folder = tiny_model(name)
    model, processor = load(name, folder), processor_of(name, folder)
    query, of_query = embedded(model, QUERY, "query")
    assert len(of_query.tokens) == len(query)
    assert "revenue" in "".join(of_query.tokens)
    grids = set()
    for page in pages():
        rows, layout = embedded(model, as_picture(page), "document")
        mask = processor.get_image_mask(processor.process_images([page]))
        shape = patches_of(name, processor, page.width, page.height)
        [expected] = library_maps(torch.from_numpy(rows)[None], torch.from_numpy(query)[None], shape, mask)
        ours = (query @ rows.T)[:, layout.patches].reshape(len(query), *layout.grid)
        np.testing.assert_allclose(ours, expected.numpy().transpose(0, 2, 1), atol=1e-5)
        grids.add(layout.grid)
    assert len(grids) == (1 if name == "colpali" else 5), "the first two pages share a size"


@pytest.mark.parametrize("name", TILED)
def test_tiled_models_say_that_they_have_no_grid(name: str, tiny_model: Callable[[str], Path]) -> None:
    model = load(name, tiny_model(name))
    _, layout = embedded(model, QUERY, "query")
    assert "revenue" in "".join(layout.tokens)
    with pytest.raises(UnsupportedCapability, match="tiles"):
        embedded(model, as_picture(pages()[0]), "document")


def test_models_of_other_kinds_have_no_layout() -> None:
    model = MaxSim(CpuDevice(lanes=1))
    pair = MatrixPair(np.ones((1, 2), np.float32), np.ones((3, 2), np.float32))
    [item] = model.prepare(Job(id="job", model="", task=Task.MAXSIM, inputs=[pair]))
    with pytest.raises(UnsupportedCapability):
        model.layout_of(item)
