"""A model's weights out of device memory and back: on a GPU in page-locked host memory, on CPU in a file.

The tensors stay where they are and only their storages are emptied and filled again, so views, transposed layouts and
recorded graphs of a model need not know. On CPU there is no second memory: the file's pages are the operating system's
to keep in its cache or not, and coming back saves the load's checks and warm-up rather than the reading.
"""

from __future__ import annotations

import ctypes
import io
import itertools
import logging
import os
import tempfile
from collections.abc import Iterable, Sequence

import psutil
import torch

from runtime.models.base import Model
from runtime.sources import cache_folder

log = logging.getLogger(__name__)

HOST_SHARE = 0.5
"""Page-locked memory can't be swapped: at most so much of what is available goes to one model."""


class ParkedWeights:
    """The bytes of emptied storages."""

    def __init__(self, storages: Sequence[torch.UntypedStorage]) -> None:
        """Copy the bytes away, then empty the storages. Raises OSError or MemoryError, and then nothing has changed."""
        self._storages = storages
        self._sizes = [storage.nbytes() for storage in storages]
        self._file: io.FileIO | None = None
        self._host: torch.Tensor | None = None
        if storages and storages[0].device.type == "cuda":
            self._host = self._to_pinned_memory()
        else:
            self._file = self._to_file()
        for storage in storages:
            storage.resize_(0)

    def restore(self) -> None:
        """Fill the storages again and give the copy up."""
        for storage, size in zip(self._storages, self._sizes, strict=True):
            storage.resize_(size)
        if self._file is not None:
            self._file.seek(0)
            for storage in self._storages:
                _read_whole(self._file, storage)
            self._file.close()
        if self._host is not None:
            for storage, start in zip(self._storages, self._starts(), strict=True):
                _bytes_of(storage).copy_(self._host[start : start + storage.nbytes()], non_blocking=True)
            torch.cuda.synchronize()
        self._file = self._host = None

    def _starts(self) -> Iterable[int]:
        return itertools.accumulate(self._sizes[:-1], initial=0)

    def _to_pinned_memory(self) -> torch.Tensor:
        total = sum(self._sizes)
        if total > HOST_SHARE * psutil.virtual_memory().available:
            raise MemoryError("the host has no memory to spare for the copy")
        host = torch.empty(total, dtype=torch.uint8, pin_memory=True)
        for storage, start in zip(self._storages, self._starts(), strict=True):
            host[start : start + storage.nbytes()].copy_(_bytes_of(storage), non_blocking=True)
        torch.cuda.synchronize()
        return host

    def _to_file(self) -> io.FileIO:
        folder = cache_folder().parent / "offloaded"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(dir=folder)
        # Without a name: whatever becomes of the process, its space is free again.
        os.unlink(path)
        file = io.FileIO(descriptor, "r+b")
        try:
            for storage in self._storages:
                _write_whole(file, storage)
        except OSError:
            file.close()
            raise
        return file


def park(module: torch.nn.Module) -> ParkedWeights | None:
    """Take the weights of `module` out of memory; None where that can't be done, and nothing has changed."""
    storages = _storages(module)
    if not all(storage.resizable() for storage in storages):
        log.warning("weights that are mapped from the checkpoint can't be offloaded")
        return None
    try:
        return ParkedWeights(storages)
    except (OSError, MemoryError) as error:
        log.warning("the weights could not be offloaded: %s", error)
        return None


class ParkableModel(Model):
    """A model whose weights are all in one torch module, and can leave and return."""

    def hold(self, module: torch.nn.Module) -> None:
        """These are the weights. Those mapped from the checkpoint's file are copied: only owned memory can leave."""
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            if not tensor.untyped_storage().resizable():
                tensor.data = tensor.data.clone()
        self._weights: torch.nn.Module | None = module
        self._parked: ParkedWeights | None = None

    def park(self) -> bool:
        """See Model.park."""
        self._parked = park(self._weights) if self._weights is not None else None
        if self._parked is not None:
            self.on_parked()
        return self._parked is not None

    def unpark(self) -> None:
        """See Model.unpark."""
        if self._parked is not None:
            self._parked.restore()
        self._parked = None
        self.on_return()

    def on_parked(self) -> None:
        """Drop what depends on where the weights are."""

    def on_return(self) -> None:
        """Make again what depends on where the weights are."""

    def empty(self) -> None:
        """Give the weights' memory back for good, whoever still refers to them.

        Cycles in the loading library's objects keep a model until the next collection, which nobody should wait for.
        """
        for storage in _storages(self._weights) if self._weights is not None else ():
            if storage.resizable():
                storage.resize_(0)
        self._weights = self._parked = None


def _storages(module: torch.nn.Module) -> list[torch.UntypedStorage]:
    """Each storage with anything in it, once, however many tensors share it."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    storages = (tensor.untyped_storage() for tensor in tensors)
    return list({storage.data_ptr(): storage for storage in storages if storage.nbytes()}.values())


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _memory_of(storage: torch.UntypedStorage) -> memoryview:
    """A CPU storage's memory. Not through numpy: a storage that was shown to it can never be emptied."""
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def _write_whole(file: io.FileIO, storage: torch.UntypedStorage) -> None:
    view = _memory_of(storage)
    while view:
        view = view[file.write(view) :]


def _read_whole(file: io.FileIO, storage: torch.UntypedStorage) -> None:
    view = _memory_of(storage)
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise OSError("the offloaded weights are cut short")
        done += count
