"""Who gets how much of a simulated device: shares by weight, and nobody late for another's flood."""

from __future__ import annotations

import pytest

from runtime.simulation.run import simulate
from runtime.work import Lane
from tests.scenarios import scenario


@pytest.mark.parametrize("weight", [1, 3])
def test_two_indexes_share_the_device_by_weight_whatever_their_batches_cost(weight: float) -> None:
    asked = scenario("shares", duration_s=20)
    models = [model.model_dump() | {"weight": weight if model.id == "heavy" else 1} for model in asked.models]
    figures = simulate(scenario("shares", duration_s=20, models=models))
    heavy, light = (figures.share(model, Lane.BULK) for model in ("heavy", "light"))
    assert heavy / light == pytest.approx(weight, rel=0.10)


def test_a_model_that_is_rarely_asked_is_answered_as_soon_as_if_it_were_alone_but_for_one_batch() -> None:
    asked = scenario("shares", duration_s=20)
    index = [stream.model_dump() for stream in asked.traffic if stream.model == "heavy"]
    rare = {"model": "light", "lane": "bulk", "rate_per_s": 0.5, "inputs": 1, "tokens": 200}
    alone = simulate(scenario("shares", duration_s=20, traffic=[rare])).of("light", Lane.BULK)
    beside = simulate(scenario("shares", duration_s=20, traffic=[rare, *index])).of("light", Lane.BULK)
    assert len(beside.delays_ms) == len(alone.delays_ms) > 3
    assert beside.delay_ms(1.0) <= alone.delay_ms(1.0) + 60.0


def test_who_asks_for_little_does_not_feel_that_another_model_is_flooded() -> None:
    figures = simulate(scenario("flood", duration_s=40))
    assert figures.of("flooded", Lane.ONLINE).outcomes["queue_full"] > 200
    for model, limit_ms in (("neighbour", 200.0), ("impatient", 150.0)):
        asked = figures.of(model, Lane.ONLINE)
        assert len(asked.delays_ms) > 80
        assert sum(asked.outcomes.values()) == 0
        assert asked.delay_ms(0.95) < limit_ms


def test_a_flood_with_deadlines_closes_no_other_model_s_door() -> None:
    streams = [stream.model_dump() | {"deadline_ms": 1_000} for stream in scenario("flood").traffic]
    figures = simulate(scenario("flood", traffic=streams, duration_s=20))
    assert figures.of("flooded", Lane.ONLINE).outcomes["queue_full"] > 100
    assert not figures.of("impatient", Lane.ONLINE).outcomes
    neighbour = figures.of("neighbour", Lane.ONLINE)
    assert sum(neighbour.outcomes.values()) <= 0.1 * len(neighbour.delays_ms)


@pytest.mark.parametrize("lane", Lane)
def test_a_model_s_full_queue_closes_no_other_model_s_door(lane: Lane) -> None:
    streams = [stream.model_dump() | {"lane": lane, "deadline_ms": None} for stream in scenario("flood").traffic]
    figures = simulate(scenario("flood", traffic=streams, max_queue_ms=3_000, max_bulk_queue_ms=3_000, duration_s=20))
    assert figures.of("flooded", lane).outcomes["queue_full"] > 100
    assert not figures.of("neighbour", lane).outcomes
    assert not figures.of("impatient", lane).outcomes
