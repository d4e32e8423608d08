"""README.md names every route, flag, variable, key, field, error code, metric and module, and none that doesn't exist.

Both sides are read as they are: the code by walking what it builds, README by the tables under its headings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import typer.main
import yaml
from prometheus_client.parser import text_string_to_metric_families
from pydantic import AliasChoices, BaseModel
from starlette.routing import Route

from runtime import __version__, cli, errors
from runtime.api.app import HOT_ROUTES, build_app
from runtime.api.maxsim import MaxSimRequest
from runtime.api.problems import Dialect, problem
from runtime.api.record import Record
from runtime.api.schemas import EmbeddingRequest
from runtime.api.scoring_schemas import ClassifyRequest, PredictRequest, RerankRequest, ScoreRequest
from runtime.api.similarity_map import SimilarityMapRequest
from runtime.configuration import SECTIONS
from runtime.engine import Engine
from runtime.flags import FLAGS, Flag
from runtime.metering import Account
from runtime.registry import ModelSpec, RuntimeConfig, Section
from runtime.work import Lane, Task, Timings
from runtime.worker import State
from tests.doubles import DoubleBackend
from tests.fakes import FakeEngine
from tests.readme import README, ROOT, first_names, named, sections, slug, table, tables

Option = tuple[tuple[str, ...], tuple[str, ...]]
"""Its spellings, and its variables."""


def commands() -> dict[str, Any]:
    found: dict[str, Any] = vars(typer.main.get_command(cli.app))["commands"]
    return found


def options(command: str) -> set[Option]:
    found = set()
    for parameter in commands()[command].params:
        variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
        found.add(((*parameter.opts, *parameter.secondary_opts), tuple(variables)))
    return found


def key_of(flag: Flag) -> tuple[str, ...]:
    """The registry key that a flag sets, as README writes it, if any."""
    section = {"models": "models[]."}.get(flag.section, f"{flag.section}." if flag.section else "")
    return (f"{section}{flag.key}",) if flag.key else ()


def test_every_command_is_documented() -> None:
    assert first_names(table("Commands")) == [f"cotenant {name}" for name in commands()]


def test_every_flag_and_its_variable_are_documented_and_no_other() -> None:
    documented = {(named(row[0]), named(row[1])) for row in table("Flags")}
    assert documented == options("serve") | options("validate")


def test_every_flag_is_documented_with_the_key_that_it_sets() -> None:
    keys = {named(row[0])[0]: named(row[2]) for row in table("Flags")}
    assert keys == {flag.option: key_of(flag) for flag in FLAGS} | {"--schema": ()}


def test_every_flag_and_variable_of_infinity_is_documented_and_no_other() -> None:
    of_infinity = {
        (spellings[0], variable)
        for spellings, variables in options("v2")
        for variable in variables
        if variable.startswith("INFINITY_")
    }
    assert {(named(row[0])[0], named(row[1])[0]) for row in table("Infinity's command line")} == of_infinity


def registry_keys() -> dict[str, Any]:
    """Every key as README writes it, with its default as YAML has it; None for a needed one too."""
    keys: dict[str, Any] = {}
    for name, section in SECTIONS.items():
        place = {"": "", "models": "models[]."}.get(name, f"{name}.")
        needed = {"id": "any"} if section is ModelSpec else {}
        defaults = section(**needed).model_dump(mode="json")
        for key, field in section.model_fields.items():
            if not isinstance(field.get_default(call_default_factory=True), Section):
                keys[f"{place}{key}"] = None if field.is_required() else defaults[key]
    return keys


def test_every_registry_key_is_documented_with_its_default_and_no_other() -> None:
    rows = table("Registry keys")
    assert len({row[0] for row in rows}) == len(rows)
    assert {named(row[0])[0]: yaml.safe_load("".join(named(row[1]))) for row in rows} == registry_keys()


def routes() -> set[str]:
    """Method and path of everything that the app answers."""
    router = inspect.getclosurevars(build_app(FakeEngine())).nonlocals["router"]
    assert all(isinstance(route, Route) for route in router.routes)
    asked = {f"{method} {route.path_format}" for route in router.routes for method in route.methods}
    plain = {name for name in asked if not name.startswith("HEAD ")}
    return plain | {f"POST {path}" for path in HOT_ROUTES}


def test_every_route_is_documented_and_no_other() -> None:
    assert set(first_names(table("Routes"))) == routes()


def request_fields(*schemas: type[BaseModel]) -> Iterator[str]:
    for schema in schemas:
        for name, field in schema.model_fields.items():
            alias = field.validation_alias
            yield from map(str, alias.choices) if isinstance(alias, AliasChoices) else [name]


def test_every_request_field_is_documented_and_no_other() -> None:
    assert set(first_names(table("Request fields"))) == set(request_fields(EmbeddingRequest))
    scoring = request_fields(RerankRequest, ScoreRequest, ClassifyRequest, PredictRequest)
    assert set(first_names(table("Scoring fields"))) == set(scoring)
    assert set(first_names(table("MaxSim fields"))) == set(request_fields(MaxSimRequest, SimilarityMapRequest))


def test_every_response_header_is_documented_and_no_other() -> None:
    record = Record(surface=Dialect.OPENAI, task=Task.EMBED, compute=b"cpu", truncated_inputs=1, candidates=1)
    record.price_per_hour_usd = 1.0
    sent = {name.decode() for name, _ in record.headers(1.0)}
    assert set(first_names(table("Response headers"))) == sent | {"x-request-id"}


def kinds(root: type[errors.CotenantError] = errors.CotenantError) -> Iterator[type[errors.CotenantError]]:
    """The tree of errors/. Other modules may add to it in tests only."""
    if root.__module__.startswith(errors.__name__):
        yield root
        for child in root.__subclasses__():
            yield from kinds(child)


def is_family(kind: type[errors.CotenantError]) -> bool:
    """Whether errors are always of a kind below it. The root stands for bugs, InvalidRequest for itself."""
    below = [child for child in kind.__subclasses__() if child.__module__.startswith(errors.__name__)]
    return bool(below) and kind not in (errors.CotenantError, errors.InvalidRequest, errors.StartupError)


def retry_word(headers: Sequence[tuple[bytes, bytes]]) -> str:
    names = {name for name, _ in headers}
    return "never" if b"x-should-retry" in names else "later" if b"retry-after" in names else "open"


def error_row(kind: type[errors.CotenantError]) -> tuple[str, ...]:
    """Code, the statuses in four dialects, and retry, as a client meets them."""
    dialects = (Dialect.OPENAI, Dialect.INFINITY, Dialect.COHERE, Dialect.TEI)
    answers = [problem(kind("message"), dialect) for dialect in dialects]
    (retry,) = {retry_word(answer.headers) for answer in answers}
    return kind.code, *(str(answer.status) for answer in answers), retry


def test_every_error_is_documented_with_its_statuses_and_retry_and_no_other() -> None:
    answered, _ = tables("Errors")
    rows = [(named(row[0])[0], *row[1:5], row[5].strip("*")) for row in answered]
    sent = [kind for kind in kinds() if not issubclass(kind, errors.StartupError) and not is_family(kind)]
    assert sorted(rows) == sorted({error_row(kind) for kind in sent})


def test_every_error_that_ends_the_start_and_every_family_is_documented() -> None:
    _, ending = tables("Errors")
    assert set(first_names(ending)) == {kind.code for kind in kinds(errors.StartupError)}
    assert {kind.code for kind in kinds()} <= set(named("\n".join(sections()["Errors"])))


def test_the_limits_name_keys_and_codes_that_exist() -> None:
    rows = table("Limits")
    keys, codes = ([name for row in rows for name in named(row[column])] for column in (3, 2))
    assert set(keys) <= set(registry_keys())
    assert set(codes) - {"truncate: false"} <= {kind.code for kind in kinds()}


async def every_metric() -> str:
    """What a scrape shows of an engine in which everything has happened once."""
    engine = Engine(RuntimeConfig(models=(ModelSpec(id="a"),)), DoubleBackend())
    await engine.start()
    await engine.wait_loaded()
    metering = engine.metering
    metering.observe_request("openai", "a", "embed", 200, 0.1, Lane.ONLINE)
    metering.observe_request_error("openai", "queue_full")
    metering.observe_padding("a", Lane.ONLINE, 1)
    metering.observe_job("a", "default", 1, 1, Timings())
    metering.observe_batch("a", Lane.ONLINE, 1, 1, 1.0)
    metering.observe_error("a", "forward_failed")
    metering.observe_cancel("a")
    metering.observe_decision("a", "admitted", "fits")
    metering.observe_candidates("a", "scored", 1)
    metering.observe_cost(Account("a", "rerank", "online", "default"), {"device": 1.0}, 1.0, 0.1)
    metering.observe_eviction("a", "idle")
    shown = metering.render().decode()
    await engine.stop()
    return shown


@pytest.mark.anyio
async def test_every_metric_is_documented_with_its_type_and_labels_and_no_other() -> None:
    found = set()
    for family in text_string_to_metric_families(await every_metric()):
        if family.name.endswith("_created"):
            continue  # when a counter began, which the client library adds to each
        assert family.samples, f"{family.name} has no sample: let it happen in every_metric"
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        total = "_total" if family.type == "counter" else ""
        found.add((family.name + total, family.type, frozenset(labels)))
    assert len(first_names(table("Metrics"))) == len(found)
    assert {(named(row[0])[0], row[1], frozenset(named(row[2]))) for row in table("Metrics")} == found


def test_every_state_of_a_model_is_documented_and_no_other() -> None:
    assert first_names(table("Health")) == [state.value for state in State]


def test_the_map_names_every_module_and_no_other() -> None:
    runtime = ROOT / "runtime"
    modules = {str(path.relative_to(runtime)) for path in runtime.rglob("*.py") if not path.name.startswith("__")}
    assert set(first_names(table("Map of `runtime/`"))) == modules


def test_every_link_within_the_file_leads_to_a_heading() -> None:
    anchors = set(re.findall(r"\]\(#([^)]+)\)", README))
    assert anchors
    assert anchors <= set(map(slug, sections()))


def test_every_file_that_is_named_exists() -> None:
    linked = re.findall(r"\]\((?!#|https?:)([^)]+)\)", README)
    started = re.findall(r"(?<![\w/.-])(?:\./)?((?:scripts|examples|tests)/[\w./-]*\w)", README)
    assert linked
    assert started
    assert [name for name in sorted({*linked, *started}) if not (ROOT / name).exists()] == []


def test_every_script_and_example_is_named() -> None:
    files = [path for path in (*ROOT.glob("scripts/*"), *ROOT.glob("examples/*")) if path.is_file()]
    shown = [path for path in files if path.parent.name == "examples" or not path.suffix]
    assert shown
    assert [path.name for path in shown if f"{path.parent.name}/{path.name}" not in README] == []


def test_the_changelog_has_a_section_for_what_is_new_or_for_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\]", changelog, flags=re.MULTILINE)
    assert versions[0] in ("Unreleased", __version__)
