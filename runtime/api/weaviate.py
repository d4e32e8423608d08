"""Weaviate's dialect, as its modules reranker-transformers and text2vec-transformers speak it.

`POST /rerank` where `property` is in the body, and `POST /vectors`.
"""

from __future__ import annotations

from typing import Any

from runtime.api.edge import Edge
from runtime.api.embeddings import Given, vectors
from runtime.api.exchange import Exchange
from runtime.api.inference import infer, note_lane, off_loop, read_json
from runtime.api.places import lone
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.rerank import Ranking, RerankForm
from runtime.api.schemas import OwnFormOptions, json_object, shed_nulls, validated
from runtime.api.tensors import Wire, numbers, render
from runtime.work import Result, Task


def scored_documents(ranking: Ranking) -> dict[str, Any]:
    """Every document with its score, in the order in which they came."""
    scored = zip(ranking.documents, ranking.scores, strict=True)
    return {"query": ranking.query, "scores": [{"document": document, "score": score} for document, score in scored]}


RERANK = RerankForm(Dialect.WEAVIATE, scored_documents)


class VectorsConfig(OwnFormOptions):
    """How a text is read. `pooling_strategy` is ignored: the model says how it pools."""

    task_type: str | None = None
    """`query` or `passage`: the prompt of that name, where the model has one."""

    @property
    def prompt(self) -> str | None:
        """The module's type, where nothing else is named."""
        return super().prompt or self.task_type or None

    @property
    def prompt_optional(self) -> bool:
        """The module names its type to every model."""
        return super().prompt is None


class VectorsRequest(OwnFormOptions):
    """The body of `/vectors`."""

    text: str
    config: VectorsConfig = VectorsConfig()
    """The other fields may stand here, too."""


async def text_vector(edge: Edge, exchange: Exchange) -> None:
    """`POST /vectors`: one text, one vector."""
    await infer(edge, exchange, Dialect.WEAVIATE, Task.EMBED, answer_vector)


async def answer_vector(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """The text with its vector. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request = validated(VectorsRequest, shed_nulls(await off_loop(len(body), json_object, body), "config"))
    options = request.beside(request.config)
    note_lane(exchange, record, options.priority)  # on record before anything about the model is refused
    _, result = await vectors(edge, exchange, record, options, Given([request.text], lone("text")), (Task.EMBED,))
    return await off_loop(len(request.text), rendered, request, result)


def rendered(request: VectorsRequest, result: Result) -> bytes:
    """The module's answer."""
    (row,) = result.rows
    return render({"text": request.text, "vector": numbers(row, Wire()), "dim": len(row), "dims": len(row)})
