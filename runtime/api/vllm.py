"""vLLM's dialect: `POST /score`, and `/classify` where `?format=vllm` asks for it. Shapes as its pooling server's."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.api.classify import Classes, ClassForm
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import infer, off_loop, read_json
from runtime.api.places import Places, places_of
from runtime.api.problems import Dialect
from runtime.api.record import Record
from runtime.api.schemas import json_object, validated
from runtime.api.scoring import Compared, blindness, candidates, read_pairs, scored, scoring_model
from runtime.api.scoring_schemas import Candidate, ClassifyRequest, ScoreRequest, Sides, candidates_of, listed, texts_of
from runtime.api.tensors import render
from runtime.registry import ModelSpec
from runtime.work import Input, Result, Task


async def score(edge: Edge, exchange: Exchange) -> None:
    """`POST /score` and `/v1/score`."""
    await infer(edge, exchange, Dialect.VLLM, Task.RERANK, answer_score)


async def answer_score(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """The answer's JSON. Raises CotenantError."""
    body = await read_json(edge, exchange)
    fields = await off_loop(len(body), json_object, body)
    request = validated(ScoreRequest, fields)
    record.candidates = candidates(request.documents)
    model = scoring_model(edge, exchange, record, request)
    sides = Sides.of(fields)
    pairs = candidates_of(request, sides, edge.limits.max_documents, blindness(edge, exchange, request.model, model))
    queries = places_of(sides.queries, request.queries if len(listed(request.queries, sides.queries)) > 1 else None)
    compared = Compared(pairs, queries, places_of(sides.documents, request.documents))
    result = await read_pairs(edge, exchange, record, request, model, compared)
    started = time.perf_counter()
    size_bytes = sum(row.nbytes for row in result.rows)
    answer = await off_loop(size_bytes, score_list, request, model, pairs, result)
    record.render_ms = (time.perf_counter() - started) * 1000
    return answer


def score_list(
    request: ScoreRequest, model: tuple[ModelSpec, Task], pairs: Sequence[Candidate], result: Result
) -> bytes:
    """Every pair's score, in the order in which they came."""
    spec, task = model
    outcome = scored(task, pairs, result, request.raw)
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(outcome.scores.tolist())]
    return render(pooled("score", spec.name, data, outcome.tokens))


def classify_inputs(request: ClassifyRequest, max_inputs: int) -> list[Input]:
    """The texts. Raises InvalidRequest's kinds."""
    return list(texts_of(request.input, "input", max_inputs))


def classify_places(request: ClassifyRequest) -> Places:
    """What the caller calls the texts."""
    return places_of("input", request.input)


def class_list(request: ClassifyRequest, classes: Classes) -> dict[str, Any]:
    """Each input's likeliest label, and the scores of all in the model's order."""
    data = [
        {
            "index": index,
            "label": classes.labels[int(np.argmax(classes.logits[index]))],
            "probs": scores,
            "num_classes": len(classes.labels),
        }
        for index, scores in enumerate(classes.scores)
    ]
    return pooled("classify", classes.model, data, classes.tokens)


def pooled(kind: str, model: str, data: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """The envelope of its pooling answers."""
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


CLASSIFY = ClassForm(ClassifyRequest, classify_inputs, class_list, classify_places)
