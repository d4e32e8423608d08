"""Simulated traffic: the policies in their order, overload, faults; and the same again for a seed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime.clock import VirtualClock
from runtime.devices.base import Concurrency
from runtime.devices.simulated import SimulatedCost, SimulatedDevice
from runtime.errors import ConfigurationError
from runtime.simulation.figures import Figures, table
from runtime.simulation.policies import POLICIES
from runtime.simulation.run import simulate
from runtime.simulation.scenario import PolicyName, Scenario, read_scenario
from runtime.work import Lane
from tests.scenarios import SCENARIOS, scenario

ROOT = Path(__file__).parent.parent


def of_one_model(*traffic: Mapping[str, object], **changes: object) -> Scenario:
    model = {"id": "a", "fixed_ms": 2.0, "ms_per_token": 0.1, "max_batch_tokens": 1024}
    return Scenario.model_validate(
        {"duration_s": 10, "models": [model], "traffic": [{"model": "a", "tokens": 64, **each} for each in traffic]}
        | changes
    )


# -- the policy among others ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def co_hosted() -> dict[PolicyName, Figures]:
    """Queries, reranks, pages and an endless index on one GPU, under each policy."""
    long, short = (scenario("co_hosted", duration_s=seconds, settle_s=2) for seconds in (22, 8))
    compared = ("first-in-first-out", "fair-share")
    return {policy: simulate(long if policy in compared else short, policy) for policy in POLICIES}


def query_p95_ms(figures: Figures) -> float:
    return figures.of("embedder", Lane.ONLINE).delay_ms(0.95)


def test_queries_wait_less_under_each_better_policy_and_least_under_ours(
    co_hosted: dict[PolicyName, Figures],
) -> None:
    order: list[PolicyName] = ["first-in-first-out", "round-robin", "fair-queueing", "fair-share"]
    p95s_ms = [query_p95_ms(co_hosted[policy]) for policy in order]
    assert p95s_ms == sorted(p95s_ms, reverse=True)
    assert len(set(p95s_ms)) == len(p95s_ms)


def test_under_ours_queries_meet_their_objective_and_the_index_hardly_notices(
    co_hosted: dict[PolicyName, Figures],
) -> None:
    ours = co_hosted["fair-share"]
    assert query_p95_ms(ours) <= 25.0
    assert ours.of("reranker", Lane.ONLINE).delay_ms(0.95) <= 100.0
    assert ours.of("pages", Lane.ONLINE).delay_ms(0.95) <= 200.0
    assert ours.tokens_per_s(Lane.BULK) >= 0.85 * co_hosted["first-in-first-out"].tokens_per_s(Lane.BULK)


def test_the_device_is_never_idle_while_work_waits(co_hosted: dict[PolicyName, Figures]) -> None:
    for figures in co_hosted.values():
        assert figures.busy == pytest.approx(1.0, abs=0.02)


def test_without_online_traffic_bulk_batches_are_long_again() -> None:
    quiet = scenario("co_hosted", duration_s=4, settle_s=2)
    index = [stream.model_dump() for stream in quiet.traffic if stream.lane is Lane.BULK]
    query = {"model": "embedder", "rate_per_s": 50, "tokens": 14}
    alone = simulate(scenario("co_hosted", duration_s=4, settle_s=2, traffic=index)).of("embedder", Lane.BULK)
    beside = simulate(scenario("co_hosted", duration_s=4, settle_s=2, traffic=[*index, query]))
    longest_ms = alone.device_ms / alone.batches
    with_queries = beside.of("embedder", Lane.BULK)
    assert longest_ms == pytest.approx(39.8, rel=0.02)
    assert with_queries.device_ms / with_queries.batches < 14.0


# -- overload ---------------------------------------------------------------------------------------------------


def test_of_four_times_too_much_the_device_answers_what_it_can_in_time_and_refuses_the_rest_at_once() -> None:
    figures = simulate(scenario("overload", duration_s=20))
    answered = figures.of("embedder", Lane.ONLINE)
    assert answered.delay_ms(1.0) <= 2_000.0
    assert set(answered.outcomes) <= {"queue_full", "deadline_exceeded"}
    assert answered.outcomes["deadline_exceeded"] <= 0.01 * len(answered.delays_ms)
    assert answered.inputs <= 1.02 * len(answered.delays_ms)  # no run whose answer came too late
    assert answered.outcomes["queue_full"] > 2 * len(answered.delays_ms)


def test_after_an_overload_the_next_requests_are_as_fast_as_ever() -> None:
    calm = {"rate_per_s": 5, "from_s": 10.5}
    before = simulate(of_one_model(calm, duration_s=15)).of("a", Lane.ONLINE)
    storm = {"rate_per_s": 600, "until_s": 10, "deadline_ms": 500}
    after = simulate(of_one_model(calm, storm, duration_s=15, settle_s=10.5)).of("a", Lane.ONLINE)
    assert not after.outcomes
    assert after.delay_ms(0.95) <= 2 * before.delay_ms(0.95)


def test_one_input_and_a_list_are_refused_alike_and_a_large_request_into_an_empty_queue_is_taken() -> None:
    storm = {"rate_per_s": 300, "inputs": 1}
    lists = {"rate_per_s": 300, "inputs": 2, "tokens": 32}
    figures = simulate(of_one_model(storm, lists, max_queue_ms=200))
    assert figures.of("a", Lane.ONLINE).outcomes["queue_full"] > 0
    large = simulate(of_one_model({"clients": 1, "inputs": 2_000}, max_queue_ms=200, duration_s=30))
    assert not large.of("a", Lane.ONLINE).outcomes
    assert large.of("a", Lane.ONLINE).delays_ms


def test_clients_that_hang_up_cost_only_what_had_started() -> None:
    """200 clients behind a long batch leave after 50 ms: the device runs the long batch and nothing else."""
    long = {"burst": {"every_s": 1_000, "requests": 1}, "inputs": 1, "tokens": 20_000, "lane": "bulk"}
    leavers = {"burst": {"every_s": 1_000, "requests": 200}, "from_s": 0.1, "hang_up_ms": 50}
    figures = simulate(of_one_model(long, leavers))
    assert figures.of("a", Lane.ONLINE).outcomes == {"hung_up": 200}
    assert figures.of("a", Lane.ONLINE).batches == 0
    assert figures.of("a", Lane.BULK).tokens == 20_000


# -- faults -----------------------------------------------------------------------------------------------------


def test_out_of_memories_harm_nobody_and_the_neighbour_is_as_fast_as_without_them() -> None:
    broken = simulate(scenario("out_of_memory", duration_s=20))
    whole = simulate(scenario("out_of_memory", duration_s=20, faults=[]))
    for figures in (broken, whole):
        assert not any(stream.outcomes for stream in figures.streams.values())
    assert broken.ceilings["hungry"] <= 2_400 < whole.ceilings["hungry"]
    neighbours = [figures.of("neighbour", Lane.ONLINE) for figures in (broken, whole)]
    assert neighbours[0].delay_ms(0.95) <= 1.25 * neighbours[1].delay_ms(0.95)
    rates = [figures.of("hungry", Lane.BULK).tokens for figures in (broken, whole)]
    assert rates[0] >= 0.8 * rates[1]


def test_after_out_of_memories_the_ceiling_recovers_slowly() -> None:
    model = {"id": "a", "fixed_ms": 1.0, "ms_per_token": 0.01, "max_batch_tokens": 1024}
    fault = {"kind": "out_of_memory", "times": 5}
    asked = {"models": [model], "faults": [fault]}
    clients = {"clients": 8, "tokens": 200, "lane": "bulk"}  # a lone input would not lower it
    early, middle, late = (
        simulate(of_one_model(clients, duration_s=seconds, **asked)).ceilings["a"] for seconds in (1, 6, 20)
    )
    assert early < middle < late == 1_024


# -- residency --------------------------------------------------------------------------------------------------


def test_of_sixty_four_models_sixteen_are_in_memory_and_the_others_come_when_asked() -> None:
    figures = simulate(scenario("sixty_four_models", duration_s=600))
    assert 0.3 < figures.hit_rate < 1.0
    assert figures.evictions > 0
    assert figures.verdicts["refused"] > 0
    # Each of sixteen places changes hands at most once in the 20 loads' time that a model stays, and at the end of it.
    assert figures.evictions <= 16 * (1 + 600 / (20 * 6))
    outcomes = figures.of("team", Lane.ONLINE).outcomes
    assert set(outcomes) <= {"model_loading", "no_room_now"}


def test_models_found_in_memory_and_answers_are_more_than_least_recent_gives_with_fewer_swaps() -> None:
    asked = scenario("sixty_four_models", duration_s=900)
    ours, lru = simulate(asked), simulate(asked, replacement="least-recent")
    assert ours.hit_rate > lru.hit_rate
    assert ours.answered_rate > lru.answered_rate
    assert ours.evictions < lru.evictions / 2
    assert f"answered {ours.answered_rate:.1%}" in table(ours)


def test_a_model_that_others_are_worth_more_than_is_loaded_in_the_end() -> None:
    def model(name: str) -> dict[str, object]:
        return {"id": name, "fixed_ms": 1.0, "ms_per_token": 0.01, "weights": "4GiB", "load_s": 1.0}

    asked = Scenario.model_validate(
        {
            "duration_s": 1_800,
            "device": {"memory": "6GiB"},
            "models": [model("asked-often"), model("asked-seldom")],
            "traffic": [
                {"model": "asked-often", "rate_per_s": 2.0, "tokens": 10},
                {"model": "asked-seldom", "rate_per_s": 0.2, "tokens": 10},
            ],
        }
    )
    figures = simulate(asked)
    often, seldom = (figures.of(name, Lane.ONLINE) for name in ("asked-often", "asked-seldom"))
    assert seldom.delays_ms
    assert seldom.outcomes["no_room_now"] > len(seldom.delays_ms)
    assert len(often.delays_ms) > 3_000
    assert figures.evictions <= 12


def test_models_that_fit_together_never_leave() -> None:
    asked = scenario("sixty_four_models", duration_s=300)
    models = [model.model_dump() | {"copies": 16} for model in asked.models]
    figures = simulate(scenario("sixty_four_models", duration_s=300, models=models))
    assert figures.hit_rate == 1.0
    assert figures.evictions == 0
    assert not figures.of("team", Lane.ONLINE).outcomes


def test_a_load_warms_up_in_a_time_to_come_and_batches_of_the_present_run_before_it() -> None:
    clock = VirtualClock()
    device = SimulatedDevice(clock, Concurrency(lanes=1, flights=2), memory_bytes=2**30)
    second = SimulatedCost(fixed_ms=0.0, ms_per_token=1000.0)
    clock.wait_until(6.0)
    assert device.start("newcomer", second, [1]).ready_s == 7.0
    clock.set(0.0)
    assert [device.start("here", second, [tokens]).ready_s for tokens in (4, 3, 2, 1)] == [4.0, 10.0, 6.0, 11.0]


# -- the tool ---------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    asked = of_one_model({"rate_per_s": 80, "spread": 0.5})
    assert simulate(asked) == simulate(asked)
    assert simulate(asked) != simulate(asked.model_copy(update={"seed": 2}))


def test_a_day_of_light_traffic_is_simulated() -> None:
    figures = simulate(of_one_model({"rate_per_s": 0.05}, duration_s=86_400))
    assert 4_100 < len(figures.of("a", Lane.ONLINE).delays_ms) < 4_600
    assert figures.of("a", Lane.ONLINE).delay_ms(0.5) == pytest.approx(2.0 + 6.4)


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_a_scenario(path: Path) -> None:
    assert read_scenario(path).traffic


def test_the_table_has_a_line_for_each_kind_of_traffic_and_one_for_the_device() -> None:
    figures = simulate(of_one_model({"rate_per_s": 20}, {"lane": "bulk", "clients": 1}, duration_s=2))
    lines = table(figures).splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["a", "bulk"], ["a", "online"]]
    assert lines[3].startswith("device busy ")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("duration_s: 1", "models: Field required"),
        ("duration_s: 1\nmodels: [{id: a, fixed_ms: 1, ms_per_token: 1}]\ntraffic: [{model: b, tokens: 1}]", "'b'"),
        ("duration_s: [", "not valid YAML"),
        ("duration_s: 1\nspeed: 2\nmodels: [{id: a, fixed_ms: 1, ms_per_token: 1}]\ntraffic: []", "speed"),
    ],
)
def test_a_scenario_with_a_mistake_is_refused_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as refusal:
        read_scenario(path)
    assert complaint in refusal.value.message
    assert "\n" not in refusal.value.message


def test_a_simulation_needs_no_torch() -> None:
    command = "import sys, runtime.simulation.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT, check=False).returncode == 0
