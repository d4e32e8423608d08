"""The ledger adds up what models hold and takes the largest workspace; the door refuses with the wait it predicts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.admission import Admission
from runtime.decisions import DECISIONS_KEPT
from runtime.devices.base import Memory
from runtime.errors import DoesNotFit, NoRoomNow, PinnedOut, QueueFull
from runtime.eviction import Candidate
from runtime.footprint import Footprint
from runtime.ledger import WORKSPACE_MARGIN
from runtime.metering import Metering
from runtime.work import Lane

BASE = 100


def ledger(limit_bytes: int = 10**9, lanes: int = 1) -> Admission:
    return Admission(limit_bytes, BASE, lanes, Metering())


def footprint(weights: int, workspace: int = 0) -> Footprint:
    return Footprint(weight_bytes=weights, activation_bytes=workspace)


sizes = st.integers(0, 10_000)
footprints = st.lists(st.builds(footprint, sizes, sizes), min_size=1, max_size=6)


# -- what fits --------------------------------------------------------------------------------------------------


def test_weights_add_up_and_only_the_largest_workspace_counts() -> None:
    admission = ledger()
    admission.reserve("a", footprint(1_000, 400))
    admission.reserve("b", footprint(2_000, 600))
    admission.reserve("c", footprint(3_000, 200))
    assert admission.used_bytes() == BASE + 6_000 + int(600 * WORKSPACE_MARGIN)


def test_each_lane_needs_a_workspace_of_its_own() -> None:
    admission = ledger(lanes=3)
    admission.reserve("a", footprint(1_000, 400))
    assert admission.used_bytes() == BASE + 1_000 + int(3 * 400 * WORKSPACE_MARGIN)


def test_an_empty_ledger_holds_the_base_alone() -> None:
    assert ledger().used_bytes() == BASE


@given(footprints, st.randoms(use_true_random=False))
def test_models_that_fit_together_fit_in_any_order(models: list[Footprint], shuffle: Random) -> None:
    named = list(enumerate(models))
    first = ledger()
    for index, each in named:
        first.reserve(str(index), each)
    snug = ledger(limit_bytes=first.used_bytes())
    shuffle.shuffle(named)
    for index, each in named:
        snug.reserve(str(index), each)
    assert snug.used_bytes() == first.used_bytes()


@given(
    limit=st.integers(BASE, 30_000),
    steps=st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.builds(footprint, sizes, sizes)), max_size=20),
)
def test_no_sequence_of_loads_and_unloads_books_more_than_the_limit(
    limit: int, steps: list[tuple[str, Footprint | None]]
) -> None:
    admission = ledger(limit, lanes=2)
    for model, wanted in steps:
        before = admission.used_bytes()
        if wanted is None:
            admission.forget(model)
        else:
            try:
                admission.reserve(model, wanted)
            except (DoesNotFit, NoRoomNow):
                assert admission.used_bytes() == before
        assert admission.used_bytes() <= limit


def test_the_last_byte_decides() -> None:
    exactly = BASE + 1_000 + int(400 * WORKSPACE_MARGIN)
    ledger(exactly).reserve("a", footprint(1_000, 400))
    with pytest.raises(DoesNotFit):
        ledger(exactly - 1).reserve("a", footprint(1_000, 400))


def test_a_refusal_names_both_figures_and_leaves_nothing_behind() -> None:
    admission = ledger(limit_bytes=10_000)
    admission.reserve("small", footprint(4_000))
    with pytest.raises(NoRoomNow, match=r"needs 7,000 bytes .*; 5,900 bytes are free while"):
        admission.reserve("large", footprint(7_000))
    with pytest.raises(DoesNotFit, match=r"needs 10,000 bytes .*; 9,900 bytes are free"):
        admission.reserve("huge", footprint(10_000))
    assert admission.used_bytes() == BASE + 4_000
    admission.reserve("fits", footprint(5_900))


def test_a_process_that_takes_most_of_the_budget_itself_is_named() -> None:
    said = "; 50 bytes are free; the process itself holds 100 of the 150 bytes budgeted$"
    with pytest.raises(DoesNotFit, match=said):
        ledger(limit_bytes=BASE + 50).reserve("a", footprint(1_000))
    with pytest.raises(DoesNotFit, match=r"; 100 bytes are free$"):
        ledger(limit_bytes=2 * BASE).reserve("a", footprint(1_000))


def test_who_is_pinned_is_named_with_what_is_free_beside_them_alone() -> None:
    admission = ledger(limit_bytes=10_000)
    for model, size in (("left", 3_000), ("right", 2_000), ("other", 1_000), ("built-in", 0)):
        admission.reserve(model, footprint(size))
    names = {"left": "Left", "right": "Right", "built-in": "never told", "gone": "not in memory"}
    with pytest.raises(PinnedOut, match=r"needs 6,000 bytes .*; 4,900 bytes are free beside .* pinned: Left, Right$"):
        admission.reserve("large", footprint(6_000), [Candidate(model="other", value=1.0)], names)
    with pytest.raises(NoRoomNow):  # neither pinned nor to be asked to leave: it is on its way out
        admission.reserve("small", footprint(4_500), pinned=names)
    admission.reserve("small", footprint(4_500), [Candidate(model=name, value=1.0) for name in ("right", "other")])


def test_what_offloaded_models_keep_counts_until_it_is_in_the_way() -> None:
    admission = ledger(limit_bytes=BASE + 1_000)
    kept = Footprint(weight_bytes=300, host_bytes=100)
    for model in ("first", "second"):
        admission.reserve(model, kept)
        assert admission.has_room_offloaded(model, kept)
        admission.note_offloaded(model, kept)
        admission.forget(model)
    assert admission.used_bytes() == BASE + 200
    assert admission.reserve("large", footprint(900)) == []  # nobody's weights need leave for it
    assert admission.crowding() == ["first"]
    admission.note_let_go("first")
    assert admission.crowding() == []
    assert admission.used_bytes() == BASE + 1_000
    admission.forget("large")
    admission.reserve("second", kept)
    assert admission.used_bytes() == BASE + 400
    admission.reserve("large", footprint(600))
    assert not admission.has_room_offloaded("third", kept)


def test_of_one_that_returns_only_what_is_missing_must_be_free() -> None:
    admission = ledger(limit_bytes=10_000)
    kept = Footprint(weight_bytes=300, host_bytes=100)
    memory = Memory(total_bytes=10_000, free_bytes=350, used_by_us_bytes=0)
    admission.reserve("a", kept)
    assert admission.bytes_short("a", memory) == 50
    admission.note_offloaded("a", kept)
    assert admission.bytes_short("a", memory) == 0


def test_a_workspace_within_the_others_costs_nothing() -> None:
    admission = ledger(limit_bytes=BASE + 2_000 + int(1_000 * WORKSPACE_MARGIN))
    admission.reserve("a", footprint(1_000, 1_000))
    admission.reserve("b", footprint(1_000, 1_000))
    with pytest.raises(NoRoomNow, match=r"needs 1 bytes .*; 0 bytes are free"):
        admission.reserve("c", footprint(1))


def test_free_bytes_are_never_told_as_negative() -> None:
    admission = ledger(limit_bytes=5_000)
    admission.reserve("a", footprint(1_000))
    admission.settle("a", footprint(9_000))
    with pytest.raises(NoRoomNow, match="; 0 bytes are free"):
        admission.reserve("b", footprint(1))


def test_loading_a_model_again_replaces_what_it_held() -> None:
    admission = ledger(limit_bytes=10_000)
    admission.reserve("a", footprint(9_000))
    admission.reserve("a", footprint(9_500))
    assert admission.used_bytes() == BASE + 9_500
    with pytest.raises(DoesNotFit, match=r"needs 12,000 bytes .*; 9,900 bytes are free"):
        admission.reserve("a", footprint(12_000))


def test_what_was_measured_replaces_what_was_predicted() -> None:
    admission = ledger()
    admission.reserve("a", footprint(1_000, 400))
    admission.settle("a", footprint(1_200, 100))
    assert admission.used_bytes() == BASE + 1_200 + int(100 * WORKSPACE_MARGIN)


def test_a_model_that_left_is_forgotten_and_may_leave_twice() -> None:
    admission = ledger()
    admission.reserve("a", footprint(1_000, 400))
    admission.forget("a")
    admission.forget("a")
    assert admission.used_bytes() == BASE


# -- what may wait ----------------------------------------------------------------------------------------------


def test_a_wait_up_to_the_most_is_let_in_without_a_word() -> None:
    admission = ledger()
    admission.may_wait("a", Lane.ONLINE, wait_ms=500.0, most_ms=500.0)
    assert not admission.decisions


def test_a_longer_wait_is_refused_with_the_lane_the_seconds_and_when_to_come_back() -> None:
    admission = ledger()
    with pytest.raises(QueueFull, match=r"the bulk queue already holds about 12\.5 s of work") as refusal:
        admission.may_wait("a", Lane.BULK, wait_ms=12_500.0, most_ms=10_000.0)
    assert refusal.value.retry_after_s == pytest.approx(2.5)


@given(wait_ms=st.floats(0.1, 1e6), most_ms=st.floats(0.1, 1e6))
def test_nobody_is_told_to_come_back_at_once(wait_ms: float, most_ms: float) -> None:
    admission = ledger()
    if wait_ms <= most_ms:
        admission.may_wait("a", Lane.ONLINE, wait_ms, most_ms)
        return
    with pytest.raises(QueueFull) as refusal:
        admission.may_wait("a", Lane.ONLINE, wait_ms, most_ms)
    assert refusal.value.retry_after_s is not None
    assert refusal.value.retry_after_s >= 1.0


# -- the record -------------------------------------------------------------------------------------------------


def test_every_load_is_on_record_with_its_bytes_its_verdict_and_its_reason() -> None:
    admission = ledger(limit_bytes=10_000)
    admission.reserve("small", footprint(4_000))
    with pytest.raises(NoRoomNow):
        admission.reserve("large", footprint(7_000))
    with pytest.raises(PinnedOut):
        admission.reserve("large", footprint(7_000), pinned={"small": "Small"})
    with pytest.raises(DoesNotFit):
        admission.reserve("large", footprint(11_000))
    with pytest.raises(QueueFull):
        admission.may_wait("small", Lane.ONLINE, 3.0, 2.0)
    assert [(d.model, d.question, d.asked, d.free, d.verdict, d.reason) for d in admission.decisions] == [
        ("small", "load", 4_000, 9_900, "admitted", "fits"),
        ("large", "load", 7_000, 5_900, "refused", "no_room_now"),
        ("large", "load", 7_000, 5_900, "refused", "pinned_out"),
        ("large", "load", 11_000, 9_900, "refused", "over_budget"),
        ("small", "wait", 3.0, 2.0, "refused", "queue_full"),
    ]


def test_verdicts_are_counted_for_the_metrics() -> None:
    metering = Metering()
    admission = Admission(10**6, BASE, 1, metering)
    for _ in range(3):
        admission.reserve("a", footprint(1))
    line = b'cotenant_admission_decisions_total{decision="admitted",model="a",reason="fits"} 3.0'
    assert line in metering.render()


def test_the_record_keeps_the_latest_decisions_only() -> None:
    admission = ledger()
    for index in range(DECISIONS_KEPT + 5):
        admission.reserve(f"m{index}", footprint(1))
    assert len(admission.decisions) == DECISIONS_KEPT
    assert admission.decisions[-1].model == f"m{DECISIONS_KEPT + 4}"
