"""From whatever a client calls a model to the one worker that is meant. Never answers with another model."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.errors import ConfigurationError, ModelNotFound, ModelRequired, UnsupportedCapability
from runtime.registry import basename
from runtime.work import Task
from runtime.worker import Worker

UNNAMED = frozenset({"default/not-specified"})
"""What clients send and mean no model by (Infinity's default)."""


class Router:
    """Names to workers: id, served name, alias, then a basename that only one model has, in any case."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.workers = list(workers)
        self._exact: dict[str, Worker] = {}
        for worker in self.workers:
            for name in dict.fromkeys((worker.spec.id, worker.spec.name, *worker.spec.aliases)):
                if name in self._exact:
                    raise ConfigurationError(f"two models answer to the name {name}")
                self._exact[name] = worker
        self._by_basename: dict[str, list[Worker]] = {}
        for name, worker in self._exact.items():
            namesakes = self._by_basename.setdefault(basename(name), [])
            if worker not in namesakes:
                namesakes.append(worker)

    def resolve(self, name: str | None, task: Task | None) -> Worker:
        """The worker that `name` means; without one, the task's default or its only model. `task` None: any.

        Raises ModelNotFound and ModelRequired (both list the served names), UnsupportedCapability.
        """
        if not name or name in UNNAMED:
            return self._only_one_for(task)
        worker = self._exact.get(name) or self._by_its_basename(name)
        if worker is None:
            raise ModelNotFound(f"no such model here; served: {_names(self.workers)}")
        if task is not None and not worker.can(task):
            raise UnsupportedCapability(f"{worker.spec.name} can {worker.task}, not {task}")
        return worker

    def knows(self, name: str) -> bool:
        """Whether a model has exactly that id, served name or alias."""
        return name in self._exact

    def by_id(self, model_id: str) -> Worker:
        """The worker of a registry id that was resolved before. Raises ModelNotFound if it was removed since."""
        worker = self._exact.get(model_id)
        if worker is None:
            raise ModelNotFound(f"no longer served; served: {_names(self.workers)}")
        return worker

    def _only_one_for(self, task: Task | None) -> Worker:
        able = [worker for worker in self.workers if task is None or worker.can(task)]
        able = [worker for worker in able if worker.task is task] or able
        able = [worker for worker in able if worker.spec.default] or able
        if len(able) == 1:
            return able[0]
        if not able:
            raise UnsupportedCapability(f"no model here can {task or 'be asked'}")
        why = "; several are marked as default" if able[0].spec.default else ""
        raise ModelRequired(f"name a model; those that can {task or 'be meant'}: {_names(able)}{why}")

    def _by_its_basename(self, name: str) -> Worker | None:
        """The only worker with that basename; a name with an owner means that owner's model and no other."""
        namesakes = [] if "/" in name else self._by_basename.get(basename(name), [])
        if len(namesakes) > 1:
            raise ModelRequired(f"several models have that name; say which: {_names(namesakes)}")
        return namesakes[0] if namesakes else None


def _names(workers: Iterable[Worker]) -> str:
    return ", ".join(worker.spec.name for worker in workers)
