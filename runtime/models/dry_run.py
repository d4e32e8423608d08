"""A network's workspace before any weight is there: its forward on tensors that have shapes and no bytes.

Finds what no rule by width knows: attention that keeps a score for every pair of tokens (MPNet, DeBERTa, RoFormer, T5)
takes more for each token the longer the inputs are.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModel

from runtime.errors import UnsupportedModel

log = logging.getLogger(__name__)

SEQUENCES = (2, 4)
"""How many inputs the two forwards have, whose difference is the workspace of what one has more."""
KEPT = 256
"""Answers that are remembered: planning and loading ask for the same ones."""


class PeakBytes(TorchDispatchMode):
    """The most bytes that tensors made within the block held at one time. In this thread alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.peak = 0
        self._live = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._seen:
            self._seen.add(key)
            self._live += storage.nbytes()
            self.peak = max(self.peak, self._live)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._live -= size


def dry_bytes_per_token(folder: Path, length: int) -> int | None:
    """Workspace of one token in float32 among inputs of `length` tokens: at least what a real forward takes.

    None for a network that can't be run so: of code of its own, of several parts, or whose forward looks at values.
    Takes some tenths of a second, once for each `config.json` and length.
    """
    file = folder / "config.json"
    return _dry_bytes_per_token(folder, file.stat().st_mtime_ns, length) if file.is_file() else None


@lru_cache(KEPT)
def _dry_bytes_per_token(folder: Path, _written_ns: int, length: int) -> int | None:
    for masked in (True, False):  # some look at the mask's values, and do without one
        try:
            fewer, more = _peaks_bytes(folder, length, masked)
        except Exception as error:
            log.debug("the network in %s could not be run dry: %s", folder.name, type(error).__name__)
        else:
            return (more - fewer) // ((SEQUENCES[1] - SEQUENCES[0]) * length)
    return None


def _peaks_bytes(folder: Path, length: int, masked: bool) -> tuple[int, int]:
    """Of few inputs and of more. Raises UnsupportedModel, and whatever the network does."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if getattr(config, "vision_config", None) is not None:
        raise UnsupportedModel("a network of several parts")
    with FakeTensorMode(), torch.inference_mode():
        # In float32, whatever the checkpoint's: another would become the whole process's default meanwhile.
        network = _encoder(AutoModel.from_config(config, dtype=torch.float32)).eval()
        fewer, more = (_peak_bytes(network, (sequences, length), masked) for sequences in SEQUENCES)
    return fewer, more


def _encoder(network: Any) -> Any:
    """The part that reads: T5's config makes a decoder as well."""
    return network if getattr(network, "decoder", None) is None else network.encoder


def _peak_bytes(network: torch.nn.Module, shape: tuple[int, int], masked: bool) -> int:
    ids = torch.zeros(shape, dtype=torch.long)
    workspace = PeakBytes()
    with workspace:
        network(input_ids=ids, attention_mask=torch.ones_like(ids) if masked else None)
    return workspace.peak
