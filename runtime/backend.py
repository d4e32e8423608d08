"""What the engine needs from the world of tensors: a device and loaded models. Torch comes late, in the loader thread.

Tests and simulations give the engine another backend; the rest of the engine stays as it is.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Protocol

from runtime.devices.base import Device
from runtime.devices.process import settle_process, uncollected
from runtime.footprint import Footprint
from runtime.models.base import Model
from runtime.registry import ModelSpec, RuntimeConfig
from runtime.work import MAXSIM_ID, Task

log = logging.getLogger(__name__)


class Backend(Protocol):
    """All calls block and come from the loader thread."""

    def open_device(self, config: RuntimeConfig) -> Device:
        """The configured device. Raises ConfigurationError when this machine has none such."""

    def task_of(self, spec: ModelSpec) -> Task:
        """What the model's files say it does, before its weights are there. Raises SourceNotFound."""

    def predict(self, spec: ModelSpec, device: Device, budget_tokens: int) -> Footprint:
        """Bytes that `spec` will take, before anything is loaded. Raises SourceNotFound."""

    def load(self, spec: ModelSpec, task: Task, device: Device) -> Model:
        """The model on the device. Raises StartupError, or what the loading library raises."""


class TorchBackend:
    """Real devices and real models."""

    _rehearsed: ClassVar[bool] = False
    """In this process."""

    def open_device(self, config: RuntimeConfig) -> Device:
        """See Backend.open_device."""
        with uncollected():
            device = self._open(config)
        settle_process()
        device.release_cache()
        return device

    def _open(self, config: RuntimeConfig) -> Device:
        from runtime.devices.opening import open_device

        device = open_device(config.device, config.cpu_lanes, config.split_products)
        # Now and not with the first model: on CPU the libraries' own bytes belong to the base, whoever loads first.
        importlib.import_module("runtime.models.loading")
        if device.uses_process_memory and not TorchBackend._rehearsed:
            self._rehearse(device)
        return device

    def _rehearse(self, device: Device) -> None:
        """Load a model of a few kilobytes and let it go. Takes about a second, most of which the first load saves."""
        from runtime.models.rehearsal import write_checkpoint

        try:
            with TemporaryDirectory() as folder:
                write_checkpoint(Path(folder))
                spec = ModelSpec(id="rehearsal", source=folder)
                self.predict(spec, device, device.default_batch_tokens)
                self.load(spec, Task.EMBED, device).close()
        except OSError as error:
            log.warning("the libraries' own memory is not known before the first load: %s", error)
        TorchBackend._rehearsed = True

    def task_of(self, spec: ModelSpec) -> Task:
        """From the JSON files beside the weights, fetched from the hub first if need be."""
        from runtime.models.detection import task_of_files
        from runtime.models.weights import find_description

        return task_of_files(find_description(spec))

    def predict(self, spec: ModelSpec, device: Device, budget_tokens: int) -> Footprint:
        """From the checkpoint's headers and config, fetched from the hub first if need be."""
        if spec.id == MAXSIM_ID:
            from runtime.models.maxsim import BYTES_PER_TOKEN

            return Footprint(activation_bytes=BYTES_PER_TOKEN * budget_tokens, budget_tokens=budget_tokens)
        from runtime.models import weights
        from runtime.models.process_memory import predicted_process_bytes

        folders = weights.folders_of_weights(spec, weights.find_files(spec))
        dtype = device.default_dtype if spec.dtype == "auto" else spec.dtype
        longest = min(budget_tokens, spec.max_length or budget_tokens)
        own_bytes = sum(weights.predicted_weight_bytes(folder, dtype) for folder in folders)
        swappable = weights.linear_shapes(folders[-1]) if dtype == "float32" and spec.backend == "torch" else ()
        return Footprint(
            weight_bytes=own_bytes + device.swap_bytes(swappable),
            host_bytes=predicted_process_bytes(folders[-1]) if device.uses_process_memory else 0,
            activation_bytes=weights.activation_prior_bytes(folders[-1], dtype, longest) * budget_tokens,
            budget_tokens=budget_tokens,
        )

    def load(self, spec: ModelSpec, task: Task, device: Device) -> Model:
        """Through the family of the task."""
        if task is Task.MAXSIM:
            from runtime.models.maxsim import MaxSim

            return MaxSim(device)
        from runtime.models.loading import load_model
        from runtime.models.weights import find_files

        return load_model(spec, task, find_files(spec), device)
