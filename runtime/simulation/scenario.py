"""A scenario file: models and what they cost, a device, and who asks for what. Unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from runtime.configuration import StrictLoader
from runtime.devices.base import Concurrency
from runtime.devices.simulated import Fault, FaultKind, SimulatedCost
from runtime.errors import ConfigurationError
from runtime.registry import ModelSpec, Section, parse_bytes
from runtime.work import Lane

PolicyName = Literal["first-in-first-out", "round-robin", "fair-queueing", "fair-share"]
ReplacementName = Literal["by-value", "least-recent"]
Size = str | int
"""Bytes, such as 8GiB."""


class ScenarioModel(Section):
    """A model, or many of the same kind."""

    id: str = Field(min_length=1, description="Its id; of copies, the id that theirs begin with.")
    copies: int = Field(1, ge=1, description="So many models of the kind, with numbers behind the id.")
    fixed_ms: float = Field(ge=0, description="Device time of a batch besides its tokens.")
    ms_per_token: float = Field(gt=0, description="Device time of a token.")
    weights: Size = Field(0, description="Memory while it is resident.")
    bytes_per_token: int = Field(0, ge=0, description="Workspace of a batch.")
    load_s: float = Field(1.0, ge=0, description="How long a load takes.")
    slo_ms: float = Field(100.0, gt=0, description="As in the registry.")
    weight: float = Field(1.0, gt=0, description="As in the registry.")
    priority: int = Field(0, description="As in the registry.")
    max_batch_tokens: int | None = Field(None, ge=1, description="As in the registry.")

    @field_validator("weights")
    @classmethod
    def _is_a_size(cls, size: Size) -> Size:
        return size if size == 0 else parse_bytes(size)

    @property
    def ids(self) -> list[str]:
        """The ids of all copies."""
        return [self.id] if self.copies == 1 else [f"{self.id}-{number}" for number in range(self.copies)]

    @property
    def cost(self) -> SimulatedCost:
        """What the device is told."""
        return SimulatedCost(
            fixed_ms=self.fixed_ms,
            ms_per_token=self.ms_per_token,
            weight_bytes=int(self.weights),
            bytes_per_token=self.bytes_per_token,
            load_s=self.load_s,
        )

    def specs(self) -> list[ModelSpec]:
        """What the engine is told."""
        return [
            ModelSpec(
                id=name,
                task="embed",
                slo_ms=self.slo_ms,
                weight=self.weight,
                priority=self.priority,
                max_batch_tokens=self.max_batch_tokens,
            )
            for name in self.ids
        ]


class Burst(Section):
    """Requests that come at once."""

    every_s: float = Field(gt=0, description="Seconds from one to the next.")
    requests: int = Field(ge=1, description="How many.")


class Traffic(Section):
    """Requests of one kind: so many a second (Poisson), bursts, or clients that each wait for their answer."""

    model: str = Field(description="A model's id, or that of its copies.")
    lane: Lane = Field(Lane.ONLINE, description="online or bulk.")
    rate_per_s: float = Field(0.0, ge=0, description="Requests a second, at random.")
    clients: int = Field(0, ge=0, description="Clients that ask again as soon as they are answered.")
    burst: Burst | None = Field(None, description="Requests that come at once, again and again.")
    inputs: int = Field(1, ge=1, description="Inputs of a request.")
    tokens: int = Field(ge=0, description="Tokens of an input; with a spread their median.")
    spread: float = Field(0.0, ge=0, description="Sigma of a lognormal distribution of the tokens.")
    zipf: float = Field(0.0, ge=0, description="How unequally copies are asked; 0: equally.")
    from_s: float = Field(0.0, ge=0, description="When it begins.")
    until_s: float | None = Field(None, gt=0, description="When it ends; null: never.")
    deadline_ms: float | None = Field(None, gt=0, description="Each request's deadline.")
    hang_up_ms: float | None = Field(None, gt=0, description="When clients hang up.")


class SimulatedLanesOf(Section):
    """How many batches the device takes; see Concurrency."""

    lanes: int = Field(1, ge=1, description="Batches side by side.")
    flights: int = Field(1, ge=1, description="Batches launched before the first has landed.")
    spare_lanes: int = Field(0, ge=0, description="Lanes for small online inputs only.")
    small_tokens: int = Field(0, ge=0, description="Most tokens of a small input.")
    memory: Size = Field("80GiB", description="Its memory.")

    @property
    def concurrency(self) -> Concurrency:
        """What the executor is told."""
        return Concurrency(
            lanes=self.lanes, flights=self.flights, spare_lanes=self.spare_lanes, small_tokens=self.small_tokens
        )


class ScriptedFault(Section):
    """Something that goes wrong; see Fault."""

    kind: FaultKind = Field(description="out_of_memory, error, slow or stuck_load.")
    model: str | None = Field(None, description="Whose; null: anyone's.")
    from_tokens: int = Field(0, ge=0, description="Only batches of at least so many tokens.")
    of_one_input: bool = Field(False, description="Only batches with an input of so many tokens.")
    after: int = Field(0, ge=0, description="So many such batches go well first.")
    times: int | None = Field(None, ge=1, description="How often; null: for ever.")
    factor: float = Field(10.0, gt=0, description="How much longer slow batches and stuck loads take.")

    def fault(self) -> Fault:
        """What the device is told."""
        return Fault(**self.model_dump())


class Scenario(Section):
    """Everything that a simulation needs to know."""

    duration_s: float = Field(gt=0, description="Seconds of traffic, after the models are loaded.")
    settle_s: float = Field(0.0, ge=0, description="Seconds at the start that don't count in the figures.")
    seed: int = Field(1, description="Of the random arrivals and sizes.")
    policy: PolicyName = Field("fair-share", description="Who decides what runs.")
    replacement: ReplacementName = Field("by-value", description="Who decides which model leaves for another.")
    idle_wait_ms: float = Field(0.0, ge=0, description="As in the registry.")
    max_queue_ms: float = Field(30_000.0, gt=0, description="As in the registry.")
    max_bulk_queue_ms: float = Field(120_000.0, gt=0, description="As in the registry.")
    device: SimulatedLanesOf = Field(default_factory=SimulatedLanesOf, description="The device.")
    models: tuple[ScenarioModel, ...] = Field(min_length=1, description="The models.")
    traffic: tuple[Traffic, ...] = Field(description="Who asks for what.")
    faults: tuple[ScriptedFault, ...] = Field((), description="What goes wrong.")

    @model_validator(mode="after")
    def _traffic_is_for_models(self) -> Self:
        known = {model.id for model in self.models}
        for position, stream in enumerate(self.traffic):
            if stream.model not in known:
                raise ValueError(f"traffic[{position}] is for {stream.model!r}; the models are {', '.join(known)}")
        return self


def read_scenario(path: Path) -> Scenario:
    """The scenario in a YAML file. Raises ConfigurationError, of one line."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=StrictLoader)
        return Scenario.model_validate(tree)
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigurationError(f"{path}: {place}: {first['msg']}") from error
