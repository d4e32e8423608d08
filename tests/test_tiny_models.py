"""The tiny models are what other tests take them for: loadable offline, distinct, exact where they can be."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from colpali_engine import models as late_interaction
from numpy.typing import NDArray
from PIL import Image
from sentence_transformers import CrossEncoder, SentenceTransformer

from tests.tiny_models import DECODERS, EMBEDDERS, RERANKERS, make
from tests.tiny_models.bad_neighbours import POISON
from tests.tiny_models.vocabularies import english_lines

TinyModel = Callable[[str], Path]
Vectors = NDArray[np.float32]

WORDS = " ".join(english_lines()).split()
# From no word to more than any embedder takes, so that windows, truncation and padding all come into play.
MIXED_TEXTS = [" ".join(WORDS[1000 * i :][:words]) for i, words in enumerate((0, 1, 7, 30, 1500, 90, 3, 250))]
# transformers lets its convolutions read padding, so a text's vector depends on the longest text beside it.
PADDING_LEAKS = {"convbert-embedder"}
WINDOWED = {
    "modernbert-embedder": "local_attention",
    "gemma3-embedder": "sliding_window",
    "mistral-embedder": "sliding_window",
}
PAGE_CLASSES = {
    "colpali": (late_interaction.ColPali, late_interaction.ColPaliProcessor),
    "colqwen2": (late_interaction.ColQwen2, late_interaction.ColQwen2Processor),
    "colqwen2-5": (late_interaction.ColQwen2_5, late_interaction.ColQwen2_5_Processor),
    "colidefics3": (late_interaction.ColIdefics3, late_interaction.ColIdefics3Processor),
    "colmodernvbert": (late_interaction.ColModernVBert, late_interaction.ColModernVBertProcessor),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on such small matrices mostly wait for each other, and longer on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load(folder: Path, **options: Any) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True, **options)


def encode(model: SentenceTransformer, texts: list[str], batch_size: int) -> Vectors:
    vectors: Vectors = model.encode(texts, batch_size=batch_size, show_progress_bar=False)
    return vectors


def distance(one: Vectors, other: Vectors) -> float:
    return float(np.abs(one - other).max())


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embedder_loads_every_weight_it_was_saved_with(tiny_model: TinyModel, name: str) -> None:
    backbone: Any = load(tiny_model(name))[0].auto_model

    reloaded, notes = type(backbone).from_pretrained(tiny_model(name), output_loading_info=True)

    assert not any(notes.values()), notes
    state = reloaded.state_dict()
    assert all(torch.equal(weight, state[key]) for key, weight in backbone.state_dict().items())


@pytest.mark.parametrize("name", sorted(EMBEDDERS.keys() - PADDING_LEAKS))
def test_embedder_gives_a_text_the_same_vector_alone_and_in_a_padded_batch(tiny_model: TinyModel, name: str) -> None:
    model = load(tiny_model(name))
    alone = encode(model, MIXED_TEXTS, batch_size=1)

    assert np.isfinite(alone).all()
    assert distance(alone, encode(model, MIXED_TEXTS, batch_size=len(MIXED_TEXTS))) <= 1e-5


@pytest.mark.parametrize("name", sorted(PADDING_LEAKS))
def test_leaking_embedder_is_exact_in_batches_of_one_length_alone(tiny_model: TinyModel, name: str) -> None:
    model = load(tiny_model(name))
    equally_long = ["a list of strings", "a dict of strings"]

    for texts, exact in ((equally_long, True), (MIXED_TEXTS, False)):
        apart = encode(model, texts, batch_size=1)
        assert (distance(apart, encode(model, texts, batch_size=len(texts))) <= 1e-5) is exact


@pytest.mark.parametrize("name", EMBEDDERS)
def test_embedder_tells_words_and_their_order_apart(tiny_model: TinyModel, name: str) -> None:
    model = load(tiny_model(name))
    text, reordered, other = encode(
        model, ["the index of a list is zero", "a list of the index is zero", "a class and its base"], 1
    )

    assert min(distance(text, reordered), distance(text, other)) > 1e-3


@pytest.mark.parametrize("name", WINDOWED)
def test_local_attention_shows_in_the_vector_of_a_long_text(tiny_model: TinyModel, name: str) -> None:
    long_text = [" ".join(WORDS[:200])]
    unbounded = {WINDOWED[name]: 4096}

    local = encode(load(tiny_model(name)), long_text, batch_size=1)
    everywhere = encode(load(tiny_model(name), config_kwargs=unbounded), long_text, batch_size=1)

    assert distance(local, everywhere) > 1e-3


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_ends_even_a_cut_text_in_its_end_token(tiny_model: TinyModel, name: str) -> None:
    model = load(tiny_model(name))
    short, cut = (model.tokenizer(" ".join(WORDS[:words]), truncation=True).input_ids for words in (5, 2000))

    assert len(short) < len(cut) == model.max_seq_length
    assert short[-1] == cut[-1]


@pytest.mark.parametrize("name", RERANKERS)
def test_reranker_scores_a_pair_alike_alone_and_in_a_padded_batch(tiny_model: TinyModel, name: str) -> None:
    model = CrossEncoder(str(tiny_model(name)), device="cpu", local_files_only=True)
    pairs = [("what is a list", text) for text in MIXED_TEXTS]

    alone = model.predict(pairs, batch_size=1)

    assert len(set(alone)) == len(pairs)
    assert distance(alone, model.predict(pairs, batch_size=len(pairs))) <= 1e-5


# PaliGemma's processor turns a list of tensors into an array, of which numpy 2 disapproves.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("name", PAGE_CLASSES)
def test_page_model_embeds_pages_of_any_shape(tiny_model: TinyModel, name: str) -> None:
    model_class, processor_class = PAGE_CLASSES[name]
    model = model_class.from_pretrained(tiny_model(name), dtype=torch.float32).eval()
    processor = processor_class.from_pretrained(tiny_model(name))
    batch = processor.process_images([Image.new("RGB", size, "navy") for size in ((85, 110), (300, 90))])
    batch.pop("labels", None)

    with torch.inference_mode():
        rows = model(**batch)[batch["attention_mask"].bool()]

    torch.testing.assert_close(rows.norm(dim=-1), torch.ones(len(rows)))


def test_same_name_gives_the_same_weights_and_leaves_torchs_seed_alone(tiny_model: TinyModel, tmp_path: Path) -> None:
    random_state = torch.get_rng_state()
    make("bert-embedder", tmp_path)

    assert torch.equal(torch.get_rng_state(), random_state)
    first, second = (folder / "model.safetensors" for folder in (tiny_model("bert-embedder"), tmp_path))
    assert first.read_bytes() == second.read_bytes()


def test_broken_forward_claims_more_tokens_than_it_survives(tiny_model: TinyModel) -> None:
    model = load(tiny_model("broken-forward"))

    assert model.max_seq_length == 512
    assert np.isfinite(encode(model, ["a short text"], batch_size=1)).all()
    with pytest.raises(RuntimeError):
        encode(model, [" ".join(WORDS[:200])], batch_size=1)


def test_poisoned_vocabulary_fails_on_the_poison_alone(tiny_model: TinyModel) -> None:
    model = load(tiny_model("poisoned-vocabulary"))

    assert np.isfinite(encode(model, ["a long text", "a text"], batch_size=2)).all()
    with pytest.raises(IndexError):
        encode(model, [f"a {POISON} text"], batch_size=1)


def test_nan_weights_give_nan_vectors(tiny_model: TinyModel) -> None:
    assert np.isnan(encode(load(tiny_model("nan-weights")), ["a text"], batch_size=1)).all()
