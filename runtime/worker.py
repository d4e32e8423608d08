"""One model's place: its spec, state, queue, footprint and loaded model. Owns no thread."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.batch_queue import BatchQueue
from runtime.errors import ModelFailed, ModelLoading, UnsupportedCapability
from runtime.models.base import Model
from runtime.registry import ModelSpec
from runtime.scheduling import CostLine
from runtime.work import ABILITIES, Footprint, Head, Lane, Task

CEILING_CUT = 0.7
CEILING_RECOVERY = 1.05
GOOD_BATCHES_TO_RECOVER = 200


class State(enum.StrEnum):
    """Where a model stands. `unwell`: loaded and serving, but its latest batch failed."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNWELL = "unwell"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A model as the edge shows it."""

    id: str
    name: str
    aliases: tuple[str, ...]
    task: Task | None
    """None until the model's files were looked at."""
    required: bool
    state: str
    detail: str | None
    device: str | None
    backend: str
    dtype: str | None
    execution: str | None
    execution_reason: str | None
    dimensions: int | None
    head: Head | None
    modalities: tuple[str, ...]
    max_tokens: int | None
    max_batch_tokens: int | None
    prompts: tuple[str, ...]
    weight_bytes: int
    activation_bytes: int
    loaded_s: float | None
    queue_items: Mapping[Lane, int]
    queue_tokens: Mapping[Lane, int]
    results_pending: int
    pooling: str | None = None
    """How tokens become a vector (`mean`, `cls`), where that is known."""
    idle_s: float | None = None
    """Seconds since its latest batch ended; None: it has run none."""


class Worker:
    """What belongs to one model. Mutated on the event loop, but for the queue, which the executor's lock guards."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.task = None if spec.task == "auto" else Task(spec.task)
        """What the model does; None until its files were looked at."""
        self.state = State.UNLOADED
        self.detail: str | None = None
        self.model: Model | None = None
        self.device_name: str | None = None
        self.queue = BatchQueue()
        self.cost = CostLine()
        self.budget_tokens = 512
        self.footprint = Footprint()
        self.loaded_s: float | None = None
        self.results_pending = 0
        self.preparing_tokens = 0
        self._latest_batch_s: float | None = None
        self._ceiling = 1.0
        self._good_batches = 0

    def can(self, task: Task) -> bool:
        """Whether this model does `task` once it is loaded; True while that isn't known."""
        return self.task is None or task in ABILITIES[self.task]

    def ready_model(self, task: Task | None) -> Model:
        """The loaded model. `task` None: whatever it does.

        Raises UnsupportedCapability for another task, ModelLoading or ModelFailed while it can't serve.
        """
        if task is not None and not self.can(task):
            raise UnsupportedCapability(f"this model can {self.task}, not {task}")
        if self.model is not None:
            return self.model
        if self.state is State.FAILED:
            raise ModelFailed("the model could not be loaded; GET /ready and the server's log say why")
        raise ModelLoading("the model is still loading")

    @property
    def max_tokens(self) -> int:
        """Most tokens of one input; 512 until the model is loaded."""
        return self.model.facts.max_tokens if self.model else 512

    @property
    def batch_tokens(self) -> int:
        """The largest batch now: the budget, lowered after an out-of-memory."""
        return max(1, int(self.budget_tokens * self._ceiling))

    def cut_ceiling(self) -> None:
        """The device ran out of memory on a batch of this model."""
        self._ceiling *= CEILING_CUT
        self._good_batches = 0

    def note_good_batch(self) -> None:
        """A batch went well; a lowered ceiling recovers slowly."""
        self._good_batches += 1
        if self._ceiling < 1.0 and self._good_batches >= GOOD_BATCHES_TO_RECOVER:
            self._ceiling = min(1.0, self._ceiling * CEILING_RECOVERY)
            self._good_batches = 0

    def note_health(self, problem: str | None) -> None:
        """The latest batch's outcome: None when every row came."""
        self._latest_batch_s = time.monotonic()
        if self.state in (State.READY, State.UNWELL):
            self.state = State.READY if problem is None else State.UNWELL
            self.detail = problem

    def status(self) -> ModelStatus:
        """A picture of now."""
        facts = self.model.facts if self.model else None
        return ModelStatus(
            id=self.spec.id,
            name=self.spec.name,
            aliases=self.spec.aliases,
            task=self.task,
            required=self.spec.required,
            state=self.state,
            detail=self.detail,
            device=self.device_name,
            backend=facts.backend if facts else self.spec.backend,
            dtype=facts.dtype if facts else None,
            execution=facts.execution if facts else None,
            execution_reason=facts.execution_reason if facts else None,
            dimensions=facts.dimensions if facts else None,
            head=facts.head if facts else None,
            modalities=facts.modalities if facts else (),
            max_tokens=facts.max_tokens if facts else None,
            max_batch_tokens=self.batch_tokens if facts else None,
            prompts=facts.prompts if facts else (),
            pooling=facts.pooling if facts else None,
            weight_bytes=self.footprint.weight_bytes,
            activation_bytes=self.footprint.activation_bytes,
            loaded_s=self.loaded_s,
            queue_items={lane: self.queue.items(lane) for lane in Lane},
            queue_tokens={lane: self.queue.tokens(lane) for lane in Lane},
            results_pending=self.results_pending,
            idle_s=None if self._latest_batch_s is None else time.monotonic() - self._latest_batch_s,
        )
