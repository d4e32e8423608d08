"""From a device's name to a Device; "auto" takes the first GPU, else Apple's, else the CPU. Imports torch late."""

from __future__ import annotations

from runtime.devices.base import Device
from runtime.errors import ConfigurationError


def open_device(wanted: str, cpu_lanes: int | None = None, split_products: bool = True) -> Device:
    """The device called `wanted` (`auto`, `cpu`, `cuda`, `cuda:N`, `mps`). Imports torch: takes seconds.

    Raises ConfigurationError when this machine has no such device.
    """
    import torch

    if wanted == "auto":
        wanted = "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if wanted.startswith("cuda"):
        index = int(wanted.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise ConfigurationError(f"no device {wanted}: torch sees {torch.cuda.device_count()} CUDA devices")
        from runtime.devices.cuda import CudaDevice

        return CudaDevice(index)
    if wanted == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigurationError("no device mps: this torch or this machine has no Metal support")
        from runtime.devices.mps import MpsDevice

        return MpsDevice()
    from runtime.devices.cpu import CpuDevice

    return CpuDevice(cpu_lanes, split_products)
