"""A classification from its bytes to its answer's bytes, whatever the dialect."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from runtime.api.addressing import meant
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import deadline_of, note_lane, off_loop, read_json, run_job
from runtime.api.places import Places
from runtime.api.record import Record
from runtime.api.schemas import json_object, validated
from runtime.api.scores import Logits, Scores, activated, best_first, stacked
from runtime.api.scoring_schemas import ScoringRequest
from runtime.api.tensors import render
from runtime.errors import ExecutionError, RequestError
from runtime.work import Input, Job, Result, Task

R = TypeVar("R", bound=ScoringRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """What every dialect's answer is made of."""

    model: str
    """The served name."""
    labels: Sequence[str]
    logits: Logits
    scores: Scores
    """`(inputs, labels)`, as `logits`."""
    tokens: int

    def ranked(self, index: int) -> list[dict[str, Any]]:
        """One input's labels with their scores, the likeliest first."""
        scores = self.scores[index].tolist()
        return [{"score": scores[label], "label": self.labels[label]} for label in best_first(self.logits[index])]


@dataclass(frozen=True, slots=True)
class ClassForm:
    """One dialect's body and answer."""

    schema: type[ScoringRequest]
    inputs: Callable[[Any, int], list[Input]]
    """The request's inputs, at most so many. Raises InvalidRequest's kinds."""
    answer: Callable[[Any, Classes], Any]
    places: Callable[[Any], Places]
    """What the caller calls the inputs."""


async def classify(edge: Edge, exchange: Exchange, record: Record, form: ClassForm) -> bytes:
    """The answer's JSON. Raises CotenantError."""
    body = await read_json(edge, exchange)
    fields = await off_loop(len(body), json_object, body)
    request = validated(form.schema, fields)
    note_lane(exchange, record, request.priority)
    spec = meant(edge, exchange, request.model, Task.CLASSIFY)
    record.model = spec.name
    job = Job(
        id=exchange.request_id,
        model=spec.id,
        task=Task.CLASSIFY,
        inputs=form.inputs(request, edge.limits.max_inputs),
        deadline_s=deadline_of(exchange, request.timeout_ms),
        prompt_name=request.prompt_name,
        truncate=request.truncate != "none",
        truncation_side=request.side,
        max_tokens=request.max_tokens,
    )
    try:
        result = await run_job(edge, exchange, record, job, form.places(request))
    except RequestError as error:
        raise request.in_own_words(error) from None
    started = time.perf_counter()
    size_bytes = sum(row.nbytes for row in result.rows)
    answer = await off_loop(size_bytes, classified, form, request, spec.name, result)
    record.render_ms = (time.perf_counter() - started) * 1000
    return answer


def classified(form: ClassForm, request: ScoringRequest, model: str, result: Result) -> bytes:
    """The classes in the dialect's form."""
    if result.head is None:
        raise ExecutionError("the model did not say what its logits mean")
    logits = stacked(result.rows)
    scores = logits if request.raw else activated(logits, result.head.activation)
    classes = Classes(model=model, labels=result.head.labels, logits=logits, scores=scores, tokens=result.tokens)
    return render(form.answer(request, classes))
