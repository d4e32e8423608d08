"""The traps of colpali-engine's models, each kept out: what a naive batch would get wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from colpali_engine.models import ColPali, ColPaliProcessor, ColQwen2, ColQwen2Processor
from peft import LoraConfig, get_peft_model
from PIL import Image

from runtime.devices.cpu import CpuDevice
from runtime.errors import InvalidRequest, SourceNotFound, UnsupportedModel
from runtime.models.base import Model
from runtime.models.late_interaction import PageEmbedder
from runtime.models.loading import load_model
from runtime.models.visual_tokens import Grid, tile_grid
from runtime.registry import ModelSpec
from runtime.work import Job, Picture, Task
from tests.pages import as_picture, pages

SHORT, LONG = "price", "which statement raises an exception when a name is not bound in the scope"


def load(folder: Path, **settings: Any) -> Model:
    spec = ModelSpec(id="page-model", source=str(folder), **settings)
    return load_model(spec, Task.MULTI_VECTOR, folder, CpuDevice(lanes=1))


def job(*inputs: str | Picture) -> Job:
    return Job(id="job", model="page-model", task=Task.MULTI_VECTOR, inputs=inputs)


def watch(network: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `network.forward` is given from now on."""
    seen: list[dict[str, Any]] = []
    forward = network.forward

    def watched(**given: Any) -> Any:
        seen.append(given)
        return forward(**given)

    monkeypatch.setattr(network, "forward", watched)
    return seen


def test_colpalis_queries_depend_on_their_batch_mates_in_the_library_and_not_here(
    tiny_model: Callable[[str], Path],
) -> None:
    folder = tiny_model("colpali")
    network = ColPali.from_pretrained(str(folder)).eval()
    processor = ColPaliProcessor.from_pretrained(str(folder))
    with torch.inference_mode():
        together = network(**processor.process_queries([SHORT, LONG]))[1].numpy()
        alone = network(**processor.process_queries([LONG]))[0].numpy()
    assert np.abs(together - alone).max() > 0.01, "the library's trap is gone: zero token_type_ids may go, too"
    model = load(folder)
    both = model.launch(model.prepare(job(SHORT, LONG))).land()[1]
    single = model.launch(model.prepare(job(LONG))).land()[0]
    assert np.abs(both - single).max() <= 1e-5


def test_colpali_computes_no_logits_and_gets_no_labels(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny_model("colpali"))
    assert isinstance(model, PageEmbedder)
    seen = watch(model._network.model, monkeypatch)
    model.launch(model.prepare(job(as_picture(pages()[0]), SHORT))).land()
    assert len(seen) == 2
    for given in seen:
        assert "labels" not in given
        assert given["logits_to_keep"] == 1
        assert not given["token_type_ids"].any()


def test_nothing_is_padded_on_its_way_to_the_device(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny_model("colqwen2"))
    assert isinstance(model, PageEmbedder)
    seen = watch(model._network, monkeypatch)
    model.launch(model.prepare(job(*map(as_picture, pages()), SHORT, LONG))).land()
    masks = [given["attention_mask"] for given in seen]
    assert all(bool(mask.all()) for mask in masks)
    assert sorted(len(mask) for mask in masks) == [1, 1, 1, 1, 1, 1, 2], "the two pages of one size share a forward"


def test_a_zero_hidden_state_at_padding_never_reaches_a_row(tiny_model: Callable[[str], Path]) -> None:
    """Fresh weights have a zero row for padding and a zero bias, so that the library's own batch holds 0/0."""
    folder = tiny_model("colqwen2")
    network = ColQwen2.from_pretrained(str(folder)).eval()
    processor = ColQwen2Processor.from_pretrained(str(folder))
    model = load(folder)
    assert isinstance(model, PageEmbedder)
    pad = processor.tokenizer.convert_tokens_to_ids("<|im_start|>")
    processor.tokenizer.pad_token = "<|im_start|>"  # a token that no query holds
    for each in (network, model._network):
        with torch.no_grad():
            each.get_input_embeddings().weight[pad] = 0
            each.custom_text_proj.bias.zero_()
    with torch.inference_mode():
        padded = network(**processor.process_queries([SHORT, LONG]))
    assert torch.isnan(padded).any(), "the library's trap is gone"
    rows = model.launch(model.prepare(job(SHORT, LONG))).land()
    assert all(np.isfinite(row).all() for row in rows)
    assert all(np.linalg.norm(row, axis=1).min() > 0.999 for row in rows)


def test_the_model_stays_on_its_device(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(device: str = "auto") -> str:
        raise AssertionError("the library chose a device")

    monkeypatch.setattr("colpali_engine.utils.torch_utils.get_torch_device", choose)
    monkeypatch.setattr("colpali_engine.utils.processing_utils.get_torch_device", choose)
    model = load(tiny_model("colidefics3"))
    assert isinstance(model, PageEmbedder)
    assert {weight.device.type for weight in model._network.parameters()} == {"cpu"}


# -- the cap on visual tokens ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["colqwen2", "colqwen2-5", "colidefics3", "colmodernvbert"])
def test_a_picture_above_the_cap_is_scaled_down(tiny_model: Callable[[str], Path], name: str) -> None:
    model = load(tiny_model(name), max_num_visual_tokens=24)
    assert isinstance(model, PageEmbedder)
    rng = np.random.default_rng(4)
    sizes = [(850, 1100), (1100, 850), (64, 2000), (30, 30), *map(tuple, rng.integers(20, 1500, (12, 2)))]
    for width, height in sizes:
        image = Image.new("RGB", (int(width), int(height)), "white")
        item = model._processor.page(image)
        tokens = int((item.token_ids == model._library_processor.image_token_id).sum())
        assert tokens == model._processor.visual_tokens_of(image.width, image.height) <= 24
        assert item.tokens == model.cost(Picture(b"", image.width, image.height))
    row = model.launch(model.prepare(job(as_picture(pages()[0])))).land()[0]
    expected = model.reference_row(pages()[0])
    assert row.shape == expected.shape
    assert np.abs(row - expected).max() <= 1e-5


@pytest.mark.parametrize(("name", "tokens"), [("colpali", 64), ("colidefics3", 4)])
def test_a_cap_that_cannot_be_kept_is_refused_at_load(
    tiny_model: Callable[[str], Path], name: str, tokens: int
) -> None:
    with pytest.raises(UnsupportedModel, match=f"can't be kept.* {tokens} tokens"):
        load(tiny_model(name), max_num_visual_tokens=tokens - 1)
    load(tiny_model(name), max_num_visual_tokens=tokens)


def test_a_shape_that_the_family_cannot_see_is_the_callers_error(tiny_model: Callable[[str], Path]) -> None:
    model = load(tiny_model("colqwen2"))
    with pytest.raises(InvalidRequest, match="200 times"):
        model.cost(Picture(b"", 3, 1000))
    with pytest.raises(InvalidRequest, match="200 times"):
        model.prepare(job(as_picture(Image.new("RGB", (3, 1000)))))


def test_tiles_are_counted_at_the_sizes_of_real_checkpoints() -> None:
    """SmolVLM: 2,048 pixels in tiles of 512, as the card of ColSmol has it."""
    assert tile_grid(850, 1100, 2048, 512) == Grid(4, 4)
    assert tile_grid(1000, 500, 2048, 512) == Grid(2, 4)
    assert tile_grid(30, 30, 512, 512) == Grid(0, 0)


# -- adapters ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter over the tiny ColQwen2, whose settings name a path of another machine."""
    base = tiny_model("colqwen2")
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = ColQwen2.from_pretrained(str(base))
        settings = LoraConfig(r=4, target_modules=r".*(q_proj|v_proj|custom_text_proj)$", init_lora_weights=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # between peft and transformers
            get_peft_model(network, settings).save_pretrained(str(folder))
    ColQwen2Processor.from_pretrained(str(base)).save_pretrained(str(folder))
    return folder


def _rename_base(adapter: Path, base: str) -> None:
    file = adapter / "adapter_config.json"
    settings = file.read_text()
    start = settings.index('"base_model_name_or_path"')
    end = settings.index(",", start)
    file.write_text(f'{settings[:start]}"base_model_name_or_path": "{base}"{settings[end:]}')


def test_an_adapter_is_loaded_over_its_base(adapter: Path, tiny_model: Callable[[str], Path]) -> None:
    _rename_base(adapter, str(tiny_model("colqwen2")))
    model = load(adapter)
    expected = ColQwen2.from_pretrained(str(adapter)).eval()
    processor = ColQwen2Processor.from_pretrained(str(adapter))
    row = model.launch(model.prepare(job(LONG))).land()[0]
    with torch.inference_mode():
        other = expected(**processor.process_queries([LONG]))[0].numpy()
        plain = ColQwen2.from_pretrained(str(tiny_model("colqwen2"))).eval()(**processor.process_queries([LONG]))[0]
    assert np.abs(row - other).max() <= 1e-5
    assert np.abs(row - plain.numpy()).max() > 1e-3


def test_a_base_that_lies_beside_the_adapter_is_found_whatever_path_it_had(
    adapter: Path, tiny_model: Callable[[str], Path]
) -> None:
    (adapter.parent / "the-base").symlink_to(tiny_model("colqwen2"))
    _rename_base(adapter, "/home/someone/else/the-base")
    assert load(adapter).facts.dimensions == 128
    _rename_base(adapter, "/home/someone/else/not-there")
    with pytest.raises(SourceNotFound):
        load(adapter)
