"""What a batch will cost: a line through measurements, and how it follows new ones."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.scheduling import CostLine


@given(
    fixed_ms=st.floats(0, 50),
    ms_per_token=st.floats(0.001, 5),
    sizes=st.lists(st.integers(1, 16_384), min_size=2, max_size=6),
)
def test_a_line_is_found_again_from_points_on_it(fixed_ms: float, ms_per_token: float, sizes: list[int]) -> None:
    assume(max(sizes) >= 2 * min(sizes))
    line = CostLine.fit([(tokens, fixed_ms + ms_per_token * tokens) for tokens in sizes])
    assert line.ms_per_token == pytest.approx(ms_per_token, rel=1e-6)
    assert line.fixed_ms == pytest.approx(fixed_ms, rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(st.integers(1, 16_384), st.floats(0, 10_000)), min_size=1, max_size=6))
def test_no_measurement_makes_a_batch_cost_less_than_nothing(points: list[tuple[int, float]]) -> None:
    line = CostLine.fit(points)
    assert line.fixed_ms >= 0.0
    assert line.ms_per_token > 0.0


def test_one_size_alone_gives_what_it_measured() -> None:
    assert CostLine.fit([(64, 8.0), (64, 10.0)]).predict_ms(64) == pytest.approx(9.0, rel=1e-3)


@given(slope=st.floats(0.01, 2), true_slope=st.floats(0.01, 2), tokens=st.integers(64, 4_096))
def test_learning_moves_towards_what_was_measured_and_never_past_it(
    slope: float, true_slope: float, tokens: int
) -> None:
    line = CostLine(fixed_ms=3.0, ms_per_token=slope)
    line.learn(tokens, 3.0 + true_slope * tokens)
    low, high = sorted((slope, true_slope))
    assert low - 1e-9 <= line.ms_per_token <= high + 1e-9
    assert abs(line.ms_per_token - true_slope) <= 0.96 * abs(slope - true_slope) + 1e-9
    for _ in range(300):
        line.learn(tokens, 3.0 + true_slope * tokens)
    assert line.ms_per_token == pytest.approx(true_slope, rel=1e-3)


def test_a_batch_of_few_tokens_says_nothing_about_the_slope() -> None:
    line = CostLine(fixed_ms=2.0, ms_per_token=0.2)
    line.learn(63, 1_000.0)
    assert line.ms_per_token == 0.2
