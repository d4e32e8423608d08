"""What is measured: a server's address, the request bytes it gets, and whether its answers are right."""

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from scripts.bench_load.connection import Answer

# Parsing every answer in full would cost the cores that the server needs; the rest are counted.
FULL_CHECK_EVERY = 16


class PreparedRequest(NamedTuple):
    """A request's bytes, and how many vectors or scores its answer must hold."""

    payload: bytes
    texts: int
    ranks: bool = False
    """The answer holds scores."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One server, with the fields its requests carry.

    `bulk_lane` marks indexing requests with `"priority": 1` and `x-lane: bulk`: only for a server that knows
    them (vLLM refuses a priority unless it is started with that scheduling policy).
    """

    name: str
    url: str
    model: str
    path: str
    fields: dict[str, Any] = field(default_factory=dict)
    encoding: str = "float"
    bulk_lane: bool = False
    rerank_model: str = ""
    rerank_path: str = "/rerank"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80

    def query(self, text: str) -> PreparedRequest:
        return self.online([text])

    def online(self, texts: Sequence[str]) -> PreparedRequest:
        return self._prepare(texts, bulk=False)

    def indexing(self, texts: Sequence[str]) -> PreparedRequest:
        return self._prepare(texts, bulk=self.bulk_lane)

    def urgent(self, texts: Sequence[str], deadline_ms: int) -> PreparedRequest:
        """An online request whose answer is of no use after `deadline_ms`, for a server that knows deadlines."""
        content = {"model": self.model, "input": list(texts), "encoding_format": self.encoding, **self.fields}
        return PreparedRequest(self._payload(self.path, content, [f"x-deadline-ms: {deadline_ms}"]), len(texts))

    def reranking(self, query: str, documents: Sequence[str]) -> PreparedRequest:
        content = {"model": self.rerank_model, "query": query, "documents": list(documents)}
        return PreparedRequest(self._payload(self.rerank_path, content), len(documents), ranks=True)

    def health(self) -> PreparedRequest:
        """The liveness probe; it holds neither vectors nor scores."""
        return PreparedRequest(self._head("GET", "/health", []), 0)

    def _prepare(self, texts: Sequence[str], *, bulk: bool) -> PreparedRequest:
        lane = {"priority": 1} if bulk else {}
        content = {
            "model": self.model,
            "input": list(texts),
            "encoding_format": self.encoding,
            **self.fields,
            **lane,
        }
        headers = ["x-lane: bulk"] if bulk else []
        return PreparedRequest(self._payload(self.path, content, headers), len(texts))

    def _payload(self, path: str, content: dict[str, Any], headers: Sequence[str] = ()) -> bytes:
        body = json.dumps(content, ensure_ascii=False).encode()
        return (
            self._head("POST", path, ["Content-Type: application/json", f"Content-Length: {len(body)}", *headers])
            + body
        )

    def _head(self, method: str, path: str, headers: Sequence[str]) -> bytes:
        line = f"{method} {urlsplit(self.url).path.rstrip('/')}{path} HTTP/1.1"
        return "\r\n".join(
            [line, f"Host: {self.host}:{self.port}", "Accept: application/json", *headers, "", ""]
        ).encode()


class AnswerCheck:
    """Counts the vectors or scores of every answer, and reads one answer in sixteen in full."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._seen = 0

    def fault(self, answer: Answer, request: PreparedRequest) -> str | None:
        """What is wrong with the answer, or None."""
        self._seen += 1
        if answer.status != 200:
            return f"status {answer.status}: {answer.body[:200].decode(errors='replace')}"
        found = answer.body.count(b'"relevance_score":' if request.ranks else b'"embedding":')
        if found != request.texts:
            return f"{found} answers for {request.texts} texts"
        if self._seen % FULL_CHECK_EVERY != 1 or not request.texts:
            return None
        return ranking_fault(answer.body) if request.ranks else self._vector_fault(answer.body, request.texts)

    def _vector_fault(self, body: bytes, texts: int) -> str | None:
        found = vector_lengths(body)
        if found != [self._dimensions] * texts:
            return f"vectors of {sorted(set(found))} numbers, expected {self._dimensions}"
        return None


def ranking_fault(body: bytes) -> str | None:
    """What is wrong with a rerank answer's order, indices or scores, or None."""
    results = json.loads(body)["results"]
    scores = [float(item["relevance_score"]) for item in results]
    if not all(map(math.isfinite, scores)) or scores != sorted(scores, reverse=True):
        return "scores that are not finite, or not in descending order"
    if sorted(item["index"] for item in results) != list(range(len(results))):
        return "the indices are not 0 to n - 1"
    return None


def vector_lengths(body: bytes) -> list[int]:
    """The length of each vector of an OpenAI-shaped answer, ordered by its `index`.

    Raises:
        ValueError: not such an answer, an index is missing, or a number is not finite.
    """
    data = sorted(json.loads(body)["data"], key=lambda item: int(item["index"]))
    if [item["index"] for item in data] != list(range(len(data))):
        raise ValueError("the indices are not 0 to n - 1")
    return [_length(item["embedding"]) for item in data]


def _length(embedding: str | list[float]) -> int:
    if isinstance(embedding, str):
        return len(base64.b64decode(embedding)) // 4
    if not all(map(math.isfinite, embedding)):
        raise ValueError("a vector holds a number that is not finite")
    return len(embedding)


def reported_tokens(body: bytes) -> int:
    """`usage.total_tokens` without parsing the answer, 0 where absent. Some servers count characters."""
    _, found, rest = body.rpartition(b'"total_tokens":')
    digits = rest[:24].lstrip().partition(b",")[0].partition(b"}")[0].strip()
    return int(digits) if found and digits.isdigit() else 0
