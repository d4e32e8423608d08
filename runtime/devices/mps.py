"""Apple's GPU as a device: one lane, plain copies. Not run by us: no such machine was at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from runtime.devices.base import Concurrency, Device, Download, Memory
from runtime.devices.cpu import Landed

MPS_BATCH_TOKENS = 4096


class MpsDevice(Device):
    """One stream of batches on the unified memory of the machine."""

    def __init__(self) -> None:
        self.name = "mps"
        self.description = "Apple Metal"
        self.concurrency = Concurrency(lanes=1, flights=1)
        self.default_batch_tokens = MPS_BATCH_TOKENS
        self.default_dtype = "float32"
        self.index_errors_are_fatal = True

    def memory(self) -> Memory:
        """Unified memory: Metal's recommended share of it, and what its driver has given us."""
        total, ours = torch.mps.recommended_max_memory(), torch.mps.driver_allocated_memory()
        return Memory(
            total_bytes=total,
            free_bytes=min(max(total - ours, 0), psutil.virtual_memory().available),
            used_by_us_bytes=ours,
        )

    def upload(self, arrays: Mapping[str, NDArray[np.int32]]) -> dict[str, Any]:
        """One copy an array: the memory is shared, so there is no bus to save."""
        return {name: torch.from_numpy(array).to("mps") for name, array in arrays.items()}

    def download(self, rows: Sequence[torch.Tensor]) -> Download:
        """Wait for the GPU and copy the flat rows."""
        return Landed(torch.cat([block.reshape(-1).float() for block in rows]).cpu().numpy())

    def enter_lane(self, spare: bool) -> None:
        """One lane: nobody to give way to."""

    @contextmanager
    def working(self, alone: bool) -> Iterator[None]:
        """Nothing to hold."""
        yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        """MPS reports it as a RuntimeError with this wording."""
        return isinstance(error, MemoryError) or "MPS backend out of memory" in str(error)

    def release_cache(self) -> None:
        """Give cached blocks back to Metal."""
        torch.mps.empty_cache()

    def settle_weights(self, module: torch.nn.Module) -> None:
        """The library's layout is the right one here."""
