"""Over HTTP with real page-image models: every row is colpali-engine's for that page alone, and no picture hurts."""

from __future__ import annotations

import base64
import io
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from colpali_engine import models
from numpy.typing import NDArray
from PIL import Image, ImageOps
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.util import maxsim as maxsim_of_library

from scripts.random_page_model import NAME
from tests.pages import QUERIES, as_picture, pages
from tests.pictures import encodings, hostile
from tests.readme import README
from tests.server.conftest import ROOT, Server, Shared

FP32 = 1e-5
RELATIVE = 1e-4
PIPED = re.compile(r"^python3 -c '([^']*)' ([^|\n]*) \|\ncurl -s http://127.0.0.1:7997(\S+) .* -d @-$", re.MULTILINE)
"""Of the README: a program that prints a body, its arguments, and where the body goes."""
MOST_GROWTH_BYTES = 100 * 2**20
FAMILIES = {"colpali": "ColPali", "colqwen2": "ColQwen2"}

Matrix = NDArray[np.float32]


def alone(name: str, folder: Path) -> Iterator[Matrix]:
    """colpali-engine's rows of the six pages and the six queries, one by one."""
    network = getattr(models, FAMILIES[name]).from_pretrained(str(folder), dtype=torch.float32).eval()
    processor = getattr(models, f"{FAMILIES[name]}Processor").from_pretrained(str(folder))
    for item in (*pages(), *QUERIES):
        batch = processor.process_queries([item]) if isinstance(item, str) else processor.process_images([item])
        batch.pop("labels", None)
        if name == "colpali":
            batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
        with torch.inference_mode():
            yield np.asarray(network(**batch)[0].numpy())


def as_uri(data: bytes) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(data).decode()


def decoded(item: dict[str, Any]) -> Matrix:
    assert item["dtype"] == "float32"
    return np.frombuffer(base64.b64decode(item["embedding"]), "<f4").reshape(item["shape"])


@dataclass
class Case:
    """A server with two families, a random ColPali and a ColBERT, and what the libraries say."""

    server: Server
    expected: dict[str, list[Matrix]]
    colbert: MultiVectorEncoder

    def post(self, path: str, **body: Any) -> Any:
        response = self.server.client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def embed(self, model: str, pictures: Sequence[bytes]) -> list[Matrix]:
        inputs = list(map(as_uri, pictures))
        body = {"model": model, "input": inputs, "modality": "image", "encoding_format": "base64"}
        return [decoded(item) for item in self.post("/v1/embeddings", **body)["data"]]

    def ask(self, model: str, queries: Sequence[str]) -> list[Matrix]:
        body = {"model": model, "input": list(queries), "prompt_name": "query", "encoding_format": "base64"}
        return [decoded(item) for item in self.post("/embeddings", **body)["data"]]


@pytest.fixture(scope="module")
def case(shared: Shared) -> Case:
    expected = {name: list(alone(name, shared.folders[name])) for name in FAMILIES}
    colbert = MultiVectorEncoder(str(shared.folders["colbert"]), device="cpu", local_files_only=True)
    return Case(shared.server, expected, colbert)


def png(page: Image.Image) -> bytes:
    return as_picture(page).data


def assert_equal(rows: Sequence[Matrix], expected: Sequence[Matrix]) -> None:
    assert [row.shape for row in rows] == [row.shape for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        assert np.abs(row - wanted).max() <= FP32
        np.testing.assert_allclose(np.linalg.norm(row, axis=1), 1.0, atol=1e-3)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_rows_equal_the_library_s_in_one_request_and_alone(case: Case, name: str) -> None:
    pictures, expected = list(map(png, pages())), case.expected[name]
    assert_equal(case.embed(name, pictures), expected[:6])
    assert_equal(case.ask(name, QUERIES), expected[6:])
    assert_equal([case.embed(name, [picture])[0] for picture in pictures], expected[:6])
    assert_equal([case.ask(name, [query])[0] for query in QUERIES], expected[6:])


def test_rows_equal_the_library_s_where_all_are_mixed_at_once(case: Case) -> None:
    calls: list[tuple[str, int]] = [(name, index) for name in FAMILIES for index in range(12)] * 2
    random.Random(7).shuffle(calls)
    pictures = list(map(png, pages()))

    def call(name: str, index: int) -> Matrix:
        if index < 6:
            return case.embed(name, [pictures[index]])[0]
        return case.ask(name, [QUERIES[index - 6]])[0]

    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(call, *zip(*calls, strict=True)))
    assert_equal(rows, [case.expected[name][index] for name, index in calls])


def maxsim(query: Matrix, document: Matrix) -> float:
    return float((query @ document.T).max(axis=1).sum())


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_rerank_maxsim_and_map_are_those_of_the_model_s_own_rows(case: Case, name: str) -> None:
    uris, query = [as_uri(png(page)) for page in pages()], "revenue by quarter"
    rows = case.embed(name, list(map(png, pages())))
    [asked] = case.ask(name, [query])
    expected = [maxsim(asked, row) for row in rows]
    order = sorted(range(6), key=lambda index: -expected[index])

    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body = {"model": name, "query": query, "documents": [{"image": uri} for uri in uris]}
        results = case.post(path, **body)["results"]
        assert [result["index"] for result in results] == order
        found = {result["index"]: result["relevance_score"] for result in results}
        np.testing.assert_allclose([found[index] for index in range(6)], expected, rtol=RELATIVE)
    data = case.post("/score", model=name, queries=query, documents=[{"image": uri} for uri in uris])["data"]
    np.testing.assert_allclose([item["score"] for item in data], expected, rtol=RELATIVE)

    vectors = [{"embedding": base64.b64encode(row.tobytes()).decode(), "shape": row.shape} for row in (asked, *rows)]
    results = case.post("/v1/maxsim", query=vectors[0], documents=vectors[1:])["results"]
    assert [result["index"] for result in results] == order
    np.testing.assert_allclose([result["relevance_score"] for result in results], np.sort(expected)[::-1], rtol=1e-4)

    answer = case.post("/v1/similarity_map", model=name, query=query, image=uris[3])
    assert answer["score"] == pytest.approx(expected[3], rel=RELATIVE)
    assert answer["shape"] == [len(asked), *answer["grid"]]
    assert len(answer["tokens"]) == len(asked)
    assert (answer["width"], answer["height"]) == pages()[3].size


def test_texts_are_documents_beside_pages(case: Case) -> None:
    texts = ["how is a class defined", "a table of the parts"]
    page = as_uri(png(pages()[0]))
    body = {"model": "colqwen2", "query": "class", "documents": [*texts, {"image": page}]}
    found = {item["index"]: item["relevance_score"] for item in case.post("/v1/rerank", **body)["results"]}
    made = case.post("/v1/embeddings", model="colqwen2", input=texts, prompt_name="document", encoding_format="base64")[
        "data"
    ]
    rows = [*map(decoded, made), case.expected["colqwen2"][0]]
    [query] = case.ask("colqwen2", ["class"])
    np.testing.assert_allclose([found[index] for index in range(3)], [maxsim(query, row) for row in rows], rtol=1e-4)


def test_a_text_model_s_scores_equal_the_library_s(case: Case) -> None:
    texts = ["what is a class", "...", "a name, a value; a name. (a name)", *(f"word {n} " * n for n in range(1, 30))]
    query = "the value of a name"
    encode = case.colbert.encode_document
    documents = [torch.from_numpy(encode(text, convert_to_numpy=True, show_progress_bar=False)) for text in texts]
    asked = torch.from_numpy(case.colbert.encode_query(query, convert_to_numpy=True, show_progress_bar=False))
    expected = maxsim_of_library([asked], documents)[0].numpy()
    results = case.post("/v1/rerank", model="colbert", query=query, documents=texts)["results"]
    found = {item["index"]: item["relevance_score"] for item in results}
    np.testing.assert_allclose([found[index] for index in range(len(texts))], expected, rtol=RELATIVE)
    assert [item["index"] for item in results] == np.argsort(-expected, kind="stable").tolist()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_eight_encodings_of_one_picture_are_one_picture(case: Case, name: str) -> None:
    canonical, variants = encodings()
    [expected] = case.embed(name, [canonical])
    [otherwise] = case.embed(name, [png(ImageOps.invert(pages()[2]))])
    assert (otherwise * expected).sum(axis=1).min() < 0.9, "the model looks"
    for kind, data in variants.items():
        [rows] = case.embed(name, [data])
        assert rows.shape == expected.shape, kind
        least = float((rows * expected).sum(axis=1).min())
        assert least >= (0.98 if "jpeg" in kind else 0.99), (kind, least)


def test_hostile_pictures_cost_a_moment_and_no_memory(case: Case) -> None:
    process = psutil.Process(case.server.process.pid)
    model = f"demo/{NAME}"
    good = [png(page) for page in pages()]
    case.embed(model, good)
    before = process.memory_info().rss
    for kind, uri in hostile().items():
        body = {"model": model, "input": [uri], "modality": "image", "encoding_format": "base64"}
        response = case.server.client.post("/v1/embeddings", json=body)
        assert response.status_code == 200 or 400 <= response.status_code < 500, (kind, response.text)
        assert len(response.content) < 2048 or response.status_code == 200, kind
    for index in range(20):
        [rows] = case.embed(model, [good[index % 6]])
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-3)
    assert process.memory_info().rss - before < MOST_GROWTH_BYTES


def test_the_readmes_examples_of_pages_work_as_they_stand(case: Case) -> None:
    """Their program is run, and what it prints is sent as the `curl` behind it sends it."""
    answers = {}
    for program, arguments, path in PIPED.findall(README):
        command = [sys.executable, "-c", program, *shlex.split(arguments)]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        answer = case.server.client.post(path, content=printed, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        answers[path] = answer.json()
    assert answers.keys() == {"/v1/similarity_map", "/v1/embeddings"}
    assert f"`{answers['/v1/embeddings']['data'][0]['shape']}` here" in README
    assert len(answers["/v1/similarity_map"]["shape"]) == 3


def test_the_example_ranks_pages_and_draws_where(case: Case, tmp_path: Path) -> None:
    pdf, drawn = tmp_path / "two.pdf", tmp_path / "heatmap.png"
    data = io.BytesIO()
    sheets = [page.resize((300, 400)) for page in pages()[:2]]
    sheets[0].save(data, format="PDF", save_all=True, append_images=sheets[1:])
    pdf.write_bytes(data.getvalue())
    for arguments, count in (([], 3), ([str(pdf), "--query", "which page"], 2)):
        command = [sys.executable, str(ROOT / "examples/retrieve_pages.py"), *arguments, "--url", case.server.url]
        printed = subprocess.run([*command, "--heatmap", str(drawn)], capture_output=True, text=True, check=True)
        first, *ranked, last = printed.stdout.splitlines()
        assert first.startswith(f"{count} pages, ")
        scores = [float(line.split()[0]) for line in ranked]
        assert scores == sorted(scores, reverse=True)
        assert sorted(line.split("  ")[-1] for line in ranked) == [f"page {n}" for n in range(1, count + 1)]
        assert last.endswith(str(drawn))
        with Image.open(drawn) as picture:
            colours = np.asarray(picture).reshape(-1, 3)
            assert (colours[:, 0] > colours[:, 1]).any(), "something is red"
        drawn.unlink()
