"""Page-image models: every row is colpali-engine's for that input alone, whatever its batch mates were."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from runtime.devices.cpu import CpuDevice
from runtime.errors import InputTooLong, InvalidDimensions, InvalidRequest, UnknownPrompt, UnsupportedCapability
from runtime.models.base import Model
from runtime.models.loading import load_model
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Pair, Picture, Prepared, Row, Task
from tests.pages import QUERIES, as_picture, pages
from tests.tiny_models import PAGE_MODELS

FP32 = 1e-5
CLASSES = {
    "colpali": "ColPali",
    "colqwen2": "ColQwen2",
    "colqwen2-5": "ColQwen2_5",
    "colidefics3": "ColIdefics3",
    "colmodernvbert": "ColModernVBert",
}


@dataclass(frozen=True)
class Loaded:
    """One tiny model in our hands and in colpali-engine's."""

    name: str
    model: Model
    network: Any
    processor: Any
    rows: list[Row]
    """colpali-engine's rows of the six pages and the six queries, one by one."""

    def job(self, inputs: Sequence[Input]) -> Job:
        return Job(id="job", model=self.name, task=Task.MULTI_VECTOR, inputs=inputs)

    def embed(self, job: Job) -> list[Row]:
        return self.model.launch(self.model.prepare(job)).land()


def inputs() -> list[Input]:
    return [*map(as_picture, pages()), *QUERIES]


def alone(network: Any, processor: Any, item: str | Image.Image) -> Row:
    """colpali-engine's own way, with zero `token_type_ids` for ColPali's queries."""
    batch = processor.process_queries([item]) if isinstance(item, str) else processor.process_images([item])
    batch.pop("labels", None)
    if type(network).__name__ == "ColPali":
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    with torch.inference_mode():
        return np.asarray(network(**batch)[0].numpy())


@pytest.fixture(scope="module", params=sorted(PAGE_MODELS))
def loaded(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Loaded:
    from colpali_engine import models

    folder = tiny_model(request.param)
    name = CLASSES[request.param]
    processor_name = f"{name}_Processor" if name == "ColQwen2_5" else f"{name}Processor"
    network = getattr(models, name).from_pretrained(str(folder), dtype=torch.float32).eval()
    processor = getattr(models, processor_name).from_pretrained(str(folder))
    rows = [alone(network, processor, page) for page in pages()]
    rows += [alone(network, processor, query) for query in QUERIES]
    model = load_model(ModelSpec(id=request.param, source=str(folder)), Task.MULTI_VECTOR, folder, CpuDevice(lanes=2))
    return Loaded(request.param, model, network, processor, rows)


def difference(rows: Sequence[Row], expected: Sequence[Row]) -> float:
    assert [row.shape for row in rows] == [row.shape for row in expected]
    return max(float(np.abs(a - b).max()) for a, b in zip(rows, expected, strict=True))


def test_pages_and_queries_in_one_job_equal_the_reference_one_by_one(loaded: Loaded) -> None:
    rows = loaded.embed(loaded.job(inputs()))
    assert all(row.dtype == np.float32 for row in rows)
    assert difference(rows, loaded.rows) <= FP32
    for row in rows:
        np.testing.assert_allclose(np.linalg.norm(row, axis=1), 1.0, atol=1e-3)
    assert loaded.model.facts.execution == "equal-length", loaded.model.facts.execution_reason


def test_alone_equals_batched(loaded: Loaded) -> None:
    rows = [loaded.embed(loaded.job([item]))[0] for item in inputs()]
    assert difference(rows, loaded.rows) <= FP32


def test_jobs_mixed_in_one_batch_in_any_order_give_the_same_rows(loaded: Loaded) -> None:
    items = loaded.model.prepare(loaded.job(inputs()))
    order = np.random.default_rng(5).permutation(2 * len(items)) % len(items)
    rows = loaded.model.launch([items[i] for i in order]).land()
    assert difference(rows, [loaded.rows[i] for i in order]) <= FP32


def test_the_cost_of_a_picture_is_known_from_its_header_alone(loaded: Loaded) -> None:
    rng = np.random.default_rng(11)
    sizes = [(1, 1), (2, 300), (199, 1), (64, 64), (65, 64), (256, 256), (257, 255), (425, 550), (999, 20)]
    sizes += [
        (int(w), int(h)) for w, h in np.exp(rng.uniform(np.log(8), np.log(900), (20, 2))) if max(w / h, h / w) < 190
    ]
    for width, height in sizes:
        batch = loaded.processor.process_images([Image.new("RGB", (width, height))])
        assert loaded.model.cost(Picture(b"", width, height)) == batch["input_ids"].shape[1], (width, height)


def test_the_cost_counts_every_token_that_the_device_sees(loaded: Loaded) -> None:
    pictures = list(map(as_picture, pages()))
    items = loaded.model.prepare(loaded.job(pictures))
    assert [item.tokens for item in items] == [loaded.model.cost(picture) for picture in pictures]
    assert [item.tokens for item in items] == [row.shape[0] for row in loaded.rows[: len(items)]]


def test_augmentation_tokens_are_part_of_a_query_and_not_of_a_document(loaded: Loaded) -> None:
    job = loaded.job(["how is a class defined"])
    query = loaded.model.prepare(job)[0]
    document = loaded.model.prepare(replace(job, prompt_name="passage"))[0]
    token = loaded.processor.query_augmentation_token
    token_id = loaded.processor.tokenizer.convert_tokens_to_ids(token)
    assert (query.token_ids[-10:] == token_id).all()
    assert (query.token_ids[:-10] == document.token_ids).all()
    expected = loaded.processor.process_texts(["how is a class defined"])["input_ids"][0].numpy()
    np.testing.assert_array_equal(document.token_ids, expected)
    with pytest.raises(UnknownPrompt):
        loaded.model.prepare(replace(job, prompt_name="no such prompt"))


def test_a_long_query_is_cut_before_its_augmentation_tokens(loaded: Loaded) -> None:
    long = "a b c d " * 4000
    job = replace(loaded.job([long]), max_tokens=40)
    item = loaded.model.prepare(job)[0]
    assert (item.tokens, item.truncated) == (40, True)
    whole = loaded.processor.process_queries([long[:400]])["input_ids"][0].numpy()
    np.testing.assert_array_equal(item.token_ids[:30], whole[:30])
    np.testing.assert_array_equal(item.token_ids[-10:], whole[-10:])
    left = loaded.model.prepare(replace(job, truncation_side="left"))[0]
    assert left.tokens == 40
    np.testing.assert_array_equal(left.token_ids[-20:], whole[-20:])
    assert loaded.model.prepare(loaded.job([long]))[0].tokens == loaded.model.facts.max_tokens
    with pytest.raises(InputTooLong, match="40"):
        loaded.model.prepare(replace(job, truncate=False))


def test_vectors_are_cut_then_normalised_and_dimensions_may_mix_in_a_batch(loaded: Loaded) -> None:
    some = [*inputs()[:2], *QUERIES[:2]]
    widths = [None, 16, 3, 128]
    items = [
        loaded.model.prepare(replace(loaded.job([item]), dimensions=width))[0]
        for item, width in zip(some, widths, strict=True)
    ]
    rows = loaded.model.launch(items).land()
    for row, whole, width in zip(rows, [*loaded.rows[:2], *loaded.rows[6:8]], widths, strict=True):
        cut = whole[:, :width]
        np.testing.assert_allclose(row, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-5)
    for wrong in (-1, 0, 129):
        with pytest.raises(InvalidDimensions):
            loaded.model.prepare(replace(loaded.job(some), dimensions=wrong))


def test_threads_may_prepare_at_the_same_time(loaded: Loaded) -> None:
    some = [*inputs()[:2], *QUERIES] * 2
    expected = loaded.model.prepare(loaded.job(some))
    found: list[list[Prepared]] = []
    problems: list[BaseException] = []

    def work() -> None:
        try:
            found.append(loaded.model.prepare(loaded.job(some)))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(found) == 3
    for items in found:
        for item, other in zip(items, expected, strict=True):
            np.testing.assert_array_equal(item.token_ids, other.token_ids)


def test_two_lanes_may_run_one_model_at_the_same_time(loaded: Loaded) -> None:
    items = loaded.model.prepare(loaded.job([*inputs()[:3], *QUERIES]))
    expected = [*loaded.rows[:3], *loaded.rows[6:]]
    found: list[float] = []

    def lane() -> None:
        for order in (slice(None), slice(None, None, -1)):
            found.append(difference(loaded.model.launch(items[order]).land(), expected[order]))

    threads = [threading.Thread(target=lane) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert max(found) <= FP32


def test_what_the_model_cannot_read_is_refused(loaded: Loaded) -> None:
    for wrong in ([1, 2, 3], Pair("a", "b")):
        with pytest.raises(UnsupportedCapability):
            loaded.model.prepare(loaded.job([wrong]))
    with pytest.raises(InvalidRequest, match="input 1 holds the token that stands for a picture"):
        loaded.model.prepare(loaded.job(["fine", f"a {loaded.processor.image_token} b"]))


def test_the_facts_name_both_modalities(loaded: Loaded) -> None:
    facts = loaded.model.facts
    assert (facts.dimensions, facts.modalities, facts.prompts) == (128, ("text", "image"), ("query", "document"))
