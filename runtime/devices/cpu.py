"""The CPU as a device: one lane a core, one thread a lane under load, every core for a lone batch."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from runtime.devices import split_linear
from runtime.devices.base import Concurrency, Device, Download, LayerSwap, Memory
from runtime.devices.process import cgroup_memory_bytes, usable_cores

CPU_BATCH_TOKENS = 512
"""97 % of a core's throughput is reached at 256 to 512 tokens; larger batches only add latency."""
CPU_SMALL_TOKENS = 32
"""About a sentence: 10 ms of a small model's time."""
GROWTH_BYTES = 24 * 2**20
"""What the process comes to hold beside models once it serves: threads, connections, what the C library keeps."""
LANE_NICENESS = 5
"""A thread of niceness 0 gets three times the time of such a one when both want the same core."""


class Landed(Download):
    """Rows that are already on the host."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self._rows = rows

    def wait(self) -> NDArray[np.float32]:
        """The rows, at once."""
        return self._rows


class CpuDevice(Device):
    """Runs batches in the calling lane thread."""

    def __init__(self, lanes: int | None = None, split_products: bool = True) -> None:
        """`split_products`: products in fp32 may be made of bfloat16 products where the processor has AMX."""
        self._split_products = split_products
        self.cores = usable_cores()
        self.name = "cpu"
        self.description = f"{self.cores} cores, {torch.backends.cpu.get_cpu_capability()}"
        self.concurrency = Concurrency(
            lanes=lanes or self.cores, flights=1, spare_lanes=1, small_tokens=CPU_SMALL_TOKENS
        )
        self.spreads_lone_batches = self.cores > 1
        self.default_batch_tokens = CPU_BATCH_TOKENS
        self.default_dtype = "float32"
        self.index_errors_are_fatal = False
        self.uses_process_memory = True
        self.total_bytes: int | None = None
        """Of a machine to plan for; None: of this one."""
        self._process = psutil.Process()
        # glibc's own (malloc_trim(3)); other C libraries have none and keep little.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

    def memory(self) -> Memory:
        """The machine's memory, or the container's share of it; what we use is the process's resident set."""
        machine = psutil.virtual_memory()
        ours = self._process.memory_info().rss
        if self.total_bytes is not None:
            free = max(self.total_bytes - ours, 0)
            return Memory(total_bytes=self.total_bytes, free_bytes=free, used_by_us_bytes=ours)
        limit = cgroup_memory_bytes()
        total = machine.total if limit is None else min(limit, machine.total)
        return Memory(total_bytes=total, free_bytes=max(min(machine.available, total - ours), 0), used_by_us_bytes=ours)

    def base_bytes(self) -> int:
        """See Device.base_bytes."""
        return self.memory().used_by_us_bytes + GROWTH_BYTES

    def upload(self, arrays: Mapping[str, NDArray[np.int32]]) -> dict[str, Any]:
        """Share the arrays' memory; nothing is copied."""
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def download(self, rows: Sequence[torch.Tensor]) -> Download:
        """Flatten; the rows are here already."""
        flat = [block.reshape(-1) for block in rows]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat)
        return Landed(joined.float().numpy())

    def enter_lane(self, spare: bool) -> None:
        """Let the event loop and the spare lane go first whenever all want a core (on Linux, niceness is by thread)."""
        if not spare and sys.platform == "linux":
            thread = threading.get_native_id()
            # Only ever nicer: a process that was started nicer may not go back, and must not.
            niceness = max(os.getpriority(os.PRIO_PROCESS, thread), LANE_NICENESS)
            os.setpriority(os.PRIO_PROCESS, thread, niceness)

    @contextmanager
    def working(self, alone: bool) -> Iterator[None]:
        """Give a lone batch every core and a batch with company one thread of its own."""
        # OpenMP keeps the number per thread but MKL for the whole process: set it each time, it costs microseconds.
        torch.set_num_threads(self.cores if alone else 1)
        yield

    def is_out_of_memory(self, error: BaseException) -> bool:
        """MemoryError, or torch's own wording for a failed host allocation."""
        return isinstance(error, MemoryError) or "can't allocate memory" in str(error)

    def release_cache(self) -> None:
        """Hand the freed pages that the C library keeps for later back to the operating system."""
        if self._trim is not None:
            self._trim(0)

    def settle_weights(self, module: torch.nn.Module) -> None:
        """Store Linear weights column-major: 1.4 to 2.3 times faster for few rows, the same values."""
        for layer in module.modules():
            if type(layer) is torch.nn.Linear:
                layer.weight.data = layer.weight.data.t().contiguous().t()

    def swap_bytes(self, shapes: Iterable[tuple[int, int]]) -> int:
        """What the most exact split takes more than fp32."""
        return split_linear.added_bytes(shapes) if self._split_products else 0

    def layer_swaps(self, module: torch.nn.Module) -> Sequence[LayerSwap]:
        """On AMX, products in fp32 as sums of bfloat16 products."""
        return split_linear.swaps_for(module, self.memory().free_bytes) if self._split_products else ()
