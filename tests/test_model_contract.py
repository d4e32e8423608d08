"""The contract of every text embedder, on 20 architectures: alone = batched = the reference library, order kept.

The reference is `SentenceTransformer.encode` for one text at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from runtime.devices.cpu import CpuDevice
from runtime.errors import InputTooLong, InvalidDimensions, InvalidRequest, UnknownPrompt, UnsupportedModel
from runtime.models.base import Model
from runtime.models.loading import load_model
from runtime.registry import ModelSpec
from runtime.work import Job, Prepared, Row, Task
from tests.tiny_models import EMBEDDERS
from tests.tiny_models.bad_neighbours import NAN_WORD

FP32 = 1e-5
OTHER_LAYOUTS = {
    "mpnet-embedder": "buckets",
    "deberta-v2-embedder": "buckets",
    "roformer-embedder": "buckets",
    "t5-embedder": "buckets",
    "convbert-embedder": "equal-length",  # its convolution sees the padding
}

# Tiny models gain nothing from a second thread, and beside a busy program each barrier costs a time slice.
torch.set_num_threads(1)

SENTENCE = "the name of a class is bound to the object in its local scope when a statement such as return ends"
WORDS = SENTENCE.split()


def texts() -> list[str]:
    """Lengths from nothing to beyond every tiny model's window and limit, some equal, some odd."""
    rng = np.random.default_rng(7)
    counts = [0, 1, 1, 2, 3, 5, 8, 8, 8, 13, 21, 40, 40, 90, 180, 700]
    made = [" ".join(rng.choice(WORDS, count)) for count in counts]
    return [*made, "   ", "\n", "naïve café 東京 🙂", "a\x00b", "UPPER lower"]


@dataclass(frozen=True)
class Loaded:
    """One tiny model in our hands and in the reference library's."""

    name: str
    model: Model
    reference: SentenceTransformer

    def job(self, inputs: list[str]) -> Job:
        return Job(id="job", model=self.name, task=Task.EMBED, inputs=inputs)

    def embed(self, job: Job) -> list[Row]:
        return self.model.launch(self.model.prepare(job)).land()

    def expected(self, inputs: list[str], prompt_name: str | None = None) -> list[Row]:
        return [self.reference.encode(text, prompt_name=prompt_name, show_progress_bar=False) for text in inputs]


@pytest.fixture(scope="module", params=sorted(EMBEDDERS))
def loaded(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Loaded:
    folder = tiny_model(request.param)
    reference = SentenceTransformer(str(folder), device="cpu")
    model = load_model(ModelSpec(id=request.param, source=str(folder)), Task.EMBED, folder, CpuDevice(lanes=2))
    reference.max_seq_length = model.facts.max_tokens
    return Loaded(request.param, model, reference)


def difference(rows: list[Row], expected: list[Row]) -> float:
    """Largest difference, relative to the length of the expected vector."""
    assert [row.shape for row in rows] == [row.shape for row in expected]
    return max(float(np.abs(a - b).max() / np.linalg.norm(b)) for a, b in zip(rows, expected, strict=True))


def test_a_batch_of_all_lengths_equals_the_reference_one_by_one(loaded: Loaded) -> None:
    rows = loaded.embed(loaded.job(texts()))
    assert all(row.dtype == np.float32 for row in rows)
    assert difference(rows, loaded.expected(texts())) <= FP32


def test_in_bf16_a_batch_is_near_the_fp32_reference(loaded: Loaded, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(loaded.name)
    spec = ModelSpec(id=loaded.name, source=str(folder), dtype="bfloat16")
    half = replace(loaded, model=load_model(spec, Task.EMBED, folder, CpuDevice(lanes=1)))
    pairs = zip(half.embed(half.job(texts())), loaded.expected(texts()), strict=True)
    assert min(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairs) >= 0.999
    assert half.model.facts.execution == loaded.model.facts.execution, half.model.facts.execution_reason


def test_alone_equals_batched(loaded: Loaded) -> None:
    rows = loaded.embed(loaded.job(texts()))
    alone = [loaded.embed(loaded.job([text]))[0] for text in texts()]
    assert difference(rows, alone) <= FP32


def test_the_order_of_the_batch_is_kept(loaded: Loaded) -> None:
    shuffled = list(np.random.default_rng(3).permutation(texts()))
    forward = dict(zip(texts(), loaded.embed(loaded.job(texts())), strict=True))
    rows = loaded.embed(loaded.job(shuffled))
    assert difference(rows, [forward[text] for text in shuffled]) <= FP32


def test_the_fast_path_is_taken_where_the_architecture_allows_it(loaded: Loaded) -> None:
    expected = OTHER_LAYOUTS.get(loaded.name, "packed")
    assert loaded.model.facts.execution == expected, loaded.model.facts.execution_reason


def test_two_lanes_may_run_one_model_at_the_same_time(loaded: Loaded) -> None:
    expected = loaded.embed(loaded.job(texts()))
    found: list[list[Row]] = []

    def lane() -> None:
        for _ in range(3):
            found.append(loaded.embed(loaded.job(texts())))

    threads = [threading.Thread(target=lane) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert max(difference(rows, expected) for rows in found) <= FP32


def test_prompts_are_applied_as_the_reference_does(loaded: Loaded) -> None:
    some = texts()[3:12]
    for name in loaded.reference.prompts:
        rows = loaded.embed(replace(loaded.job(some), prompt_name=name))
        assert difference(rows, loaded.expected(some, name)) <= FP32
    with pytest.raises(UnknownPrompt):
        loaded.model.prepare(replace(loaded.job(some), prompt_name="no such prompt"))


def test_items_with_and_without_a_prompt_share_a_batch(loaded: Loaded) -> None:
    some = texts()[3:9]
    names = list(loaded.reference.prompts)
    plain = loaded.model.prepare(loaded.job(some))
    prompted = loaded.model.prepare(replace(loaded.job(some), prompt_name=names[0]))
    mixed: list[Prepared] = [item for pair in zip(plain, prompted, strict=True) for item in pair]
    rows = loaded.model.launch(mixed).land()
    assert difference(rows[::2], loaded.expected(some)) <= FP32
    assert difference(rows[1::2], loaded.expected(some, names[0])) <= FP32


def test_vectors_are_cut_then_normalised_and_dimensions_may_mix_in_a_batch(loaded: Loaded) -> None:
    some = texts()[3:9]
    full = loaded.embed(loaded.job(some))
    items = [
        loaded.model.prepare(replace(loaded.job([text]), dimensions=dimensions))[0]
        for text, dimensions in zip(some, [None, 8, 3, None, 8, 1], strict=True)
    ]
    rows = loaded.model.launch(items).land()
    assert [row.shape[0] for row in rows] == [full[0].shape[0], 8, 3, full[0].shape[0], 8, 1]
    for row, whole in zip(rows, full, strict=True):
        cut = whole[: row.shape[0]]
        expected = whole if row.shape == whole.shape else cut / np.linalg.norm(cut)
        np.testing.assert_allclose(row, expected, atol=1e-5)
    for wrong in (-1, 0, full[0].shape[0] + 1):
        with pytest.raises(InvalidDimensions):
            loaded.model.prepare(replace(loaded.job(some), dimensions=wrong))


def test_normalisation_can_be_forced_on_and_off(loaded: Loaded) -> None:
    some = texts()[3:9]
    raw = loaded.embed(replace(loaded.job(some), normalize=False))
    unit = loaded.embed(replace(loaded.job(some), normalize=True))
    for whole, row in zip(raw, unit, strict=True):
        np.testing.assert_allclose(row, whole / np.linalg.norm(whole), atol=1e-5)


def test_an_input_at_below_and_above_the_limit_is_cut_as_the_reference_cuts_it(loaded: Loaded) -> None:
    limit = loaded.model.facts.max_tokens
    long = " ".join(WORDS * (limit // 4))
    item = loaded.model.prepare(loaded.job([long]))[0]
    assert (item.tokens, item.truncated) == (limit, True)
    assert difference(loaded.embed(loaded.job([long])), loaded.expected([long])) <= FP32
    with pytest.raises(InputTooLong, match=str(limit)):
        loaded.model.prepare(replace(loaded.job(["short", long]), truncate=False))
    assert loaded.model.prepare(replace(loaded.job(["short"]), truncate=False))[0].truncated is False


def test_a_smaller_limit_keeps_the_special_tokens(loaded: Loaded) -> None:
    long = " ".join(WORDS * 3)
    short = loaded.model.prepare(replace(loaded.job([long]), max_tokens=12))[0]
    whole = loaded.model.prepare(loaded.job([long]))[0]
    assert short.tokens == 12
    empty = loaded.model.prepare(loaded.job([""]))[0]
    if empty.tokens == 2:
        assert (short.token_ids[0], short.token_ids[-1]) == (whole.token_ids[0], whole.token_ids[-1])


def test_the_left_end_can_be_cut_instead(loaded: Loaded) -> None:
    long = " ".join(WORDS * 4)
    left = loaded.model.prepare(replace(loaded.job([long]), max_tokens=16, truncation_side="left"))[0]
    whole = loaded.model.prepare(loaded.job([long]))[0]
    assert left.tokens == 16
    np.testing.assert_array_equal(left.token_ids[-8:], whole.token_ids[-8:])


def test_the_models_own_token_ids_give_the_texts_vector(loaded: Loaded) -> None:
    some = texts()[3:9]
    items = loaded.model.prepare(loaded.job(some))
    by_ids = replace(loaded.job([]), inputs=[item.token_ids.tolist() for item in items])
    assert difference(loaded.embed(by_ids), loaded.embed(loaded.job(some))) <= FP32
    for wrong in ([-1], [10**9], []):
        with pytest.raises(InvalidRequest):
            loaded.model.prepare(replace(loaded.job([]), inputs=[wrong]))


def test_bad_neighbours_are_told_apart_from_good_ones(tiny_model: Callable[[str], Path]) -> None:
    device = CpuDevice(lanes=1)
    folder = tiny_model("broken-forward")
    model = load_model(ModelSpec(id="broken-forward", source=str(folder)), Task.EMBED, folder, device)
    assert model.facts.max_tokens == 64, "the position table bounds the input, whatever the config claims"
    job = Job(id="job", model="m", task=Task.EMBED, inputs=[" ".join(WORDS * 20)])
    assert np.isfinite(model.launch(model.prepare(job)).land()[0]).all()
    folder = tiny_model("nan-weights")
    with pytest.raises(UnsupportedModel, match="its weights are broken"):
        load_model(ModelSpec(id="nan-weights", source=str(folder)), Task.EMBED, folder, device)
    folder = tiny_model("nan-word")
    model = load_model(ModelSpec(id="nan-word", source=str(folder)), Task.EMBED, folder, device)
    good, bad = model.launch(model.prepare(replace(job, inputs=["a text", NAN_WORD]))).land()
    assert np.isfinite(good).all()
    assert not np.isfinite(bad).all()


def test_a_folder_that_is_no_text_embedder_is_refused(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("colqwen2")
    with pytest.raises((UnsupportedModel, ValueError, KeyError, OSError)):
        load_model(ModelSpec(id="colqwen2", source=str(folder)), Task.EMBED, folder, CpuDevice(lanes=1))


def test_a_batch_tells_what_it_computes_for_nothing(loaded: Loaded) -> None:
    items = loaded.model.prepare(loaded.job(["word " * words for words in (3, 4, 17, 18, 19, 60)]))
    padding = loaded.model.launch(items).padding_tokens
    if OTHER_LAYOUTS.get(loaded.name) == "buckets":
        assert 0 < padding <= 0.1 * sum(item.tokens for item in items)
    else:
        assert padding == 0
