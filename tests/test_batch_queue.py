"""The batch queue loses nothing, keeps order and always knows what waits, whatever is pushed, taken and dropped."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runtime.batch_queue import BatchQueue
from runtime.devices.base import SMALL_JOB_INPUTS
from runtime.entry import Entry
from runtime.work import Lane
from tests.entries import entry

Line = tuple[Lane, bool]
"""A lane, and whether its small inputs or its large ones are meant."""

SMALL_TOKENS = 8
lanes = st.sampled_from(Lane)
token_counts = st.integers(0, 40) | st.integers(0, SMALL_TOKENS)


class QueueBesideALedger(RuleBasedStateMachine):
    """A queue and the plainest lists that say what should be in it."""

    small_tokens = SMALL_TOKENS

    def __init__(self) -> None:
        super().__init__()
        self.queue = BatchQueue(self.small_tokens)
        self.pushed: dict[Lane, list[Entry]] = {lane: [] for lane in Lane}
        self.waiting: dict[Line, list[Entry]] = {(lane, small): [] for lane in Lane for small in (False, True)}
        self.taken: list[Entry] = []
        self.dropped: list[Entry] = []

    @rule(lane=lanes, costs=st.lists(token_counts, max_size=6))
    def push(self, lane: Lane, costs: list[int]) -> None:
        entries = [entry(cost, index) for index, cost in enumerate(costs)]
        self.queue.push(lane, entries)
        self.pushed[lane] += entries
        few = self.small_tokens > 0 and sum(costs) <= SMALL_JOB_INPUTS * self.small_tokens
        for one in entries:
            small = lane is Lane.ONLINE and few and one.prepared.tokens <= self.small_tokens
            self.waiting[lane, small].append(one)

    @rule(lane=lanes, small=st.booleans(), max_tokens=st.integers(1, 100))
    def take(self, lane: Lane, small: bool, max_tokens: int) -> None:
        expected = what_fits(self.waiting[lane, small], max_tokens)
        assert self.queue.take(lane, max_tokens, small) == expected
        self.waiting[lane, small] = self.waiting[lane, small][len(expected) :]
        self.taken += expected

    @rule(lane=lanes, data=st.data())
    def drop(self, lane: Lane, data: st.DataObject) -> None:
        """Any entries of the lane: those that wait, and those that were taken or dropped long ago."""
        if not self.pushed[lane]:
            return
        chosen = data.draw(st.lists(st.sampled_from(self.pushed[lane]), unique_by=id))
        expected = 0
        for small in (False, True):
            left = [one for one in self.waiting[lane, small] if one not in chosen]
            gone = [one for one in self.waiting[lane, small] if one in chosen]
            self.waiting[lane, small] = left
            self.dropped += gone
            expected += len(gone)
        assert self.queue.drop(lane, chosen) == expected

    @invariant()
    def counts_are_those_of_what_waits(self) -> None:
        for (lane, small), waiting in self.waiting.items():
            assert self.queue.items(lane, small) == len(waiting)
            assert self.queue.tokens(lane, small) == cost(waiting)
            assert self.queue.front(lane, small) is (waiting[0] if waiting else None)
        for lane in Lane:
            both = self.waiting[lane, False] + self.waiting[lane, True]
            assert (self.queue.items(lane), self.queue.tokens(lane)) == (len(both), cost(both))

    def teardown(self) -> None:
        """What was pushed was taken once, dropped once, or still comes, in its order."""
        for (lane, small), waiting in self.waiting.items():
            rest = self.queue.take(lane, 10**9, small)
            assert rest == waiting
            self.taken += rest
        everything = [one for entries in self.pushed.values() for one in entries]
        assert sorted(map(id, self.taken + self.dropped)) == sorted(map(id, everything))


class QueueOfOneSize(QueueBesideALedger):
    """A queue that tells no small inputs apart."""

    small_tokens = 0


def cost(entries: list[Entry]) -> int:
    return sum(one.prepared.tokens for one in entries)


def what_fits(waiting: list[Entry], max_tokens: int) -> list[Entry]:
    """The longest beginning of `waiting` within `max_tokens`, at least one entry."""
    for count in range(len(waiting), 1, -1):
        if cost(waiting[:count]) <= max_tokens:
            return waiting[:count]
    return waiting[:1]


TestQueueBesideALedger = QueueBesideALedger.TestCase
TestQueueOfOneSize = QueueOfOneSize.TestCase
TestQueueBesideALedger.settings = TestQueueOfOneSize.settings = settings(stateful_step_count=30)


def test_the_first_entry_is_taken_however_large_it_is() -> None:
    queue = BatchQueue()
    queue.push(Lane.ONLINE, [entry(1_000), entry(1)])
    assert [one.prepared.tokens for one in queue.take(Lane.ONLINE, 8)] == [1_000]
    assert [one.prepared.tokens for one in queue.take(Lane.ONLINE, 8)] == [1]


def test_a_small_entry_never_overtakes_a_large_one() -> None:
    queue = BatchQueue()
    queue.push(Lane.BULK, [entry(5), entry(50), entry(1)])
    assert [one.prepared.tokens for one in queue.take(Lane.BULK, 10)] == [5]
    assert [one.prepared.tokens for one in queue.take(Lane.BULK, 51)] == [50, 1]


def test_lanes_do_not_see_each_other() -> None:
    queue = BatchQueue()
    queue.push(Lane.ONLINE, [entry(3)])
    queue.push(Lane.BULK, [entry(4), entry(4)])
    assert (queue.tokens(Lane.ONLINE), queue.tokens(Lane.BULK)) == (3, 8)
    assert len(queue.take(Lane.BULK, 100)) == 2
    assert queue.items(Lane.ONLINE) == 1


def test_small_online_inputs_do_not_stand_behind_large_ones_and_small_bulk_inputs_do() -> None:
    queue = BatchQueue(small_tokens=4)
    for lane in Lane:
        queue.push(lane, [entry(20), entry(4), entry(5)])
    assert [one.prepared.tokens for one in queue.take(Lane.ONLINE, 100, small=True)] == [4]
    assert [one.prepared.tokens for one in queue.take(Lane.ONLINE, 100)] == [20, 5]
    assert queue.take(Lane.BULK, 100, small=True) == []
    assert [one.prepared.tokens for one in queue.take(Lane.BULK, 100)] == [20, 4, 5]


def test_the_small_inputs_of_a_large_job_stand_among_the_large_ones() -> None:
    queue = BatchQueue(small_tokens=4)
    queue.push(Lane.ONLINE, [entry(4) for _ in range(SMALL_JOB_INPUTS + 1)])
    queue.push(Lane.ONLINE, [entry(4)])
    assert queue.items(Lane.ONLINE, small=True) == 1
    assert queue.items(Lane.ONLINE, small=False) == SMALL_JOB_INPUTS + 1


def test_dropped_entries_are_stepped_over_wherever_they_stand() -> None:
    queue = BatchQueue()
    entries = [entry(2, index) for index in range(6)]
    queue.push(Lane.ONLINE, entries)
    assert queue.drop(Lane.ONLINE, [entries[0], entries[3], entries[5]]) == 3
    assert queue.front(Lane.ONLINE) is entries[1]
    assert [one.index for one in queue.take(Lane.ONLINE, 100)] == [1, 2, 4]
    assert queue.front(Lane.ONLINE) is None


def test_what_runs_already_can_no_longer_be_dropped() -> None:
    queue = BatchQueue()
    entries = [entry(2), entry(2)]
    queue.push(Lane.ONLINE, entries)
    queue.take(Lane.ONLINE, 2)
    assert queue.drop(Lane.ONLINE, entries) == 1
    assert queue.drop(Lane.ONLINE, entries) == 0
    assert (queue.items(Lane.ONLINE), queue.tokens(Lane.ONLINE)) == (0, 0)


def test_entries_whose_deadline_passed_are_stepped_over_and_no_longer_count() -> None:
    queue = BatchQueue()
    entries = [entry(2, index) for index in range(6)]
    for one, deadline_s in zip(entries, (1.0, 5.0, 1.0, 3.0, 9.0, 2.0), strict=True):
        one.deadline_s = deadline_s
    queue.push(Lane.ONLINE, entries)
    assert queue.front(Lane.ONLINE, now_s=1.0) is entries[1]
    assert queue.tokens(Lane.ONLINE) == 10
    assert queue.take(Lane.ONLINE, 100, done_s=3.0) == [entries[1], entries[4]]
    assert (queue.items(Lane.ONLINE), queue.tokens(Lane.ONLINE)) == (0, 0)
    assert queue.drop(Lane.ONLINE, entries) == 0


def test_the_first_entry_is_tried_even_if_it_is_thought_to_come_too_late() -> None:
    queue = BatchQueue()
    entries = [entry(2, index) for index in range(3)]
    for one in entries:
        one.deadline_s = 1.0
    queue.push(Lane.BULK, entries)
    assert queue.take(Lane.BULK, 100, done_s=7.0) == entries[:1]
    assert queue.items(Lane.BULK) == 0
