"""Requests of platforms that aren't installed here, as their sources write them, and what they read in the answers.

`recorded/*.json` holds them; each value that is read is named by what it must be.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from tests.clients.references import References, Vectors, assert_close, assert_rows_close, from_data_uri

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))


def calls() -> list[Any]:
    """Every recorded request, named for the report."""
    found = []
    for file in RECORDED:
        recorded = json.loads(file.read_text(encoding="utf-8"))
        assert recorded["client"]
        assert recorded["read_from"]
        found += [pytest.param(call, id=f"{file.stem}: {call['name']}") for call in recorded["calls"]]
    return found


TYPES: dict[str, type] = {"integer": int, "string": str}
"""What is only known to be there and not 0 or empty."""
NUMBERS = {"scores", "ranked scores", "vectors", "vector", "similarities"}
EMBEDDER = "all-minilm-l6-v2"


@dataclass(frozen=True)
class Expected:
    """What a request's answer must hold; the properties are the names that the recordings use."""

    body: dict[str, Any]
    references: References
    zero: int = 0

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def query(self) -> str:
        return str(self.body["query"])

    @property
    def text(self) -> str:
        return str(self.body["text"])

    @property
    def given(self) -> list[Any]:
        found = next(self.body[name] for name in ("documents", "texts", "input", "inputs", "text") if name in self.body)
        return found if isinstance(found, list) else [found]

    @property
    def documents(self) -> list[str]:
        return [text if isinstance(text, str) else text["content"][0]["text"] for text in self.given]

    @property
    def indices(self) -> list[int]:
        return list(range(len(self.given)))

    @property
    def scores(self) -> list[float]:
        return self.references.relevances(self.query, self.documents)

    @property
    def ranked(self) -> list[tuple[int, float]]:
        """The best `top_n`; TEI's clients count the answers, and get all."""
        top_n = None if "texts" in self.body else self.body.get("top_n")
        return self.references.ranked(self.query, self.documents)[:top_n]

    @property
    def ranked_indices(self) -> list[int]:
        return [index for index, _ in self.ranked]

    @property
    def ranked_scores(self) -> list[float]:
        return [score for _, score in self.ranked]

    @property
    def ranked_documents(self) -> list[str]:
        return [self.documents[index] for index, _ in self.ranked]

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        fields = {**self.body, **self.body.get("config", {})}
        return int(fields.get("dimensions") or fields.get("output_dimension") or 384)

    @property
    def vectors(self) -> Vectors:
        cut: Vectors = self.references.vectors(self.documents)[:, : self.width]
        unit: Vectors = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        return unit

    @property
    def vector(self) -> Vectors:
        only: Vectors = self.vectors[0]
        return only

    @property
    def similarities(self) -> Vectors:
        compared = self.body["inputs"]
        return self.references.similarities(compared["source_sentence"], compared["sentences"])

    @property
    def multi_vectors(self) -> list[Vectors]:
        """Rows of texts, and of pictures as base64."""
        read = [item if isinstance(item, str) else picture_or_text(item) for item in self.given]
        return self.references.rows(self.model, read)

    @property
    def token_ids(self) -> list[list[int]]:
        return [tokens["input_ids"] for tokens in self.references.tokens(EMBEDDER, self.documents)]

    @property
    def reranker_token_ids(self) -> list[list[int]]:
        return [tokens["input_ids"] for tokens in self.references.tokens("reranker", self.documents)]

    @property
    def token_specials(self) -> list[list[bool]]:
        return [
            [bool(special) for special in tokens["special_tokens_mask"]]
            for tokens in self.references.tokens(EMBEDDER, self.documents)
        ]

    @property
    def token_starts(self) -> list[list[int | None]]:
        """In bytes, which these texts have one of a character."""
        return [
            [None if first == end else first for first, end in tokens["offset_mapping"]]
            for tokens in self.references.tokens(EMBEDDER, self.documents)
        ]

    @property
    def only_embedding(self) -> list[str]:
        return ["embedding"]

    @property
    def only_reranker(self) -> list[str]:
        return ["reranker"]

    def check(self, kind: str, found: Any) -> None:
        if kind in TYPES:
            assert type(found) is TYPES[kind]
            assert found
            return
        if kind == "vectors in base64":
            kind, found = "vectors", [np.frombuffer(base64.b64decode(text), "<f4") for text in found]
        expected = getattr(self, re.sub("[ -]", "_", kind))
        if kind in NUMBERS:
            assert_close(found, expected)
        elif kind == "multi-vectors":
            assert_rows_close(found, expected)
        elif kind.startswith("only "):
            assert list(found) == expected
        else:
            assert found == expected


def picture_or_text(item: dict[str, str]) -> str | Image.Image:
    """Jina's `{"text"}` or `{"image"}`."""
    return item["text"] if "text" in item else from_data_uri(f"data:,{item['image']}")


def read(answer: Any, path: str) -> Any:
    """The value at a path such as `results[].document.text`; `[]` stands for every item of a list."""
    steps = re.findall(r"\[\]|[^.\[\]]+", path)
    for position, step in enumerate(steps):
        if step == "[]":
            rest = ".".join(steps[position + 1 :])
            return [read(item, rest) for item in answer]
        answer = answer[step]
    return answer


@pytest.mark.parametrize("call", calls())
def test_the_answer_holds_what_the_client_reads(url: str, references: References, call: dict[str, Any]) -> None:
    content = json.dumps(call["body"]) if "body" in call else None
    method = call.get("method", "POST")
    response = httpx2.request(method, f"{url}{call['path']}", content=content, headers=call["headers"], timeout=60)
    assert response.status_code == call.get("status", 200), response.text
    assert call["reads"] or not response.content
    expected = Expected(call.get("body", {}), references)
    for path, kind in call["reads"].items():
        expected.check(kind, read(response.json(), path))
