"""The backlog's sums are those of the queues, whatever comes, goes and expires; no job and no batch asks all queues."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runtime.backlog import Backlog
from runtime.batch_queue import BatchQueue
from runtime.devices.base import Concurrency
from runtime.dispatch import Dispatch
from runtime.entry import Entry
from runtime.registry import ModelSpec
from runtime.scheduling import CostLine, FairShare
from runtime.work import Choice, Lane, Prepared
from runtime.worker import Worker
from tests.entries import Nobody
from tests.virtual import job

SMALL_TOKENS = 8
MODELS = ("a", "b", "c")
lanes = st.sampled_from(Lane)
models = st.sampled_from(MODELS)


def entry(tokens: int, deadline_s: float = math.inf) -> Entry:
    return Entry(Prepared(token_ids=np.zeros(tokens, dtype=np.int32)), Nobody(), 0, 0.0, 1.0, deadline_s)


class BacklogBesideItsQueues(RuleBasedStateMachine):
    """What the backlog says, beside what its queues say when they are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog()
        self.workers = {
            name: Worker(ModelSpec(id=name, weight=weight, priority=weight // 3))
            for weight, name in enumerate(MODELS, start=1)
        }
        for slope, worker in enumerate(self.workers.values()):
            worker.queue = BatchQueue(SMALL_TOKENS)
            worker.cost = CostLine(fixed_ms=1.0, ms_per_token=0.1 + 0.1 * slope)
            worker.budget_tokens = 64
        self.pushed: list[tuple[str, Lane, list[Entry]]] = []
        self.now_s = 0.0

    @rule(model=models, lane=lanes, costs=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=6))
    def push(self, model: str, lane: Lane, costs: list[tuple[int, int]]) -> None:
        """Entries of so many tokens and so many seconds; those that have nine have no deadline."""
        entries = [entry(tokens, math.inf if left == 9 else self.now_s + left) for tokens, left in costs]
        self.backlog.push(self.workers[model], lane, entries)
        self.pushed.append((model, lane, entries))

    @rule(data=st.data(), max_tokens=st.integers(1, 100), patience_s=st.floats(0, 3))
    def take(self, data: st.DataObject, max_tokens: int, patience_s: float) -> None:
        """What the policy could choose: one of the lines that it sees."""
        lines = self.backlog.waiting(self.now_s)
        if lines:
            line = data.draw(st.sampled_from(lines))
            choice = Choice(line.model, line.lane, max_tokens, line.small)
            assert self.backlog.worker(choice) is self.workers[line.model]
            entries = self.backlog.take(choice, max_tokens, self.now_s + patience_s)
            assert entries
            assert all(one.deadline_s > self.now_s for one in entries)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.pushed:
            model, lane, entries = data.draw(st.sampled_from(self.pushed))
            self.backlog.drop(self.workers[model], lane, entries[: data.draw(st.integers(0, 6))])

    @rule(pause_s=st.floats(0, 4))
    def wait(self, pause_s: float) -> None:
        self.now_s += pause_s

    @invariant()
    def its_sums_are_those_of_the_queues(self) -> None:
        for lane in Lane:
            drain_ms = [each.cost.drain_ms(each.queue.tokens(lane), 64) for each in self.workers.values()]
            small_ms = [each.cost.ms_per_token * each.queue.tokens(lane, True) for each in self.workers.values()]
            assert self.backlog.drain_ms(lane) == pytest.approx(sum(drain_ms), abs=1e-9)
            assert self.backlog.small_ms(lane) == pytest.approx(sum(small_ms), abs=1e-9)
            self.its_crowds_are_those_who_wait(lane)
        items = {lane: sum(each.queue.items(lane) for each in self.workers.values()) for lane in Lane}
        assert self.backlog.is_empty == (not any(items.values()))
        assert self.backlog.is_contended == all(items.values())
        assert self.backlog.tokens == sum(each.queue.tokens(lane) for each in self.workers.values() for lane in Lane)

    def its_crowds_are_those_who_wait(self, lane: Lane) -> None:
        for name, worker in self.workers.items():
            expected: dict[int, list[float]] = {}
            for other in self.workers.values():
                if other.queue.items(lane) and other.spec.id != name:
                    expected.setdefault(other.spec.priority, []).append(other.spec.weight)
            found = {priority: tuple(crowd) for priority, crowd in self.backlog.others(lane, worker).items()}
            assert {priority: crowd for priority, crowd in found.items() if crowd[0]} == {
                priority: (len(weights), sum(weights)) for priority, weights in expected.items()
            }

    @rule()
    def look(self) -> None:
        """The lines are those that the fronts of the queues give, once what came too late has left."""
        seen = {(line.model, line.lane, line.small): line for line in self.backlog.waiting(self.now_s)}
        for name, worker in self.workers.items():
            for lane in Lane:
                for small in (False, True):
                    front, line = worker.queue.front(lane, small), seen.pop((name, lane, small), None)
                    assert (line is None) == (front is None)
                    if front is not None and line is not None:
                        assert front.deadline_s > self.now_s
                        assert line.first_tokens == front.prepared.tokens
                        assert line.tokens == worker.queue.tokens(lane, small)
                        assert line.items == worker.queue.items(lane, small)
        assert seen == {}


TestBacklogBesideItsQueues = BacklogBesideItsQueues.TestCase
TestBacklogBesideItsQueues.settings = settings(stateful_step_count=30)


# -- what it costs ----------------------------------------------------------------------------------------------


class CountedQueue(BatchQueue):
    """Counts how often anybody asks any of them."""

    asked = 0

    def front(self, lane: Lane, small: bool = False, now_s: float = -math.inf) -> Entry | None:
        CountedQueue.asked += 1
        return super().front(lane, small, now_s)

    def items(self, lane: Lane, small: bool | None = None) -> int:
        CountedQueue.asked += 1
        return super().items(lane, small)

    def tokens(self, lane: Lane, small: bool | None = None) -> int:
        CountedQueue.asked += 1
        return super().tokens(lane, small)


class CountedLine(CostLine):
    """Counts how often anybody predicts by any of them."""

    asked = 0

    def predict_ms(self, tokens: int) -> float:
        CountedLine.asked += 1
        return super().predict_ms(tokens)

    def drain_ms(self, tokens: int, batch_tokens: int) -> float:
        CountedLine.asked += 1
        return super().drain_ms(tokens, batch_tokens)


def stage(registered: int) -> tuple[Dispatch, list[Worker]]:
    """A dispatch of one lane, and workers whose queues and cost lines count."""
    policy = FairShare.of([])
    workers = [Worker(ModelSpec(id=f"m{number}")) for number in range(registered)]
    for worker in workers:
        policy.know(worker.spec)
        worker.queue, worker.cost = CountedQueue(), CountedLine()
        policy.predict_ms[worker.spec.id] = worker.cost
    return Dispatch(Concurrency(lanes=1, flights=1), policy), workers


def cost_of_a_round(registered: int, busy: int, lane: Lane) -> tuple[int, int]:
    """How often queues and cost lines are asked while each busy model gets a job and a batch is formed.

    Every busy queue keeps a backlog; the rounds before the one that counts let every queue be seen.
    """
    dispatch, workers = stage(registered)
    for worker in workers[:busy]:
        dispatch.submit(worker, lane, [entry(16) for _ in range(100)])
    before = (0, 0)
    for number in range(busy + 1):
        before = (CountedQueue.asked, CountedLine.asked)
        dispatch.submit(workers[number % busy], lane, [entry(16)])
        dispatch.ahead(workers[number % busy], job("a", 16, lane=lane), 16, 0.0)
        batch, _ = dispatch.form(spare=False, now_s=0.0)
        assert batch is not None
        assert dispatch.form(spare=False, now_s=0.0) == (None, None)
        batch.device_ms = 1.0
        dispatch.landed(batch)
    return CountedQueue.asked - before[0], CountedLine.asked - before[1]


@pytest.mark.parametrize("lane", Lane)
def test_a_job_and_a_batch_cost_the_same_whatever_is_registered_and_idle(lane: Lane) -> None:
    assert cost_of_a_round(64, 2, lane) == cost_of_a_round(2, 2, lane)


@pytest.mark.parametrize("lane", Lane)
def test_a_job_and_a_batch_ask_two_queues_at_the_most_however_many_are_busy(lane: Lane) -> None:
    """The one that the job joined and the one that the batch left; with a single model both are the same."""
    asked, predicted = cost_of_a_round(1, 1, lane)
    many_asked, many_predicted = cost_of_a_round(64, 64, lane)
    assert many_asked <= 2 * asked
    assert many_predicted <= 2 * predicted


def test_a_batch_never_exceeds_what_its_model_is_allowed_since_it_was_last_looked_at() -> None:
    dispatch, (worker,) = stage(1)
    dispatch = Dispatch(Concurrency(lanes=1, flights=1), FairShare.of([]), idle_wait_ms=5.0)
    worker.budget_tokens = 64
    dispatch.submit(worker, Lane.ONLINE, [entry(10) for _ in range(4)])
    batch, patience_s = dispatch.form(spare=False, now_s=0.0)
    assert batch is None
    assert patience_s == pytest.approx(0.005)
    worker.cut_ceiling()
    worker.cut_ceiling()
    batch, _ = dispatch.form(spare=False, now_s=1.0)
    assert batch is not None
    assert batch.tokens == 30
    assert worker.batch_tokens == 31
