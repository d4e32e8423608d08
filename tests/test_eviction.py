"""Who leaves: pure arithmetic over candidates; and the ledger under random loads, evictions and departures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.admission import Admission
from runtime.errors import DoesNotFit, NoRoomNow
from runtime.eviction import (
    Candidate,
    Demand,
    Standing,
    by_value,
    min_residence_s,
    value_density,
    victims,
    wait_for_room_s,
)
from runtime.footprint import Footprint
from runtime.ledger import Ledger
from runtime.metering import Metering

SIZES = {"a": 10, "b": 20, "c": 30}


def freeing(needed: int) -> Callable[[frozenset[str]], bool]:
    """Whether those who left give `needed`."""
    return lambda gone: sum(SIZES[name] for name in gone) >= needed


def candidates(**values: float) -> list[Candidate]:
    return [Candidate(model=name, value=value) for name, value in values.items()]


@pytest.mark.parametrize(
    ("needed", "leaving"),
    [(0, []), (5, ["a"]), (10, ["a"]), (11, ["b"]), (25, ["a", "b"]), (31, ["a", "c"]), (60, ["a", "b", "c"])],
)
def test_the_least_valuable_leave_and_nobody_needlessly(needed: int, leaving: Sequence[str]) -> None:
    assert victims(candidates(a=1.0, b=2.0, c=3.0), freeing(needed)) == leaving


def test_the_busy_and_the_newly_come_stay_and_say_when_to_ask_again() -> None:
    some = [
        Candidate(model="a", value=0.0, busy=True),
        Candidate(model="b", value=0.0, stays_s=7.0),
        Candidate(model="c", value=9.0),
    ]
    assert victims(some, freeing(30)) == ["c"]
    assert victims(some, freeing(40)) is None
    assert wait_for_room_s(some, freeing(40)) == 1.0
    assert wait_for_room_s(some, freeing(60)) == 7.0
    assert wait_for_room_s(some, freeing(61)) is None


def test_demand_fades_and_value_is_what_a_byte_saves() -> None:
    demand = Demand()
    for _ in range(10):
        demand.note(100.0)
    assert demand.per_s(100.0) > demand.per_s(200.0) > demand.per_s(2_000.0)
    assert value_density(2.0, 5.0, 100) == pytest.approx(0.1)
    assert value_density(2.0, 5.0, 0) == pytest.approx(10.0)
    assert (min_residence_s(10.0, 0.1), min_residence_s(10.0, 4.0)) == (10.0, 80.0)


def standing(
    requests_per_s: float,
    reload_s: float = 1.0,
    resident_bytes: int = 100,
    idle_s: float = 0.0,
    resident_s: float = 1e6,
    refused_s: float = 0.0,
) -> Standing:
    """Of a model that has been in memory for long."""
    return Standing(
        requests_per_s=requests_per_s,
        reload_s=reload_s,
        resident_bytes=resident_bytes,
        idle_s=idle_s,
        resident_s=resident_s,
        refused_s=refused_s,
    )


def test_a_model_in_use_gives_way_only_to_one_that_is_worth_more() -> None:
    assert by_value(standing(1.0), standing(1.3), 10.0).stays_s == 0.0
    assert by_value(standing(1.0), standing(1.2), 10.0).stays_s > 0.0
    assert by_value(standing(1.0), standing(1.2, reload_s=2.0), 10.0).stays_s == 0.0
    assert by_value(standing(1.0), standing(1.2, resident_bytes=50), 10.0).stays_s == 0.0
    assert by_value(standing(0.0), standing(0.001), 10.0).stays_s == 0.0


def test_a_load_that_was_never_timed_counts_as_fast_as_the_others() -> None:
    guess = standing(1.0, reload_s=30.0)
    assert by_value(standing(1.0), guess, 10.0).stays_s == 0.0
    assert by_value(standing(1.0), replace(guess, timed=False), 10.0).stays_s > 0.0


def test_an_idle_model_gives_way_at_once_whatever_it_was_worth() -> None:
    seldom = standing(0.001)
    assert by_value(standing(9.0, idle_s=15.0), seldom, 10.0).stays_s == pytest.approx(5.0)
    assert by_value(standing(9.0, idle_s=20.0), seldom, 10.0).stays_s == 0.0
    assert by_value(standing(9.0, idle_s=20.0, resident_s=5.0), seldom, 10.0).stays_s == pytest.approx(15.0)


@given(st.floats(0.0, 10.0), st.floats(1e-4, 10.0))
def test_nobody_is_refused_for_ever_and_an_operator_never_for_worth(resident: float, newcomer: float) -> None:
    ages_s = [0.0, 60.0, 600.0, 6_000.0, 60_000.0]
    waits_s = [by_value(standing(resident), standing(newcomer, refused_s=age_s), 10.0).stays_s for age_s in ages_s]
    assert waits_s == sorted(waits_s, reverse=True)
    assert waits_s[-1] == 0.0
    assert by_value(standing(resident), standing(newcomer, refused_s=math.inf), 10.0).stays_s == 0.0


sizes = st.integers(0, 8_000)
footprints = st.builds(
    lambda weights, work, budget: Footprint(weight_bytes=weights, activation_bytes=work, budget_tokens=budget),
    sizes,
    sizes,
    st.integers(0, 512),
)
steps = st.lists(
    st.tuples(st.sampled_from("abcde"), st.none() | footprints, st.sets(st.sampled_from("abcde"))), max_size=25
)


@given(limit=st.integers(100, 30_000), lanes=st.integers(1, 4), steps=steps)
def test_no_sequence_books_more_than_the_limit_and_every_load_is_on_record(
    limit: int, lanes: int, steps: list[tuple[str, Footprint | None, set[str]]]
) -> None:
    admission = Admission(limit, 100, lanes, Metering())
    resident: set[str] = set()
    for model, wanted, busy in steps:
        if wanted is None:
            admission.forget(model)
            resident.discard(model)
            continue
        others = [Candidate(model=name, value=0.0, busy=name in busy) for name in sorted(resident - {model})]
        before = admission.used_bytes()
        try:
            leaving = admission.reserve(model, wanted, others)
        except (DoesNotFit, NoRoomNow):
            assert admission.used_bytes() == before
            verdict, leaving = "refused", list[str]()
        else:
            assert not busy & set(leaving)
            verdict, resident = "admitted", (resident | {model}) - set(leaving)
        load = next(each for each in reversed(admission.decisions) if each.question == "load")
        assert (load.model, load.verdict, load.evicted) == (model, verdict, tuple(leaving))
        assert admission.used_bytes() <= limit
        assert set(admission.budgets()) <= resident


@given(models=st.lists(footprints, min_size=1, max_size=6), limit=sizes, shuffle=st.randoms(use_true_random=False))
def test_budgets_depend_on_who_is_resident_and_not_on_the_order(
    models: list[Footprint], limit: int, shuffle: Random
) -> None:
    ledger = Ledger(limit_bytes=limit, base_bytes=100, lanes=2)
    named = [(str(index), each) for index, each in enumerate(models)]
    budgets = ledger.budgets(dict(named))
    shuffle.shuffle(named)
    assert ledger.budgets(dict(named)) == budgets
    for name, footprint in named:
        if footprint.budget_tokens:
            assert footprint.least_tokens <= budgets[name] <= footprint.budget_tokens


@given(footprints.filter(lambda each: each.budget_tokens > 0), sizes)
def test_a_shrunk_batch_keeps_within_its_workspace(footprint: Footprint, workspace: int) -> None:
    tokens = footprint.tokens_within(workspace)
    if tokens > footprint.least_tokens:
        assert footprint.activation_of(tokens) <= workspace
