"""How long a batch may be: the formula, half a second later, and what measured delays make of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.chunk_limit import LEAST_MS, MOST_MS, REPLIES_A_TRIM, ChunkLimit, slow_unit
from runtime.devices.base import Concurrency
from runtime.scheduling import CostLine, FairShare
from runtime.work import Lane, Waiting


def limit(**slos_ms: float) -> ChunkLimit:
    return ChunkLimit(slo_ms=slos_ms)


def reply(chunks: ChunkLimit, model: str, delay_ms: float, times: int = REPLIES_A_TRIM) -> None:
    for _ in range(times):
        chunks.replied(model, delay_ms)


def test_an_objective_of_30_ms_gives_bulk_batches_of_about_12() -> None:
    chunks = limit(query=30.0)
    chunks.saw_online("query", 2.5, now_s=10.0)
    assert chunks.bulk_ms(10.0) == pytest.approx((30 - 2.5 - 3) / 2)
    assert chunks.online_ms(10.0) == 15.0


def test_a_second_after_the_last_online_work_bulk_batches_are_long_again() -> None:
    chunks = limit(query=30.0)
    assert chunks.bulk_ms(0.0) == MOST_MS
    chunks.saw_online("query", 2.5, now_s=10.0)
    assert chunks.bulk_ms(11.0) < MOST_MS
    assert chunks.bulk_ms(11.01) == MOST_MS


def test_the_strictest_model_that_is_in_use_counts() -> None:
    chunks = limit(query=30.0, rerank=90.0)
    chunks.saw_online("rerank", 7.0, now_s=10.0)
    assert chunks.bulk_ms(10.0) == 40.0
    chunks.saw_online("query", 3.0, now_s=10.0)
    assert chunks.bulk_ms(10.5) == 12.0


@given(st.floats(0.1, 1e5), st.floats(0, 1e5), st.lists(st.floats(0, 1e4), max_size=8))
def test_the_limit_stays_within_4_and_50_ms_whatever_is_measured(
    slo_ms: float, unit_ms: float, delays_ms: list[float]
) -> None:
    chunks = limit(query=slo_ms)
    chunks.saw_online("query", unit_ms, now_s=0.0)
    for delay_ms in delays_ms:
        assert LEAST_MS <= chunks.bulk_ms(0.0) <= MOST_MS
        reply(chunks, "query", delay_ms)
    assert LEAST_MS <= chunks.bulk_ms(0.0) <= MOST_MS


def test_a_missed_objective_cuts_the_limit_to_seven_tenths_and_a_comfortable_one_adds_a_millisecond() -> None:
    chunks = limit(query=30.0)
    chunks.saw_online("query", 3.0, now_s=0.0)
    assert chunks.bulk_ms(0.0) == 12.0
    reply(chunks, "query", 31.0)
    assert chunks.bulk_ms(0.0) == pytest.approx(0.7 * 12.0)
    reply(chunks, "query", 23.0)
    assert chunks.bulk_ms(0.0) == pytest.approx(0.7 * 12.0 + 1.0)
    reply(chunks, "query", 27.0)
    assert chunks.bulk_ms(0.0) == pytest.approx(0.7 * 12.0 + 1.0)


def test_the_p95_decides_and_not_a_few_stragglers() -> None:
    chunks = limit(query=30.0)
    chunks.saw_online("query", 3.0, now_s=0.0)
    assert chunks.bulk_ms(0.0) == 12.0
    reply(chunks, "query", 500.0, times=REPLIES_A_TRIM // 20 - 1)
    reply(chunks, "query", 1.0, times=REPLIES_A_TRIM - REPLIES_A_TRIM // 20 + 1)
    assert chunks.bulk_ms(0.0) == 13.0


def test_only_the_strictest_model_lengthens_batches_and_any_model_shortens_them() -> None:
    chunks = limit(query=30.0, rerank=100.0)
    for model in ("query", "rerank"):
        chunks.saw_online(model, 3.0, now_s=0.0)
    assert chunks.bulk_ms(0.0) == 12.0
    reply(chunks, "rerank", 1.0)
    assert chunks.bulk_ms(0.0) == 12.0
    reply(chunks, "rerank", 101.0)
    assert chunks.bulk_ms(0.0) == pytest.approx(0.7 * 12.0)


def test_a_unit_beyond_half_the_strictest_objective_is_reported() -> None:
    assert slow_unit(21.5, {"query": 30.0, "rerank": 100.0}) == ("query", 30.0)
    assert slow_unit(14.9, {"query": 30.0, "rerank": 100.0}) is None
    assert slow_unit(1e9, {}) is None


# -- in the policy ----------------------------------------------------------------------------------------------


def queue(model: str, lane: Lane) -> Waiting:
    return Waiting(model, lane, items=99, tokens=99_000, first_tokens=10, due_s=1.0, budget_tokens=16_384)


def policy() -> FairShare:
    lines = {"query": CostLine(1.0, 0.01), "index": CostLine(1.0, 0.01)}
    return FairShare(predict_ms=lines, chunks=limit(query=30.0))


def tokens_of_index(chooser: FairShare, now_s: float) -> int:
    chosen = chooser.choose([queue("index", Lane.BULK)], now_s)
    assert chosen is not None
    return chosen.max_tokens


def test_bulk_batches_are_cut_while_online_work_is_about() -> None:
    chooser = policy()
    chooser.adapt(Concurrency(lanes=1, flights=1))
    assert tokens_of_index(chooser, 0.0) == 4_900
    chosen = chooser.choose([queue("query", Lane.ONLINE), queue("index", Lane.BULK)], 0.5)
    assert chosen is not None
    assert (chosen.model, chosen.max_tokens) == ("query", 1_400)
    assert tokens_of_index(chooser, 0.6) == pytest.approx(((30.0 - 1.1 - 3.0) / 2 - 1.0) / 0.01, abs=1)
    assert tokens_of_index(chooser, 1.6) == 4_900


def test_a_device_with_a_spare_lane_needs_no_short_batches() -> None:
    chooser = policy()
    chooser.adapt(Concurrency(lanes=2, flights=1, spare_lanes=1, small_tokens=32))
    chooser.choose([queue("query", Lane.ONLINE)], 0.5)
    assert tokens_of_index(chooser, 0.6) == 16_384


@given(st.floats(0, 100), st.floats(0.0001, 5), st.floats(4, 50))
def test_a_chunk_takes_its_time_or_its_fixed_part_twice_or_is_one_token(
    fixed_ms: float, ms_per_token: float, most_ms: float
) -> None:
    line = CostLine(fixed_ms, ms_per_token)
    tokens = line.tokens_within(most_ms)
    assert tokens >= 1
    assert tokens == 1 or line.predict_ms(tokens) <= max(most_ms, 2 * fixed_ms) * (1 + 1e-9)
    assert line.predict_ms(tokens + 1) >= most_ms * (1 - 1e-9)
