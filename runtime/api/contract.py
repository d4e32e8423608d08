"""What the edge asks of the engine, so that it can be tested without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from runtime.administration import MemoryReport
    from runtime.decisions import Decision
    from runtime.delivery import BatchWatcher
    from runtime.metering import Account
    from runtime.models.base import Vocabulary
    from runtime.registry import ModelSpec, RuntimeConfig
    from runtime.work import Job, Lane, Result, Task
    from runtime.worker import ModelStatus

T = TypeVar("T")


class Metering(Protocol):
    """Counters that the edge feeds and shows."""

    def render(self) -> bytes:
        """Every metric in Prometheus' text format."""

    def observe_request(self, surface: str, model: str, task: str, status: int, seconds: float, lane: Lane, /) -> None:
        """Count one answered request; `model` is a served name or `unknown`, never the caller's text."""

    def observe_request_error(self, surface: str, reason: str, /) -> None:
        """Count one request that ended in an error, by its code."""

    def observe_candidates(self, model: str, outcome: str, documents: int, /) -> None:
        """Count documents that were to be scored: `scored`, `truncated` (of these) or `capped`."""

    def observe_cost(
        self, account: Account, stages_ms: Mapping[str, float], device_ms: float, cost_usd: float | None, /
    ) -> None:
        """Charge one answered request; `cost_usd` is None where no price is known."""

    def observe_render(self, model: str, seconds: float, /) -> None:
        """Note how long one answer took to write out."""


class Administration(Protocol):
    """What an operator may see and change; see `runtime.administration`."""

    async def load(self, name: str) -> ModelStatus:
        """Load the model now. Raises CotenantError."""

    async def unload(self, name: str) -> ModelStatus:
        """Let the model answer what it has queued, then take it out of memory. Raises ModelNotFound."""

    def pin(self, name: str, pinned: bool) -> ModelStatus:
        """Keep the model from being evicted, or no longer. Raises ModelNotFound."""

    def memory(self) -> MemoryReport:
        """The ledger, and what the driver says."""

    def decisions(self, limit: int) -> Sequence[Decision]:
        """The latest decisions, newest first."""


class Engine(Protocol):
    """Jobs in, Results out. Everything is called on the event loop and only `run` waits."""

    @property
    def config(self) -> RuntimeConfig: ...

    @property
    def metering(self) -> Metering: ...

    @property
    def admin(self) -> Administration:
        """The operator's side. Raises ModelLoading until the device is open."""

    @property
    def ready(self) -> bool:
        """Every required model can answer."""

    @property
    def retiring(self) -> bool:
        """About to drain: bulk jobs are refused."""

    @property
    def draining(self) -> bool:
        """New jobs are refused; those in flight go on."""

    def resolve(self, name: str | None, task: Task | None) -> ModelSpec:
        """The model meant. Raises ModelNotFound, ModelRequired or UnsupportedCapability."""

    async def run(self, job: Job) -> Result:
        """The job's rows in the order of its inputs. Raises CotenantError; cancelling it drops what waits."""

    def watch_batches(self, watcher: BatchWatcher) -> None:
        """Tell `watcher` of every batch that was answered."""

    async def consult(self, model_id: str, question: Callable[[Vocabulary], T], deadline_s: float | None = None) -> T:
        """What a model's tokenizer answers, off the event loop. Raises CotenantError.

        `deadline_s`: when the answer is of no more use, as a job's.
        """

    def describe(self) -> Sequence[ModelStatus]:
        """Every model and its state, in the registry's order."""
