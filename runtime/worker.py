"""One model's place: its spec, state, queue, footprint and loaded model. Owns no thread."""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.batch_queue import BatchQueue
from runtime.errors import CotenantError, DoesNotFit, ModelFailed, ModelLoading, UnsupportedCapability
from runtime.eviction import Demand
from runtime.footprint import Footprint
from runtime.load_times import Coming, LoadTimes
from runtime.models.base import Model
from runtime.registry import ModelSpec
from runtime.scheduling import CostLine
from runtime.work import ABILITIES, Head, Lane, Task

CEILING_CUT = 0.7
CEILING_LEAST = 1 / 16
"""However many out-of-memories: the way back from far below would take days."""
CEILING_RECOVERY = 1.05
GOOD_BATCHES_TO_RECOVER = 200
REASON_CHARACTERS = 200
PATH = re.compile(r"""(?<![\w./…])(?:~|[A-Za-z]:)?[/\\][^\s'",;:)]+""")
BUILTIN_BATCH_TOKENS = 8192
"""About eight pages of ColPali."""


class State(enum.StrEnum):
    """Where a model stands."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNWELL = "unwell"
    """Loaded and serving, but its latest batch failed."""
    OFFLOADED = "offloaded"
    """Everything but the weights is at hand: its return is one copy."""
    DRAINING = "draining"
    """Leaving memory once what was queued is answered."""
    FAILED = "failed"


SERVING = frozenset({State.READY, State.UNWELL})
AWAY = frozenset({State.UNLOADED, State.OFFLOADED})
"""Not in device memory, and loaded when somebody asks."""


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
    available: bool = True
    """It serves, or is loaded when somebody asks for it."""
    pinned: bool = False
    resident: str = "always"
    graph_bytes: int = 0
    fixed_ms: float | None = None
    """Predicted device time of a batch: `fixed_ms + ms_per_token * tokens`; None until it was measured."""
    ms_per_token: float | None = None
    waiting_for_load: int = 0
    """Requests that wait until the model is loaded."""
    loads: int = 0
    evictions: int = 0
    last_error: str | None = None
    last_used_unix_s: float | None = None


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
        self.spread_from_tokens = 0
        """A batch of so many tokens gets all cores while it is alone; a smaller one is quicker on one."""
        self.budget_tokens = 512
        self.footprint = Footprint()
        self.load_times = LoadTimes()
        self.results_pending = 0
        self.pinned = spec.pinned
        self.demand = Demand()
        self.refused_since_s: float | None = None
        """When it was first asked for in vain; minus infinity: an operator wants it loaded now. None: it serves."""
        self.started = False
        """What the start had to do for it is done: it was loaded, or left for later."""
        self.parked: Model | None = None
        """The model while it is offloaded."""
        self.resident_since_s = 0.0
        self.waiting = 0
        """Requests that wait until the model is loaded."""
        self.loads = 0
        self.evictions = 0
        self.failure: CotenantError | None = None
        """Why it could not be loaded."""
        self.last_error: str | None = None
        self.last_used_unix_s: float | None = None
        self._latest_batch_s: float | None = None
        self._ceiling = 1.0
        self._good_batches = 0

    def can(self, task: Task) -> bool:
        """Whether this model does `task` once it is loaded; True while that isn't known."""
        return self.task is None or task in ABILITIES[self.task]

    def check_can(self, task: Task) -> None:
        """Raises UnsupportedCapability for a task that isn't this model's."""
        if not self.can(task):
            raise UnsupportedCapability(f"this model can {self.task}, not {task}")

    def check_not_failed(self) -> None:
        """Raises DoesNotFit or ModelFailed where only an administrator can help."""
        if self.state is State.FAILED:
            if isinstance(self.failure, DoesNotFit):
                raise DoesNotFit(f"the model can't be in memory: it {self.failure.message}")
            reason = "" if self.failure is None else f": {in_short(self.failure.message)}"
            raise ModelFailed(f"the model could not be loaded{reason}; the server's log has more")

    def ready_model(self, task: Task | None) -> Model:
        """The loaded model. `task` None: whatever it does.

        Raises UnsupportedCapability for another task, ModelLoading, ModelFailed or DoesNotFit while it can't serve.
        """
        if task is not None:
            self.check_can(task)
        if self.model is not None:
            return self.model
        self.check_not_failed()
        raise ModelLoading("the model is still loading")

    @property
    def serves(self) -> bool:
        """Whether it takes new work now."""
        return self.model is not None and self.state in SERVING

    @property
    def available(self) -> bool:
        """Whether a request would be answered, at once or after the model was loaded for it."""
        return self.serves or (self.started and self.state is not State.FAILED)

    @property
    def is_ready(self) -> bool:
        """As `available`, but for one whose latest batch failed."""
        return self.available and self.state is not State.UNWELL

    @property
    def load_s(self) -> float:
        """How long its next coming into memory will take."""
        return self.load_times.predict_s(self._next_coming, self.footprint.resident_bytes)

    @property
    def reload_s(self) -> float:
        """Seconds of loading that its place in memory is worth: what its coming took or, while it is away, takes."""
        latest_s = self.load_times.latest_s
        return self.load_s if self.model is None or latest_s is None else latest_s

    @property
    def is_timed(self) -> bool:
        """Whether `reload_s` was measured, and isn't a guess."""
        return self.model is not None or self.load_times.knows(self._next_coming)

    @property
    def _next_coming(self) -> Coming:
        return "loaded" if self.parked is None else "returned"

    @property
    def max_tokens(self) -> int:
        """Most tokens of one input; 512 until the model is loaded."""
        return self.model.facts.max_tokens if self.model else 512

    @property
    def batch_tokens(self) -> int:
        """The largest batch now: the budget, lowered after an out-of-memory."""
        return max(1, int(self.budget_tokens * self._ceiling))

    def note_use(self, now_s: float) -> None:
        """Somebody asked for it."""
        self.demand.note(now_s)
        self.last_used_unix_s = time.time()
        if self.refused_since_s is None and not self.serves:
            self.refused_since_s = now_s

    def cut_ceiling(self) -> None:
        """The device ran out of memory on a batch of this model."""
        self._ceiling = max(self._ceiling * CEILING_CUT, CEILING_LEAST)
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
            self.last_error = problem or self.last_error

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
            loaded_s=self.load_times.latest_s,
            queue_items={lane: self.queue.items(lane) for lane in Lane},
            queue_tokens={lane: self.queue.tokens(lane) for lane in Lane},
            results_pending=self.results_pending,
            idle_s=None if self._latest_batch_s is None else time.monotonic() - self._latest_batch_s,
            available=self.available,
            pinned=self.pinned,
            resident=self.spec.resident,
            graph_bytes=self.footprint.graph_bytes,
            fixed_ms=self.cost.fixed_ms if self.loads else None,
            ms_per_token=self.cost.ms_per_token if self.loads else None,
            waiting_for_load=self.waiting,
            loads=self.loads,
            evictions=self.evictions,
            last_error=self.last_error,
            last_used_unix_s=self.last_used_unix_s,
        )


def in_short(reason: str) -> str:
    """The reason's first line, cut, with no path of this machine in it."""
    line, *_ = reason.splitlines() or [""]
    return PATH.sub("…", line)[:REASON_CHARACTERS].rstrip(" .;:")


def builtin(id: str, task: Task) -> Worker:
    """The place of something that needs no files. Its batches are large: their workspace is small."""
    worker = Worker(ModelSpec(id=id, max_batch_tokens=BUILTIN_BATCH_TOKENS, pinned=True))
    worker.task = task
    return worker
