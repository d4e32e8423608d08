"""A device and models for the engine that are arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.devices.base import Device
from runtime.devices.simulated import SimulatedCost, SimulatedDevice
from runtime.footprint import Footprint
from runtime.models.base import Model
from runtime.models.simulated import SimulatedModel
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.work import MAXSIM_ID, Task

FREE = SimulatedCost(fixed_ms=0.0, ms_per_token=0.0, load_s=0.0)


class SimulatedBackend:
    """See runtime.backend.Backend."""

    def __init__(self, device: SimulatedDevice, costs: Mapping[str, SimulatedCost]) -> None:
        """`costs`: by the models' ids; what is built in costs nothing."""
        self.device = device
        self._costs = {MAXSIM_ID: FREE, **costs}

    def open_device(self, config: RuntimeConfig) -> Device:
        """The device that was made."""
        return self.device

    def task_of(self, spec: ModelSpec) -> Task:
        """Vectors of one number."""
        return Task.EMBED

    def predict(self, spec: ModelSpec, device: Device, budget_tokens: int) -> Footprint:
        """What the cost says."""
        cost = self._costs[spec.id]
        return Footprint(
            weight_bytes=cost.weight_bytes,
            activation_bytes=cost.bytes_per_token * budget_tokens,
            budget_tokens=budget_tokens,
        )

    def load(self, spec: ModelSpec, task: Task, device: Device) -> Model:
        """Takes the load's time and the weights' memory."""
        return SimulatedModel(spec.id, self._costs[spec.id], self.device)
