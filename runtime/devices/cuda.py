"""A CUDA GPU as a device: one lane, two batches in flight, one pinned copy in and one out for each batch.

The lane thread launches batch n+1 on the same compute stream before it waits for batch n's rows, so the GPU never
waits for Python. Pinned buffers are taken in turn; an event says when the GPU is done with each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.devices.base import Concurrency, Device, Download, Memory

CUDA_BATCH_TOKENS = 16_384
FLIGHTS = 2
RING_BUFFERS = 2 * FLIGHTS
"""One more than the flights would do; twice leaves room for a batch that is salvaged between two launches."""


class PinnedRing:
    """Page-locked host buffers used in turn; each grows to what it is asked for."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._buffers = [torch.empty(0, dtype=dtype, pin_memory=True) for _ in range(RING_BUFFERS)]
        self._events = [torch.cuda.Event() for _ in range(RING_BUFFERS)]
        self._turn = itertools.cycle(range(RING_BUFFERS))

    def take(self, size: int) -> tuple[torch.Tensor, torch.cuda.Event]:
        """The next buffer, cut to `size` elements, once the GPU is done with it. Record the event after use."""
        index = next(self._turn)
        self._events[index].synchronize()
        if self._buffers[index].numel() < size:
            self._buffers[index] = torch.empty(max(size, 4096), dtype=self._dtype, pin_memory=True)
        return self._buffers[index][:size], self._events[index]


class PinnedDownload(Download):
    """Rows that the GPU is writing into a pinned buffer."""

    def __init__(self, buffer: torch.Tensor, event: torch.cuda.Event) -> None:
        self._buffer = buffer
        self._event = event

    def wait(self) -> NDArray[np.float32]:
        """Sleep until the copy is done (releases the GIL), then take the rows out of the ring."""
        self._event.synchronize()
        rows: NDArray[np.float32] = self._buffer.numpy().copy()
        return rows


class CudaDevice(Device):
    """One GPU of this machine."""

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self._device = torch.device(self.name)
        torch.cuda.set_device(self._device)
        properties = torch.cuda.get_device_properties(self._device)
        self.description = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
        self.concurrency = Concurrency(lanes=1, flights=FLIGHTS)
        self.default_batch_tokens = CUDA_BATCH_TOKENS
        self.default_dtype = "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
        self.index_errors_are_fatal = True
        self._peak_base = 0
        self._inbound = PinnedRing(torch.int32)
        self._outbound = PinnedRing(torch.float32)

    def memory(self) -> Memory:
        """The driver's free bytes plus what our allocator holds without using it."""
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        allocated = torch.cuda.memory_allocated(self._device)
        return Memory(total_bytes=total, free_bytes=free + reserved - allocated, used_by_us_bytes=reserved)

    def upload(self, arrays: Mapping[str, NDArray[np.int32]]) -> dict[str, Any]:
        """Lay the arrays back to back in one pinned buffer and copy it once; the tensors are views of the copy."""
        size = sum(array.size for array in arrays.values())
        landed = torch.empty(size, dtype=torch.int32, device=self._device)
        self.upload_into(landed, arrays)
        tensors, start = {}, 0
        for name, array in arrays.items():
            tensors[name] = landed[start : start + array.size].view(array.shape)
            start += array.size
        return tensors

    def upload_into(self, target: torch.Tensor, arrays: Mapping[str, NDArray[np.int32]]) -> None:
        """Fill a flat int32 tensor of the GPU with the arrays, back to back, in one copy."""
        staging, event = self._inbound.take(target.numel())
        host = staging.numpy()
        start = 0
        for array in arrays.values():
            host[start : start + array.size] = array.reshape(-1)
            start += array.size
        target.copy_(staging, non_blocking=True)
        event.record()

    def download(self, rows: Sequence[torch.Tensor]) -> Download:
        """Flatten on the GPU and start one copy into a pinned buffer."""
        flat = torch.cat([block.reshape(-1).float() for block in rows])
        buffer, event = self._outbound.take(flat.numel())
        buffer.copy_(flat, non_blocking=True)
        event.record()
        return PinnedDownload(buffer, event)

    def enter_lane(self, spare: bool) -> None:
        """One lane: nobody to give way to."""

    @contextmanager
    def working(self, alone: bool) -> Iterator[None]:
        """Bind the calling thread to this GPU."""
        with torch.cuda.device(self._device):
            yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        """torch's own class for it."""
        return isinstance(error, torch.OutOfMemoryError)

    def release_cache(self) -> None:
        """Give cached blocks back to the driver."""
        torch.cuda.empty_cache()

    def settle_weights(self, module: torch.nn.Module) -> None:
        """The library's layout is the right one here."""

    def start_peak(self) -> None:
        """The allocator's own peak counter, from here on."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._peak_base = torch.cuda.memory_allocated(self._device)

    def peak_bytes(self) -> int:
        """Includes what other models' batches used meanwhile: too much rather than too little."""
        return max(torch.cuda.max_memory_allocated(self._device) - self._peak_base, 0)
