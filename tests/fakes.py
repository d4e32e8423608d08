"""Doubles whose answers can be worked out by hand."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.api.contract import Administration
from runtime.delivery import BatchWatcher
from runtime.errors import (
    Draining,
    InvalidDimensions,
    InvalidRequest,
    ModelLoading,
    ModelNotFound,
    ModelRequired,
    UnknownPrompt,
    UnsupportedCapability,
)
from runtime.models.base import Tokenized, Vocabulary
from runtime.registry import ModelSpec, RuntimeConfig, ServerSettings
from runtime.work import (
    ABILITIES,
    MAXSIM_ID,
    Head,
    Input,
    Job,
    Lane,
    MatrixPair,
    Pair,
    Picture,
    Result,
    RowLayout,
    Task,
    Timings,
)
from runtime.worker import ModelStatus
from tests.fake_metering import FakeMetering

T = TypeVar("T")

WIDTH = 4
TIMINGS = Timings(prepare_ms=1.25, queue_ms=2.5, device_ms=30.75, deliver_ms=0.5, total_ms=35.0, device_share_ms=12.5)
HEADS = {
    Task.RERANK: Head(labels=("LABEL_0",), activation="sigmoid"),
    Task.CLASSIFY: Head(labels=("calm", "glad", "sad"), activation="softmax"),
}


def vector(text: str) -> NDArray[np.float32]:
    """`(4,)`: the text's length, its spaces, a third (which no short decimal equals), minus one."""
    return np.array([len(text), text.count(" "), 1 / 3, -1.0], dtype=np.float32)


def relevance(item: Input) -> list[float]:
    """One logit for a pair: the words that its halves share, minus a half; a text alone shares none."""
    if not isinstance(item, Pair):
        return [-0.5]
    return [len(set(item.query.split()) & set(item.document.split())) - 0.5]


def mood(item: Input) -> list[float]:
    """Three logits for a text or a pair: 0, its length, minus its spaces."""
    text = f"{item.query} {item.document}" if isinstance(item, Pair) else str(item)
    return [0.0, len(text) / 8, -float(text.count(" "))]


def tokens(item: Input) -> int:
    """Its words, and two special tokens; a pair has three. Of two multi-vectors the document's rows."""
    if isinstance(item, MatrixPair):
        return len(item.document)
    if isinstance(item, Pair):
        return len(item.query.split()) + len(item.document.split()) + 3
    return len(written(item).split()) + 2


def matrix(text: str) -> NDArray[np.float32]:
    """`(tokens, 4)`: the text's vector once for each token, with its place in front."""
    return np.stack([np.concatenate(([place], vector(text)[1:])) for place in range(tokens(text))]).astype(np.float32)


def maxsim(pair: MatrixPair) -> float:
    """The formula as it is written."""
    return float((pair.query @ pair.document.T).max(axis=1).sum())


def layout(item: Input) -> RowLayout:
    """Of a picture a grid of one column, the first two rows; of a text a word a row, between two marks."""
    if isinstance(item, Picture):
        return RowLayout(grid=(2, 1), patches=np.array([0, 1]))
    return RowLayout(tokens=("[", *written(item).split(), "]"))


def written(item: Input) -> str:
    """What the fake reads in an input: a picture's size, a list's numbers, a text itself."""
    return f"{item.width} x {item.height}" if isinstance(item, Picture) else str(item)


def spec(name: str = "owner/letters", **fields: Any) -> ModelSpec:
    """A model of that id."""
    return ModelSpec.model_validate({"id": name, **fields})


def task_of(spec: ModelSpec) -> Task:
    """What the fake takes a model for."""
    return Task.EMBED if spec.task == "auto" else Task(spec.task)


def status(spec: ModelSpec, **changes: Any) -> ModelStatus:
    """A ready model on the CPU."""
    ready = ModelStatus(
        id=spec.id,
        name=spec.name,
        aliases=spec.aliases,
        task=task_of(spec),
        required=spec.required,
        state="ready",
        detail=None,
        device="cpu",
        backend="torch",
        dtype="float32",
        execution="packed",
        execution_reason=None,
        dimensions=WIDTH,
        head=None,
        modalities=("text",),
        max_tokens=256,
        max_batch_tokens=512,
        prompts=("query",),
        weight_bytes=1000,
        activation_bytes=200,
        loaded_s=0.5,
        queue_items=dict.fromkeys(Lane, 0),
        queue_tokens=dict.fromkeys(Lane, 0),
        results_pending=0,
    )
    return dataclasses.replace(ready, **changes)


class FakeVocabulary(Vocabulary):
    """A character a token, its id the code point; id 0 is put before the text."""

    def tokenize(self, text: str, *, add_special_tokens: bool = True, prompt_name: str | None = None) -> Tokenized:
        if prompt_name not in (None, "query"):
            raise UnknownPrompt("this model has no such prompt; its prompts are: query")
        whole = f"Q:{text}" if prompt_name else text
        head = [0] if add_special_tokens else []
        return Tokenized(
            text=whole,
            ids=head + [ord(character) for character in whole],
            pieces=["[S]"] * len(head) + [f"▁{character}" for character in whole],
            special=[True] * len(head) + [False] * len(whole),
            spans=[(0, 0)] * len(head) + [(place, place + 1) for place in range(len(whole))],
        )

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        if not all(0 <= token < 0xD800 for token in ids):
            raise InvalidRequest("some ids are not in this model's vocabulary", param="tokens")
        return "".join(chr(token) if token else "[S]" * (not skip_special_tokens) for token in ids)


class FakeEngine:
    """Embeds with `vector` or `matrix`, ranks with `relevance`, classifies with `mood`, at once or behind `gate`."""

    def __init__(self, *specs: ModelSpec, settings: ServerSettings | None = None, price: float | None = None) -> None:
        self.specs = specs or (spec(),)
        self.config = RuntimeConfig(
            models=self.specs, server=settings or ServerSettings(port=0), price_per_hour_usd=price
        )
        self.metering = FakeMetering()
        self.ready = True
        self.draining = False
        self.retiring = False
        self.statuses: list[ModelStatus] = [status(spec) for spec in self.specs]
        self.jobs: list[Job] = []
        self.consulted: list[str] = []
        """Models whose tokenizers were asked."""
        self.consulted_until: list[float | None] = []
        """The deadlines of these questions."""
        self.cancelled: list[str] = []
        """Ids of jobs whose waiting was cancelled."""
        self.failure: Exception | None = None
        self.truncated_inputs = 0
        self.most_online = 1_000
        """More inputs of a job that named no lane run in bulk."""
        self.logits: dict[Task, Callable[[Input], Sequence[float]]] = {Task.RERANK: relevance, Task.CLASSIFY: mood}
        self.heads = dict(HEADS)
        self.gate: asyncio.Event | None = None

    @classmethod
    def of_all_tasks(cls) -> Self:
        """One model of each task, so that no body needs to name one; the one for multi-vectors sees."""
        engine = cls(
            spec("owner/letters", default=True),
            spec("owner/rows", task="multi_vector"),
            spec("owner/ranker", task="rerank"),
            spec("owner/moods", task="classify"),
        )
        engine.statuses[1] = dataclasses.replace(engine.statuses[1], modalities=("text", "image"))
        return engine

    @property
    def admin(self) -> Administration:
        raise ModelLoading("the fake has no device")

    def describe(self) -> Sequence[ModelStatus]:
        return self.statuses

    def watch_batches(self, watcher: BatchWatcher) -> None:
        self.watcher = watcher

    def resolve(self, name: str | None, task: Task | None) -> ModelSpec:
        names = ", ".join(spec.name for spec in self.specs)
        able = [spec for spec in self.specs if task is None or task in ABILITIES[task_of(spec)]]
        if name is None:
            able = [spec for spec in able if task_of(spec) is task] or able
            able = [spec for spec in able if spec.default] or able
            if len(able) > 1:
                raise ModelRequired(f"name a model: {names}")
        else:
            meant = [spec for spec in self.specs if name in spec.names]
            if not meant:
                raise ModelNotFound(f"no such model; served: {names}")
            able = [spec for spec in meant if spec in able]
        if not able:
            raise UnsupportedCapability(f"no such model can {task}")
        return able[0]

    async def run(self, job: Job) -> Result:
        self.jobs.append(job)
        if self.draining:
            raise Draining("the server is shutting down")
        if self.failure is not None:
            raise self.failure
        if job.dimensions is not None and job.dimensions > WIDTH:
            raise InvalidDimensions(f"dimensions must be from 1 to {WIDTH}")
        await self._wait(job)
        return Result(
            model=job.model,
            rows=[self._row(job, item) for item in job.inputs],
            tokens=sum(map(tokens, job.inputs)),
            truncated_inputs=self.truncated_inputs,
            timings=TIMINGS,
            lane=Lane.BULK if job.may_go_bulk and len(job.inputs) > self.most_online else job.lane,
            head=self.heads.get(self._own_task(job)),
            layouts=[layout(item) for item in job.inputs] if job.wants_layouts else [],
        )

    async def consult(self, model_id: str, question: Callable[[Vocabulary], T], deadline_s: float | None = None) -> T:
        self.consulted.append(model_id)
        self.consulted_until.append(deadline_s)
        if self.failure is not None:
            raise self.failure
        return question(FakeVocabulary())

    def _own_task(self, job: Job) -> Task:
        if job.model == MAXSIM_ID:
            return Task.MAXSIM
        return next(task_of(spec) for spec in self.specs if spec.id == job.model)

    def _row(self, job: Job, item: Input) -> NDArray[np.float32]:
        if isinstance(item, MatrixPair):
            return np.array([maxsim(item)], dtype=np.float32)
        if job.task in (Task.EMBED, Task.MULTI_VECTOR):
            row = matrix if job.task is Task.MULTI_VECTOR else vector
            return row(written(item))[..., : job.dimensions]
        return np.array(self.logits[self._own_task(job)](item), dtype=np.float32)

    async def _wait(self, job: Job) -> None:
        if self.gate is None:
            return
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
