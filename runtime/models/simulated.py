"""A model made of arithmetic, for the simulated device: an input costs what its length says. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from runtime.devices.simulated import Run, SimulatedCost, SimulatedDevice
from runtime.models.base import Flight, Model, ModelFacts
from runtime.work import Job, Prepared, Row, characters


@lru_cache(maxsize=65_536)
def input_of(tokens: int) -> Prepared:
    """An input of so many tokens, shared by all that are as long."""
    return Prepared(token_ids=np.zeros(tokens, dtype=np.int32))


class SimulatedFlight(Flight):
    """A batch whose time on the device is known from the start."""

    def __init__(self, device: SimulatedDevice, run: Run, sizes: Sequence[int]) -> None:
        self.ready_s = run.ready_s
        self._device = device
        self._run = run
        self._sizes = sizes

    def land(self) -> list[Row]:
        """One number a row: the tokens of its input."""
        self._device.finish(self._run)
        return [_row(tokens) for tokens in self._sizes]


@lru_cache(maxsize=65_536)
def _row(tokens: int) -> NDArray[np.float32]:
    return np.array([tokens], dtype=np.float32)


class SimulatedModel(Model):
    """Inputs are texts or token ids; each character or id is a token. A row says how many its input has."""

    def __init__(self, name: str, cost: SimulatedCost, device: SimulatedDevice) -> None:
        """Loads: blocks for the load's time. Raises SimulatedOutOfMemory."""
        device.load(name, cost)
        self.facts = ModelFacts(
            dimensions=1,
            max_tokens=65_536,
            dtype="float32",
            execution="packed",
            execution_reason="simulated",
            prompts=(),
            weight_bytes=cost.weight_bytes,
            activation_bytes_per_token=cost.bytes_per_token,
        )
        self._name = name
        self._cost = cost
        self._device = device

    def prepare(self, job: Job) -> list[Prepared]:
        """Count; nothing is tokenized."""
        return [input_of(characters(item)) for item in job.inputs]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Take the device's time and memory by the cost line."""
        sizes = [item.tokens for item in items]
        return SimulatedFlight(self._device, self._device.start(self._name, self._cost, sizes), sizes)

    def close(self) -> None:
        """Let the weights go."""
        self._device.unload(self._name)
