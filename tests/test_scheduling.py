"""The policy in a simulated world: least slack online, fair turns of the late and in bulk, a minimum share."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.scheduling import REWEIGH_S, CostLine, Crowd, FairShare
from runtime.work import Choice, Lane, Waiting

FOREVER = 10**9


def waiting(model: str, lane: Lane = Lane.ONLINE, *, tokens: int = 100, due_s: float = 1.0) -> Waiting:
    return Waiting(model, lane, items=10, tokens=tokens, first_tokens=10, due_s=due_s, budget_tokens=512)


@dataclass
class Saturation:
    """Lanes that are never idle over queues that never run dry; a clock that needs no waiting."""

    policy: FairShare
    batch_ms: Mapping[tuple[str, Lane], float]
    lanes: int = 1
    now_s: float = 0.0
    spent_ms: dict[tuple[str, Lane], float] = field(default_factory=dict)
    _running: list[tuple[float, int, tuple[str, Lane], bool]] = field(default_factory=list)
    _turn: itertools.count[int] = field(default_factory=itertools.count)

    def run(self, batches: int) -> dict[tuple[str, Lane], float]:
        """Shares of the device time of the next `batches` batches."""
        before = dict(self.spent_ms)
        queues = [waiting(model, lane, tokens=FOREVER) for model, lane in self.batch_ms]
        contended = len({lane for _, lane in self.batch_ms}) == len(Lane)
        for _ in range(batches):
            while len(self._running) < self.lanes:
                choice = self.policy.choose(queues, self.now_s)
                assert choice is not None
                queue = (choice.model, choice.lane)
                end_s = self.now_s + self.batch_ms[queue] / 1000.0
                heapq.heappush(self._running, (end_s, next(self._turn), queue, contended))
            self._land()
        gained = {queue: self.spent_ms.get(queue, 0.0) - before.get(queue, 0.0) for queue in self.batch_ms}
        return {queue: ms / sum(gained.values()) for queue, ms in gained.items()}

    def _land(self) -> None:
        self.now_s, _, queue, contended = heapq.heappop(self._running)
        spent = self.batch_ms[queue]
        self.spent_ms[queue] = self.spent_ms.get(queue, 0.0) + spent
        self.policy.charge(*queue, spent, contended)


# -- whose turn it is -------------------------------------------------------------------------------------------


def test_nobody_is_chosen_when_nothing_waits() -> None:
    assert FairShare().choose([], now_s=0.0) is None


def test_a_choice_takes_as_much_as_the_queues_budget_allows() -> None:
    assert FairShare().choose([waiting("a")], now_s=0.0) == Choice("a", Lane.ONLINE, 512)


def test_online_work_goes_before_bulk_work_that_is_due_earlier() -> None:
    queues = [waiting("index", Lane.BULK, due_s=-100.0), waiting("query", due_s=100.0)]
    chosen = FairShare().choose(queues, now_s=0.0)
    assert chosen is not None
    assert chosen.model == "query"


def test_a_slow_model_goes_first_when_both_are_due_at_once() -> None:
    lines = {"fast": CostLine(fixed_ms=1.0, ms_per_token=0.01), "slow": CostLine(fixed_ms=50.0, ms_per_token=1.0)}
    chosen = FairShare(predict_ms=lines).choose([waiting("fast"), waiting("slow")], now_s=0.0)
    assert chosen is not None
    assert chosen.model == "slow"


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.integers(1, 5_000), st.floats(0, 50), st.floats(0.001, 2)),
        min_size=1,
        max_size=8,
    )
)
def test_while_all_are_in_time_the_queue_with_the_least_slack_is_chosen(
    queues: list[tuple[float, int, float, float]],
) -> None:
    lines = {str(i): CostLine(fixed_ms=fixed, ms_per_token=slope) for i, (_, _, fixed, slope) in enumerate(queues)}
    chosen = FairShare(predict_ms=lines).choose(
        [waiting(str(i), due_s=due, tokens=tokens) for i, (due, tokens, _, _) in enumerate(queues)], now_s=-20.0
    )
    assert chosen is not None
    latest_starts = [due - (fixed + slope * min(tokens, 512)) / 1000 for due, tokens, fixed, slope in queues]
    assert latest_starts[int(chosen.model)] == pytest.approx(min(latest_starts))


@given(st.data())
def test_a_policy_that_weighs_only_what_changed_chooses_as_one_that_weighs_everything(data: st.DataObject) -> None:
    lines = {str(i): CostLine(fixed_ms=i, ms_per_token=0.01 * (i + 1)) for i in range(6)}
    priorities = {"5": -1, "4": 1}
    due_s = st.floats(0, 0.2)
    seasoned = FairShare(predict_ms=lines, priorities=priorities)
    queues = [waiting(str(i), due_s=data.draw(due_s)) for i in range(6)]
    for turn in range(data.draw(st.integers(1, 12))):
        changed = data.draw(st.integers(0, 5))
        queues[changed] = waiting(str(changed), tokens=data.draw(st.integers(1, 600)), due_s=data.draw(due_s))
        seen = [queue for queue in queues if data.draw(st.booleans())]
        fresh = FairShare(predict_ms=lines, priorities=priorities)
        assert seasoned.choose(seen, turn * 0.03) == fresh.choose(seen, turn * 0.03)


def test_a_queue_that_does_not_change_is_weighed_again_before_long() -> None:
    lines = {"a": CostLine(fixed_ms=1.0, ms_per_token=0.01), "b": CostLine(fixed_ms=2.0, ms_per_token=0.01)}
    policy, queues = FairShare(predict_ms=lines), [waiting("a"), waiting("b")]
    assert policy.choose(queues, now_s=0.0) == Choice("b", Lane.ONLINE, 512)
    lines["a"].fixed_ms = 50.0
    assert policy.choose(queues, now_s=REWEIGH_S) == Choice("a", Lane.ONLINE, 512)


# -- more online work than time ---------------------------------------------------------------------------------


LATE = {"flooded": -30.0, "neighbour": 0.5}
"""When the queue of a flooded model should have been answered, and when its neighbour's should be."""


def late(**dues_s: float) -> list[Waiting]:
    return [waiting(model, due_s=due_s, tokens=FOREVER) for model, due_s in dues_s.items()]


def chosen(policy: FairShare, queues: list[Waiting]) -> str:
    choice = policy.choose(queues, now_s=0.0)
    assert choice is not None
    return choice.model


def test_a_model_with_more_work_than_time_makes_nobody_else_late() -> None:
    policy = FairShare()
    for _ in range(100):
        assert chosen(policy, late(flooded=-30.0)) == "flooded"
        policy.charge("flooded", Lane.ONLINE, 10.0, contended=False)
    assert chosen(policy, late(**LATE)) == "neighbour"
    policy.charge("neighbour", Lane.ONLINE, 20.0, contended=False)
    assert chosen(policy, late(**LATE)) == "flooded"


def test_a_lower_priority_number_is_not_overtaken_by_who_has_had_less() -> None:
    policy = FairShare(priorities={"flooded": -1})
    policy.charge("flooded", Lane.ONLINE, 1_000.0, contended=False)
    assert chosen(policy, late(**LATE)) == "flooded"


def test_of_a_late_model_s_small_and_large_inputs_the_older_ones_go_first() -> None:
    small, large = (dataclasses.replace(waiting("a", due_s=due_s), small=due_s < -1.0) for due_s in (-2.0, -1.0))
    older = dataclasses.replace(large, due_s=-3.0)
    for queues, expected in (([small, large], small), ([small, older], older), ([older, small], older)):
        choice = FairShare().choose(queues, now_s=0.0)
        assert choice is not None
        assert choice.small == expected.small


@pytest.mark.parametrize("lanes", [1, 2])
def test_late_models_share_the_device_by_weight(lanes: int) -> None:
    costs = {("light", Lane.ONLINE): 40.0, ("heavy", Lane.ONLINE): 10.0}
    world = Saturation(FairShare(weights={"light": 1.0, "heavy": 3.0}), costs, lanes, now_s=10.0)
    assert world.run(4_000)["heavy", Lane.ONLINE] == pytest.approx(0.75, rel=0.10)


def test_until_a_model_s_work_is_done_the_others_get_their_shares_and_a_batch_each() -> None:
    policy = FairShare(weights={"a": 2.0}, priorities={"a": 0})
    online_ms, bulk_ms = policy.chunks.online_ms(0.0), policy.chunks.bulk_ms(0.0)
    equals, sooner, later = {0: Crowd(2, 4.0)}, {-1: Crowd(1, 1.0)}, {1: Crowd(3, 9.0)}
    for others, expected_ms in (
        ({}, 0.0),
        (equals, 100.0 * 4.0 / 2.0 + 2 * online_ms),
        (equals | later, 100.0 * 4.0 / 2.0 + 2 * online_ms),
        (equals | sooner, math.inf),
    ):
        assert policy.beside_ms("a", Lane.ONLINE, 100.0, others, 0.0) == expected_ms
    # Bulk work knows no priority.
    assert policy.beside_ms("a", Lane.BULK, 100.0, equals | sooner, 0.0) == 100.0 * 5.0 / 2.0 + 3 * bulk_ms
    assert policy.beside_ms("a", Lane.BULK, 100.0, {}, 0.0) == 0.0


# -- bulk shares ------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    lanes=st.integers(1, 4),
    models=st.lists(st.tuples(st.floats(1.0, 4.0), st.floats(2.0, 40.0)), min_size=2, max_size=4),
)
def test_bulk_shares_follow_the_weights_whatever_a_batch_costs(lanes: int, models: list[tuple[float, float]]) -> None:
    weights = {f"m{i}": weight for i, (weight, _) in enumerate(models)}
    costs = {(f"m{i}", Lane.BULK): ms for i, (_, ms) in enumerate(models)}
    shares = Saturation(FairShare(weights=weights), costs, lanes).run(4_000)
    for (model, _), share in shares.items():
        assert share == pytest.approx(weights[model] / sum(weights.values()), rel=0.10)


@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_three_times_the_weight_is_three_times_the_device_on_any_number_of_lanes(lanes: int) -> None:
    costs = {("light", Lane.BULK): 10.0, ("heavy", Lane.BULK): 10.0}
    shares = Saturation(FairShare(weights={"light": 1.0, "heavy": 3.0}), costs, lanes).run(4_000)
    assert shares["heavy", Lane.BULK] == pytest.approx(0.75, rel=0.05)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_queue_that_wakes_has_saved_up_nothing(lanes: int) -> None:
    policy = FairShare()
    alone = Saturation(policy, {("awake", Lane.BULK): 10.0}, lanes)
    assert alone.run(500) == {("awake", Lane.BULK): 1.0}
    both = Saturation(policy, {("awake", Lane.BULK): 10.0, ("sleeper", Lane.BULK): 10.0}, lanes)
    assert both.run(20)["awake", Lane.BULK] >= 0.4


def test_a_queue_that_wakes_waits_no_longer_than_the_others() -> None:
    policy = FairShare()
    Saturation(policy, {("awake", Lane.BULK): 10.0}).run(500)
    both = Saturation(policy, {("awake", Lane.BULK): 10.0, ("sleeper", Lane.BULK): 10.0})
    assert both.run(4)["sleeper", Lane.BULK] >= 0.5


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(("online_ms", "bulk_ms"), [(10.0, 10.0), (2.0, 45.0), (40.0, 3.0)])
def test_bulk_work_keeps_its_minimum_share_under_endless_online_work(
    online_ms: float, bulk_ms: float, lanes: int
) -> None:
    costs = {("query", Lane.ONLINE): online_ms, ("index", Lane.BULK): bulk_ms}
    world = Saturation(FairShare(), costs, lanes)
    world.run(1_000)
    share = world.run(5_000)["index", Lane.BULK]
    assert 0.095 <= share <= 0.13


def test_two_bulk_queues_share_the_minimum_by_weight() -> None:
    costs = {("query", Lane.ONLINE): 8.0, ("one", Lane.BULK): 12.0, ("other", Lane.BULK): 5.0}
    shares = Saturation(FairShare(weights={"one": 1.0, "other": 2.0}), costs).run(20_000)
    assert shares["other", Lane.BULK] == pytest.approx(2 * shares["one", Lane.BULK], rel=0.10)


def test_a_person_is_not_made_to_wait_for_a_share_that_nobody_missed_yet() -> None:
    policy = FairShare()
    queues = [waiting("query"), waiting("index", Lane.BULK)]
    policy.charge("query", Lane.ONLINE, 20.0, contended=True)
    chosen = policy.choose(queues, now_s=0.0)
    assert chosen is not None
    assert chosen.lane is Lane.ONLINE


def test_online_time_while_no_bulk_work_waited_is_not_held_against_it() -> None:
    policy = FairShare()
    for _ in range(1_000):
        policy.charge("query", Lane.ONLINE, 20.0, contended=False)
    chosen = policy.choose([waiting("query"), waiting("index", Lane.BULK)], now_s=0.0)
    assert chosen is not None
    assert chosen.lane is Lane.ONLINE


def test_a_glut_of_bulk_work_long_ago_does_not_starve_it_now() -> None:
    policy = FairShare()
    for _ in range(100):
        policy.charge("index", Lane.BULK, 1_000.0, contended=True)
    queues = [waiting("query"), waiting("index", Lane.BULK)]
    online_ms = 0.0
    while (chosen := policy.choose(queues, now_s=0.0)) and chosen.lane is Lane.ONLINE and online_ms < 50_000.0:
        policy.charge("query", Lane.ONLINE, 50.0, contended=True)
        online_ms += 50.0
    assert online_ms < 20_000.0
