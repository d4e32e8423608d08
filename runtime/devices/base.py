"""The contract between the executor, the models and a device. Knows no torch and no queue.

A device says how many batches may run side by side, moves arrays to itself in one copy and rows back in one copy,
and tells the truth about its memory.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.clock import REAL_CLOCK, Clock
from runtime.work import Input, rough_tokens

SMALL_JOB_INPUTS = 8
"""A Job is small while it has no more tokens than so many of the largest small inputs: about one spare lane's batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of a device as its driver sees them, other processes included."""

    total_bytes: int
    free_bytes: int
    used_by_us_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """How many batches may run side by side."""

    lanes: int
    """Batches of any kind at once."""
    flights: int
    """Batches that one lane may have launched and not landed."""
    spare_lanes: int = 0
    """More lanes that only small online inputs may use while others hold the lanes; the OS shares the cores."""
    small_tokens: int = 0
    """Most tokens of an input that counts as small, and of a batch in a spare lane eight times as many."""

    def is_small(self, inputs: Sequence[Input]) -> bool:
        """Whether inputs that are not prepared yet will probably go through a spare lane."""
        if not self.spare_lanes or len(inputs) > SMALL_JOB_INPUTS:
            return False
        return all(rough_tokens(item) <= self.small_tokens for item in inputs)

    @property
    def threads(self) -> int:
        """Executor threads that the device needs."""
        return self.lanes + self.spare_lanes

    @property
    def spare_batch_tokens(self) -> int:
        """The largest batch in a spare lane: short, so that the next small input finds it free again."""
        return SMALL_JOB_INPUTS * self.small_tokens


class Download(abc.ABC):
    """Rows on their way to the host."""

    @abc.abstractmethod
    def wait(self) -> NDArray[np.float32]:
        """The flat rows; blocks until they are on the host."""


class LayerSwap(abc.ABC):
    """Faster layers in the place of a module's own, which round differently: the load-time check decides on them."""

    name: str
    """For the log and `/models`."""

    @abc.abstractmethod
    def apply(self) -> None:
        """Put them in place. The module's own are kept as long as this object."""

    @abc.abstractmethod
    def undo(self) -> None:
        """Put the module's own back."""


class Device(abc.ABC):
    """Where models live and run."""

    name: str
    """As torch writes it: `cpu`, `cuda:0`, `mps`."""
    description: str
    concurrency: Concurrency
    default_batch_tokens: int
    default_dtype: str
    index_errors_are_fatal: bool
    """Whether a token id beyond the embedding table costs the whole process its device, instead of raising."""
    spreads_lone_batches: bool = False
    """Whether `working(alone=True)` gives a batch more cores than it gets otherwise."""
    uses_process_memory: bool = False
    """Whether its memory is the process's own, so that what the libraries keep counts as well."""
    clock: Clock = REAL_CLOCK
    """What its batches are timed by; a simulated device has its own."""

    @abc.abstractmethod
    def memory(self) -> Memory:
        """What the driver says now."""

    def base_bytes(self) -> int:
        """What the process holds, or may come to hold, without any model. Asked once, before the first load."""
        return self.memory().used_by_us_bytes

    @abc.abstractmethod
    def upload(self, arrays: Mapping[str, NDArray[np.int32]]) -> dict[str, Any]:
        """Copy int32 arrays to the device, together in one transfer; tensors of the same shapes."""

    @abc.abstractmethod
    def download(self, rows: Sequence[Any]) -> Download:
        """Start copying tensors to the host, flattened one after another as float32, in one transfer."""

    @abc.abstractmethod
    def enter_lane(self, spare: bool) -> None:
        """Called once by each lane thread before its first batch."""

    @abc.abstractmethod
    def working(self, alone: bool) -> AbstractContextManager[None]:
        """Everything a lane thread must hold while it launches. `alone`: the batch may have all cores."""

    @abc.abstractmethod
    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` says that the device's memory is used up."""

    @abc.abstractmethod
    def release_cache(self) -> None:
        """Give cached memory back to the driver."""

    @abc.abstractmethod
    def settle_weights(self, module: Any) -> None:
        """Rearrange a freshly loaded module's weights for speed, values unchanged."""

    def layer_swaps(self, module: Any) -> Sequence[LayerSwap]:
        """What may be tried on a module to make it faster, the fastest first."""
        return ()

    def swap_bytes(self, shapes: Iterable[tuple[int, int]]) -> int:
        """Most bytes that `layer_swaps` may add to a model whose Linear layers have fp32 weights of these shapes."""
        return 0

    def start_peak(self) -> None:
        """Begin to watch the most memory in use at once; nothing where the device can't."""
        return

    def peak_bytes(self) -> int | None:
        """The most that was in use beyond what was at `start_peak`; None where the device can't tell."""
        return None
