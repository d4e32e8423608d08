"""CLIP and SigLIP: the vector of a text or a picture is the reference's for that input alone, batched or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from torch.nn import functional
from transformers import AutoModel, AutoProcessor

from runtime.devices.cpu import CpuDevice
from runtime.errors import InputTooLong, InvalidDimensions, UnsupportedCapability
from runtime.models.base import Model
from runtime.models.image_text_towers import LockedTokenizer
from runtime.models.loading import load_model
from runtime.models.tokenizing import Limit
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Pair, Row, Task
from tests.pages import QUERIES, as_picture, pages
from tests.tiny_models import IMAGE_TEXT

FP32 = 1e-5
TEXTS = [*QUERIES, " ".join(f"word{i}" for i in range(200))]


@dataclass(frozen=True)
class Loaded:
    name: str
    model: Model
    expected: list[Row]
    """The reference's vectors of the six pages and the texts, one by one."""

    def job(self, inputs: Sequence[Input]) -> Job:
        return Job(id="job", model=self.name, task=Task.EMBED, inputs=inputs)

    def embed(self, job: Job) -> list[Row]:
        return self.model.launch(self.model.prepare(job)).land()


def plain(network: Any, processor: Any, item: str | Image.Image) -> Row:
    """As transformers' documentation does it."""
    with torch.inference_mode():
        if isinstance(item, str):
            padding = "max_length" if network.config.model_type == "siglip" else False
            output = network.get_text_features(
                **processor(text=[item], padding=padding, truncation=True, return_tensors="pt")
            )
        else:
            output = network.get_image_features(**processor(images=[item], return_tensors="pt"))
        return np.asarray(functional.normalize(output.pooler_output, dim=-1)[0].numpy())


@pytest.fixture(scope="module", params=sorted(IMAGE_TEXT))
def loaded(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Loaded:
    folder = tiny_model(request.param)
    if (folder / "modules.json").is_file():
        library = SentenceTransformer(str(folder), device="cpu")
        expected = [np.asarray(library.encode(page)) for page in pages()]
        expected += [np.asarray(library.encode(text)) for text in TEXTS]
    else:
        network = AutoModel.from_pretrained(str(folder)).eval()
        processor = AutoProcessor.from_pretrained(str(folder))
        expected = [plain(network, processor, page) for page in pages()]
        expected += [plain(network, processor, text) for text in TEXTS]
    model = load_model(ModelSpec(id=request.param, source=str(folder)), Task.EMBED, folder, CpuDevice(lanes=1))
    return Loaded(request.param, model, expected)


def inputs() -> list[Input]:
    return [*map(as_picture, pages()), *TEXTS]


def difference(rows: Sequence[Row], expected: Sequence[Row]) -> float:
    assert [row.shape for row in rows] == [row.shape for row in expected]
    return max(float(np.abs(a - b).max() / np.linalg.norm(b)) for a, b in zip(rows, expected, strict=True))


def test_pictures_and_texts_in_one_batch_equal_the_reference_one_by_one(loaded: Loaded) -> None:
    assert difference(loaded.embed(loaded.job(inputs())), loaded.expected) <= FP32
    assert loaded.model.facts.modalities == ("text", "image")
    assert loaded.model.facts.dimensions == len(loaded.expected[0])


def test_alone_and_in_another_order_they_are_the_same(loaded: Loaded) -> None:
    order = np.random.default_rng(2).permutation(len(loaded.expected))
    items = loaded.model.prepare(loaded.job(inputs()))
    rows = loaded.model.launch([items[i] for i in order]).land()
    assert difference(rows, [loaded.expected[i] for i in order]) <= FP32
    assert difference([loaded.embed(loaded.job([item]))[0] for item in inputs()], loaded.expected) <= FP32


def test_a_plain_checkpoint_gives_unit_vectors_and_a_module_chain_what_it_says(loaded: Loaded) -> None:
    lengths = np.array([np.linalg.norm(row) for row in loaded.embed(loaded.job(inputs()))])
    is_unit = np.allclose(lengths, 1.0, atol=1e-3)
    assert is_unit is (loaded.name != "clip-modules")
    unit = loaded.embed(replace(loaded.job(inputs()), normalize=True))
    np.testing.assert_allclose([np.linalg.norm(row) for row in unit], 1.0, atol=1e-3)


def test_the_cost_is_what_the_device_sees(loaded: Loaded) -> None:
    for item, prepared in zip(inputs()[:6], loaded.model.prepare(loaded.job(inputs()[:6])), strict=True):
        assert loaded.model.cost(item) == prepared.tokens == 16


def test_long_texts_are_cut_or_refused_and_dimensions_checked(loaded: Loaded) -> None:
    item = loaded.model.prepare(loaded.job([TEXTS[-1]]))[0]
    assert (item.tokens, item.truncated) == (loaded.model.facts.max_tokens, True)
    with pytest.raises(InputTooLong):
        loaded.model.prepare(replace(loaded.job([TEXTS[-1]]), truncate=False))
    for wrong in (0, len(loaded.expected[0]) + 1):
        with pytest.raises(InvalidDimensions):
            loaded.model.prepare(replace(loaded.job(["a"]), dimensions=wrong))
    with pytest.raises(UnsupportedCapability):
        loaded.model.prepare(loaded.job([Pair("a", "b")]))


class SpellingTokenizer:
    """A tokenizer that is Python all through: a letter is a token, and each text ends in token 1."""

    pad_token_id = 0

    def __call__(self, text: str, truncation: bool = False, max_length: int = 0) -> dict[str, list[int]]:
        letters = [ord(letter) for letter in text]
        return {"input_ids": [*(letters[: max_length - 1] if truncation else letters), 1]}


def test_a_tokenizer_without_a_fast_form_cuts_and_refuses_all_the_same() -> None:
    tokenizer = LockedTokenizer(SpellingTokenizer(), 4)
    short, long = tokenizer.encode(["ab", "abcdef" * 100], tokenizer.default_limit)
    assert (short.token_ids.tolist(), short.truncated) == ([97, 98, 1], False)
    assert (long.token_ids.tolist(), long.truncated) == ([97, 98, 99, 1], True)
    with pytest.raises(InputTooLong, match="input 7"):
        tokenizer.encode(["abcdef"], Limit(max_tokens=4, truncate=False), [7])
