"""The contract of every cross-encoder and classifier: alone = batched = `CrossEncoder.predict`, order kept.

The reference is sentence-transformers' CrossEncoder for one input at a time, without its activation.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder

from runtime.devices.cpu import CpuDevice
from runtime.errors import InputTooLong, UnknownPrompt, UnsupportedCapability, UnsupportedModel
from runtime.models.base import Model
from runtime.models.loading import load_model
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Pair, Picture, Task
from tests.tiny_models import CLASSIFIERS, RERANKERS

# Of the largest logit of a batch: one near zero has the rounding of the large ones that it was added up from.
FP32 = 1e-5
LAYOUTS = {"deberta-v2-reranker": "buckets"}
SENTENCE = "the name of a class is bound to the object in its local scope when a statement such as return ends"
WORDS = SENTENCE.split()
LIMIT = 256
"""A limit that every model has, so that over-long inputs stay cheap."""

torch.set_num_threads(1)


def words(count: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, count))


def hundred_pairs() -> list[Pair]:
    """Documents of all lengths under a few queries; empty, over-long on either side and both, swapped."""
    queries = ["what is a name", "", words(700, 1), "Straße 東京 🙂 a\x00b"]
    pairs = [Pair(queries[0], words(count % 60, count)) for count in range(60)]
    pairs += [Pair(query, words(count, count)) for query in queries for count in (0, 1, 30, 300, 1500)]
    pairs += [Pair(words(12, 3), SENTENCE), Pair(SENTENCE, words(12, 3)), Pair(SENTENCE, SENTENCE)]
    pairs += [Pair(words(n, 5), words(n + more, 6)) for n in (125, 126, 400) for more in (-1, 0, 1)]
    pairs += [Pair(f"query {n}", "the same document") for n in range(100 - len(pairs))]
    assert len(pairs) == 100
    return pairs


def hundred_texts() -> list[str]:
    return [words(count, count) for count in [*range(60), *range(60, 900, 21)]]


@dataclass(frozen=True)
class Loaded:
    """One tiny model in our hands and in the reference library's."""

    name: str
    model: Model
    reference: CrossEncoder
    task: Task

    def job(self, inputs: Sequence[Input]) -> Job:
        return Job(id="job", model=self.name, task=self.task, inputs=inputs)

    def run(self, job: Job) -> NDArray[np.float32]:
        return np.stack(self.model.launch(self.model.prepare(job)).land())

    def logits(self, inputs: Sequence[Input]) -> NDArray[np.float32]:
        return self.run(self.job(inputs))

    def expected(self, pairs: Sequence[Pair], prompt_name: str | None = None) -> NDArray[np.float32]:
        scores = self.reference.predict(
            [(pair.query, pair.document) for pair in pairs],
            prompt_name=prompt_name,
            batch_size=1,
            show_progress_bar=False,
            activation_fn=torch.nn.Identity(),
        )
        return np.asarray(scores, dtype=np.float32).reshape(len(pairs), -1)

    def expected_of_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with torch.inference_mode():
            rows = [self.reference(self.reference.preprocess([text]))["scores"][0] for text in texts]
        return torch.stack(rows).numpy()


@pytest.fixture(scope="module", params=[*RERANKERS, *CLASSIFIERS])
def loaded(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Loaded:
    return load(request.param, tiny_model(request.param))


def load(name: str, folder: Path) -> Loaded:
    task = Task.CLASSIFY if name in CLASSIFIERS else Task.RERANK
    reference = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    reference.max_seq_length = LIMIT
    spec = ModelSpec(id=name, source=str(folder), max_length=LIMIT)
    return Loaded(name, load_model(spec, task, folder, CpuDevice(lanes=2)), reference, task)


def difference(rows: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Largest difference, relative to the largest logit."""
    assert rows.shape == expected.shape
    return float(np.abs(rows - expected).max() / np.abs(expected).max())


def test_a_hundred_pairs_equal_the_reference_one_by_one_and_rank_alike(loaded: Loaded) -> None:
    pairs = hundred_pairs()
    rows = loaded.logits(pairs)
    expected = loaded.expected(pairs)
    assert rows.dtype == np.float32
    assert difference(rows, expected) <= FP32
    ranked = expected[np.argsort(-rows[:, 0]), 0]
    assert (np.diff(ranked) <= 2 * FP32 * np.abs(expected).max()).all()


def test_alone_equals_batched_and_the_order_of_the_batch_is_kept(loaded: Loaded) -> None:
    pairs = hundred_pairs()[::3]
    rows = loaded.logits(pairs)
    assert difference(np.stack([loaded.logits([pair])[0] for pair in pairs]), rows) <= FP32
    shuffled = np.random.default_rng(3).permutation(len(pairs))
    assert difference(loaded.logits([pairs[place] for place in shuffled]), rows[shuffled]) <= FP32


def test_who_is_the_query_matters(loaded: Loaded) -> None:
    pairs = hundred_pairs()[5:20]
    swapped = [Pair(pair.document, pair.query) for pair in pairs]
    assert (np.abs(loaded.logits(pairs) - loaded.logits(swapped)).max(axis=1) > 1e-4).all()


def test_the_fast_path_is_taken_where_the_architecture_allows_it(loaded: Loaded) -> None:
    facts = loaded.model.facts
    assert facts.execution == LAYOUTS.get(loaded.name, "packed"), facts.execution_reason
    if facts.execution == "packed":
        assert "recorded forward" in facts.execution_reason
        assert "recorded forward not used" not in facts.execution_reason


def test_two_lanes_may_run_one_model_at_the_same_time(loaded: Loaded) -> None:
    pairs = hundred_pairs()[::5]
    expected = loaded.logits(pairs)
    found: list[NDArray[np.float32]] = []

    def lane() -> None:
        found.extend(loaded.logits(pairs) for _ in range(2))

    threads = [threading.Thread(target=lane) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert max(difference(rows, expected) for rows in found) <= FP32


def test_prompts_are_applied_as_the_reference_does(loaded: Loaded) -> None:
    pairs = hundred_pairs()[40:50]
    plain = loaded.logits(pairs)
    for name in loaded.reference.prompts:
        prompted = loaded.run(replace(loaded.job(pairs), prompt_name=name))
        assert difference(prompted, loaded.expected(pairs, name)) <= FP32
        assert (difference(prompted, plain) > 1e-3) is (name == "code")
    with pytest.raises(UnknownPrompt):
        loaded.model.prepare(replace(loaded.job(pairs), prompt_name="no such prompt"))


def test_a_pair_beyond_the_limit_is_cut_or_refused_with_both_numbers(loaded: Loaded) -> None:
    fitting, long = Pair("a query", "a document"), Pair(words(20, 1), words(900, 2))
    items = loaded.model.prepare(loaded.job([fitting, long]))
    assert [item.truncated for item in items] == [False, True]
    assert items[1].tokens == LIMIT == loaded.model.facts.max_tokens
    with pytest.raises(InputTooLong, match=rf"input 1 has (at least )?\d{{3,}} tokens; the limit is {LIMIT}"):
        loaded.model.prepare(replace(loaded.job([fitting, long]), truncate=False))
    assert not loaded.model.prepare(replace(loaded.job([fitting]), truncate=False))[0].truncated
    assert loaded.model.prepare(replace(loaded.job([long]), max_tokens=200))[0].tokens == 200


def test_a_part_may_have_a_limit_of_its_own(loaded: Loaded) -> None:
    whole, bare = loaded.model.prepare(loaded.job([Pair(words(40, 1), words(80, 2)), Pair("", "")]))
    job = replace(loaded.job([Pair(words(40, 1), words(80, 2))]), max_query_tokens=7, max_document_tokens=11)
    cut = loaded.model.prepare(job)[0]
    assert cut.truncated
    # A template's own tokens may merge with a text's first or last one.
    assert abs(cut.tokens - bare.tokens - 7 - 11) <= 4
    assert cut.tokens < whole.tokens
    roomy = loaded.model.prepare(replace(job, max_query_tokens=400, max_document_tokens=400))[0]
    assert not roomy.truncated
    np.testing.assert_array_equal(roomy.token_ids, whole.token_ids)


def test_the_head_names_its_labels_and_its_activation(loaded: Loaded) -> None:
    head = loaded.model.facts.head
    assert head is not None
    assert head.labels == {**RERANKERS, **CLASSIFIERS}[loaded.name].labels
    several = {"multi-class-classifier": "softmax", "multi-label-classifier": "sigmoid"}
    assert head.activation == several.get(loaded.name, "sigmoid")
    assert loaded.model.facts.dimensions is None


def test_what_is_no_text_and_no_pair_is_refused(loaded: Loaded) -> None:
    for wrong in ([1, 2], Picture(b"", 1, 1)):
        with pytest.raises(UnsupportedCapability):
            loaded.model.prepare(loaded.job([wrong]))
    with pytest.raises(UnsupportedCapability):
        loaded.model.prepare(replace(loaded.job(["a text"]), task=Task.RERANK))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_single_texts_are_classified_as_the_reference_does(name: str, tiny_model: Callable[[str], Path]) -> None:
    loaded = load(name, tiny_model(name))
    texts = hundred_texts()
    rows = loaded.logits(texts)
    assert difference(rows, loaded.expected_of_texts(texts)) <= FP32
    mixed = loaded.logits([Pair("a query", "a document"), texts[5], Pair("", texts[9])])
    assert difference(mixed[1:2], rows[5:6]) <= FP32
    assert difference(mixed[::2], loaded.expected([Pair("a query", "a document"), Pair("", texts[9])])) <= FP32


def test_a_model_with_several_labels_ranks_nothing(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("multi-class-classifier")
    with pytest.raises(UnsupportedModel, match="3 labels"):
        load_model(ModelSpec(id="m", source=str(folder)), Task.RERANK, folder, CpuDevice(lanes=1))


def test_an_activation_that_the_checkpoint_names_is_its_own(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    reference = CrossEncoder(str(tiny_model("bert-reranker")), device="cpu", activation_fn=torch.nn.Identity())
    reference.save_pretrained(str(tmp_path), create_model_card=False)
    head = load("bert-reranker", tmp_path).model.facts.head
    assert head is not None
    assert head.activation == "identity"


def test_a_reranker_whose_weights_are_broken_is_refused(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    reference = CrossEncoder(str(tiny_model("bert-reranker")), device="cpu")
    with torch.no_grad():
        next(reference.parameters()).fill_(float("nan"))
    reference.save_pretrained(str(tmp_path), create_model_card=False)
    with pytest.raises(UnsupportedModel, match="its weights are broken"):
        load("bert-reranker", tmp_path)


def test_a_template_that_carries_no_pair_is_told_at_load(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("qwen2-score-reranker"), folder)
    template = "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(UnsupportedModel, match="chat template"):
        load("qwen2-score-reranker", folder)
    classifier = load_model(ModelSpec(id="m", source=str(folder)), Task.CLASSIFY, folder, CpuDevice(lanes=1))
    job = Job(id="job", model="m", task=Task.CLASSIFY, inputs=["a text"])
    assert classifier.prepare(job)[0].tokens > 0
    with pytest.raises(UnsupportedCapability):
        classifier.prepare(replace(job, inputs=[Pair("a", "b")]))
