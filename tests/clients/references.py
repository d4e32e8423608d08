"""What the served models' own libraries compute for each input alone."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModel, AutoModelForSequenceClassification, AutoProcessor, AutoTokenizer

from runtime.registry import ModelSpec
from runtime.sources import resolve_source
from tests.server.conftest import MINILM
from tests.test_image_text import plain
from tests.test_late_interaction import CLASSES, alone

FP32 = 1e-5
MAX_LENGTH = 512
"""Of the tiny models for texts."""

QUERY = "how do I reset my password"
DOCUMENTS = [
    "Invoices are sent on the first working day of each month.",
    "Choose Forgot password on the sign-in page and follow the link in the mail.",
    "",
    "naïve café 東京 🙂",
    "password " * 700,
]
LABELS = ("entailment", "neutral", "contradiction")

Vectors = NDArray[np.float32]


def assert_close(found: ArrayLike, expected: ArrayLike) -> None:
    """Equal within what is promised for fp32."""
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64), atol=FP32, rtol=0)


def assert_close_by_length(found: ArrayLike, expected: ArrayLike) -> None:
    """Vectors `(items, dim)` of any length, equal within what is promised of it."""
    lengths = np.linalg.norm(np.atleast_2d(np.asarray(expected, np.float64)), axis=1, keepdims=True)
    assert_close(np.atleast_2d(np.asarray(found, np.float64)) / lengths, np.atleast_2d(expected) / lengths)


def assert_rows_close(found: Sequence[ArrayLike], expected: Sequence[Vectors]) -> None:
    """Each multi-vector has the reference's rows, and no other."""
    assert len(found) == len(expected)
    for rows, wanted in zip(found, expected, strict=True):
        assert_close(rows, wanted)


def assert_ranked(found: Sequence[tuple[int, float]], expected: Sequence[tuple[int, float]]) -> None:
    """The same documents in the same order with the same scores."""
    assert [index for index, _ in found] == [index for index, _ in expected]
    assert_close([score for _, score in found], [score for _, score in expected])


@dataclass(frozen=True)
class References:
    """The models by their served ids."""

    folders: dict[str, Path]

    def vectors(self, texts: Sequence[str], normalize: bool = True) -> Vectors:
        """`SentenceTransformer.encode` of the embedder; without `normalize`, of its modules before that one."""
        model = _embedder()
        modules = list(model) if normalize else list(model)[:-1]
        bare = SentenceTransformer(modules=modules, device="cpu")
        return np.stack([np.asarray(bare.encode(text, show_progress_bar=False), np.float32) for text in texts])

    def relevances(self, query: str = QUERY, documents: Sequence[str] = DOCUMENTS) -> list[float]:
        """`CrossEncoder.predict` of the reranker, with its own activation."""
        model, pairs = _reranker(self.folders["reranker"]), [(query, document) for document in documents]
        return [float(score) for score in model.predict(pairs, batch_size=1, show_progress_bar=False)]

    def ranked(self, query: str = QUERY, documents: Sequence[str] = DOCUMENTS) -> list[tuple[int, float]]:
        """Each document's index and relevance, the best first."""
        return sorted(enumerate(self.relevances(query, documents)), key=lambda pair: -pair[1])

    def classes(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Each text's labels with their shares, by transformers' sequence classification."""
        folder = self.folders["classifier"]
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        network: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        found = []
        for text in texts:
            with torch.inference_mode():
                batch = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
                shares = network(**batch).logits[0].softmax(-1).tolist()
            found.append(dict(zip(LABELS, shares, strict=True)))
        return found

    def similarities(self, source: str, sentences: Sequence[str]) -> Vectors:
        """The cosine of each sentence's vector to the source's."""
        first, *others = self.vectors([source, *sentences])
        found: Vectors = np.stack(others) @ first
        return found

    def tokens(self, name: str, texts: Sequence[str]) -> list[Any]:
        """What the model's own tokenizer makes of each text: ids, places, which are special."""
        folder = self.folders.get(name) or resolve_source(ModelSpec(id=name, source=MINILM))
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        return [tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True) for text in texts]

    def picture_vectors(self, items: Sequence[str | Image.Image]) -> Vectors:
        """CLIP's vectors of length 1 of texts and pictures."""
        network, processor = _clip(self.folders["clip"])
        return np.stack([plain(network, processor, item) for item in items])

    def rows(self, name: str, items: Sequence[str | Image.Image]) -> list[Vectors]:
        """colpali-engine's multi-vectors of queries and pages."""
        network, processor = _page_model(name, self.folders[name])
        return [np.asarray(alone(network, processor, item), np.float32) for item in items]


def as_data_uri(picture: Image.Image) -> str:
    """The picture without loss."""
    data = io.BytesIO()
    picture.save(data, format="PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def from_data_uri(uri: str) -> Image.Image:
    """The picture that a client sent."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")


@cache
def _embedder() -> SentenceTransformer:
    folder = resolve_source(ModelSpec(id="all-minilm-l6-v2", source=MINILM))
    return SentenceTransformer(str(folder), device="cpu")


@cache
def _reranker(folder: Path) -> CrossEncoder:
    model: CrossEncoder = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    model.max_seq_length = MAX_LENGTH
    return model


@cache
def _clip(folder: Path) -> tuple[Any, Any]:
    return AutoModel.from_pretrained(str(folder)).eval(), AutoProcessor.from_pretrained(str(folder))


@cache
def _page_model(name: str, folder: Path) -> tuple[Any, Any]:
    from colpali_engine import models

    network = getattr(models, CLASSES[name]).from_pretrained(str(folder), dtype=torch.float32).eval()
    return network, getattr(models, f"{CLASSES[name]}Processor").from_pretrained(str(folder))
