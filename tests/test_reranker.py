"""The contract of every cross-encoder and classifier: alone = batched = `CrossEncoder.predict`, order kept.

The reference is sentence-transformers' CrossEncoder for one input at a time, without its activation.
"""

from __future__ import annotations

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
from runtime.work import Input, Job, Pair, Picture, Row, Task
from tests.tiny_models import CLASSIFIERS, RERANKERS

# Of the largest logit of a batch: one near zero has the rounding of the large ones that it was added up from.
FP32 = 1e-5
LAYOUTS = {"deberta-v2-reranker": "buckets"}
SENTENCE = "the name of a class is bound to the object in its local scope when a statement such as return ends"
WORDS = SENTENCE.split()
LIMIT = 512
"""A limit that every model has, so that over-long inputs stay cheap."""

torch.set_num_threads(1)


def words(count: int, seed: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, count))


def hundred_pairs() -> list[Pair]:
    """Documents of all lengths under a few queries; empty, over-long on either side and both, swapped."""
    queries = ["what is a name", "", words(700, 1), "Straße 東京 🙂 a\x00b"]
    pairs = [Pair(queries[0], words(count % 60, count)) for count in range(60)]
    pairs += [Pair(query, words(count, count)) for query in queries for count in (0, 1, 30, 300, 3000)]
    pairs += [Pair(words(12, 3), SENTENCE), Pair(SENTENCE, words(12, 3)), Pair(SENTENCE, SENTENCE)]
    pairs += [Pair(words(n, 5), words(n + more, 6)) for n in (250, 251, 600) for more in (-1, 0, 1)]
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
    gaps = np.abs(np.diff(np.sort(expected[:, 0])))
    if gaps[gaps > 0].min() > 4 * np.abs(rows - expected).max():
        np.testing.assert_array_equal(np.argsort(-rows[:, 0]), np.argsort(-expected[:, 0]))
