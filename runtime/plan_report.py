"""`cotenant plan`: its options, the device it plans for, measured rates, and its answer as a table or as JSON."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import Field, ValidationError

from runtime.chunk_limit import slow_unit_warning
from runtime.errors import ConfigurationError
from runtime.registry import RuntimeConfig, Section, parse_bytes

if TYPE_CHECKING:  # --help does without numpy
    from runtime.devices.base import Device
    from runtime.devices.cpu import CpuDevice
    from runtime.planning import Corpus, Endangered, Indexing, Plan

COUNT_PREFIXES: Final = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
PIPE_COLUMNS: Final = 10_000
NO_RATE: Final = "no hours: nobody measured how fast this is; give --tokens-per-s, or --profile with a rate"
GPU_BATCH_TOKENS: Final = 16_384
"""As devices/cuda.py has it, for a GPU that isn't in this machine."""


def _option(name: str, kind: Any, metavar: str | None, text: str, default: Any = None) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


OPTIONS: Final = (
    _option(
        "memory",
        str | None,
        "SIZE",
        "Plan for a GPU with so much memory, such as 24GiB, instead of this machine's device;"
        " with --device cpu for this CPU with so much.",
    ),
    _option("chunks", str | None, "COUNT", "Chunks of a corpus to embed, such as 10M: how long, and for how much?"),
    _option("tokens", int, "TOKENS", "Tokens of a chunk.", 256),
    _option("devices", int, "COUNT", "Devices that share the corpus.", 1),
    _option("tokens_per_s", float | None, "RATE", "Tokens that one device embeds a second."),
    _option("dollars_per_hour", float | None, "USD", "Price of one device for an hour."),
    _option("profile", Path | None, "FILE", "JSON of measured rates by model; see the README."),
    _option("json", bool, None, "Answer in JSON.", False),
)


class MeasuredModel(Section):
    """What was measured of one model on the device that is planned for."""

    tokens_per_s: float | None = Field(None, gt=0, description="Tokens a second in large batches.")
    unit_ms: float | None = Field(None, gt=0, description="Device time of one input alone.")


class Profile(Section):
    """A profile file."""

    models: dict[str, MeasuredModel] = Field({}, description="By id, served name or alias.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All that was worked out."""

    plan: Plan
    endangered: list[Endangered] | None
    """None: nobody measured how long one input takes."""
    indexing: dict[str, Indexing]
    """By model; under `*` by the rate of the command line, for any of them."""
    corpus: Corpus | None


def answer_to(config: RuntimeConfig, asked: Mapping[str, Any]) -> Answer:
    """What the options in `asked` ask of `config`. Raises ConfigurationError."""
    from runtime.backend import TorchBackend
    from runtime.planning import endangered, indexing, plan

    backend = TorchBackend()
    rate = asked["tokens_per_s"]
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigurationError("--tokens-per-s: a number above 0 is needed")
    if asked["dollars_per_hour"] is not None and not 0 <= asked["dollars_per_hour"] < math.inf:
        raise ConfigurationError("--dollars-per-hour: a number of at least 0 is needed")
    measured = _measured(config, asked["profile"])
    rates = {name: each.tokens_per_s for name, each in measured.items() if each.tokens_per_s is not None}
    units_ms = {name: asked["tokens"] / tokens_per_s * 1000.0 for name, tokens_per_s in rates.items()}
    units_ms |= {name: each.unit_ms for name, each in measured.items() if each.unit_ms is not None}
    device = _device(config, backend, asked["memory"])
    corpus = _corpus(asked, _price(config, device, asked["dollars_per_hour"]))
    hours = {} if corpus is None else {"*": rate} if rate is not None else rates
    return Answer(
        plan=plan(config, backend, device),
        endangered=endangered(config.models, units_ms) if units_ms else None,
        indexing={name: indexing(corpus, each) for name, each in hours.items()} if corpus else {},
        corpus=corpus,
    )


def parse_count(text: str) -> int:
    """A count such as `10M`, `2.5k` or `1_000`. Raises ConfigurationError."""
    prefix = COUNT_PREFIXES.get(text[-1:].lower(), 1)
    try:
        count = round(float(text[:-1] if prefix > 1 else text) * prefix)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError("--chunks: not a count: write one such as 10M or 250000") from error
    if count < 1:
        raise ConfigurationError("--chunks: at least 1 is needed")
    return count


def _price(config: RuntimeConfig, device: Device, dollars_per_hour: float | None) -> float | None:
    """Of the whole device; the registry has that of one of its threads."""
    if dollars_per_hour is not None or config.price_per_hour_usd is None:
        return dollars_per_hour
    return config.price_per_hour_usd * device.concurrency.threads


def _corpus(asked: Mapping[str, Any], dollars_per_hour: float | None) -> Corpus | None:
    from runtime.planning import Corpus

    if asked["tokens"] < 1 or asked["devices"] < 1:
        raise ConfigurationError("--tokens and --devices: at least 1 is needed")
    if asked["chunks"] is None:
        return None
    return Corpus(
        chunks=parse_count(asked["chunks"]),
        tokens=asked["tokens"],
        devices=asked["devices"],
        dollars_per_hour=dollars_per_hour,
    )


def _measured(config: RuntimeConfig, path: Path | None) -> dict[str, MeasuredModel]:
    """By the names that the models of `config` are shown under."""
    if path is None:
        return {}
    try:
        profile = Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigurationError(f"{path}: {'.'.join(map(str, first['loc'])) or 'JSON'}: {first['msg']}") from error
    found = {name: config.find(name) for name in profile.models}
    return {spec.name: profile.models[name] for name, spec in found.items() if spec is not None}


def _device(config: RuntimeConfig, backend: Any, memory: str | None) -> Device:
    """This machine's device, or one with so much memory, of which models take the share that they do there."""
    if memory is None:
        opened: Device = backend.open_device(config)
        return opened
    try:
        total = parse_bytes(memory)
    except ValueError as error:
        raise ConfigurationError(f"--memory: {error}") from error
    from runtime.clock import VirtualClock
    from runtime.devices.base import Concurrency
    from runtime.devices.simulated import SimulatedDevice

    if config.device != "cpu":
        gpu = SimulatedDevice(VirtualClock(), Concurrency(lanes=1, flights=2), total)
        gpu.default_batch_tokens, gpu.default_dtype = GPU_BATCH_TOKENS, "bfloat16"
        gpu.description = f"a GPU with {_size(total)}"
        return gpu
    cpu: CpuDevice = backend.open_device(config)
    cpu.total_bytes = total
    cpu.description = f"this CPU with {_size(total)}"
    return cpu


# -- the answer -------------------------------------------------------------------------------------------------


def as_json(answer: Answer) -> str:
    """The whole answer; sizes in bytes."""
    body: dict[str, Any] = {"fits": answer.plan.fits, **asdict(answer.plan)}
    body["endangered"] = None if answer.endangered is None else [asdict(each) for each in answer.endangered]
    if answer.corpus is not None:
        body["corpus"] = asdict(answer.corpus)
        body["indexing"] = {name: asdict(each) for name, each in answer.indexing.items()}
        body["no_hours_because"] = None if answer.indexing else NO_RATE
    return json.dumps(body, indent=2, ensure_ascii=False)


def show(answer: Answer) -> None:
    """Print the answer on standard output: a table of the models, then what else is to be said."""
    from rich.console import Console
    from rich.table import Table

    # In a pipe each model is one line. A model's name or a path may hold what rich would take for markup.
    console = Console(highlight=False, markup=False, width=None if Console().is_terminal else PIPE_COLUMNS)
    table = Table(box=None, pad_edge=False)
    for head in ("model", "verdict", "weights", "workspace", "batch tokens", "why"):
        table.add_column(head, overflow="fold")
    for model in answer.plan.models:
        leaves = f"; in the place of {', '.join(model.evicts)}" if model.evicts else ""
        tokens = "" if model.batch_tokens is None else f"{model.batch_tokens:,}"
        if model.batch_tokens is not None and model.batch_tokens < model.wanted_batch_tokens:
            tokens += f" of {model.wanted_batch_tokens:,}"
        sizes = _size(model.weight_bytes), _size(model.workspace_bytes)
        table.add_row(model.name, model.verdict, *sizes, tokens, model.reason + leaves)
    console.print(table)
    for line in _lines(answer):
        console.print(line)


def _lines(answer: Answer) -> Iterator[str]:
    plan = answer.plan
    verdict = "fits" if plan.fits else "does not fit"
    yield f"{verdict}: {_size(plan.used_bytes)} of {_size(plan.limit_bytes)} booked after the start, on {plan.device}"
    if answer.endangered is None:
        yield "objectives not judged: nobody measured how long one input takes; give --profile"
    for each in answer.endangered or ():
        yield slow_unit_warning(each.model, each.unit_ms, each.objective_of, each.slo_ms)
    if answer.corpus is not None and not answer.indexing:
        yield NO_RATE
    for name, took in answer.indexing.items():
        dollars = "" if took.dollars is None else f", {took.dollars:,.2f} USD"
        whose = "the corpus" if name == "*" else f"the corpus by {name}"
        yield f"{whose}: {took.hours:,.1f} h at {took.tokens_per_s:,.0f} tokens/s on each device{dollars}"


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
