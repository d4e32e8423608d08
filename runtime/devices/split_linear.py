"""Linear layers whose fp32 products are made of bfloat16 products, on processors with AMX.

AMX multiplies bfloat16 some eight times as fast as AVX-512 does fp32, and sums in fp32. A number split into two parts
of bfloat16 takes three products and keeps 16 bits of its significand, one split into three takes six and keeps all 24.
See split_linear.cpp. Which is near enough for a model, the load-time check finds out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch

from runtime.devices.base import LayerSwap
from runtime.devices.compiling import NotCompiled, load_kernel

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("split_linear.cpp")
PROCESSOR = ("amx_tile", "amx_bf16", "avx512_f", "avx512_bw", "avx512_vl", "avx512_bf16")
COMPILER_FLAGS = ("-mamx-tile", "-mamx-bf16", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16")
BLOCK = 32
"""Numbers on a block's side; layers that are smaller would mostly multiply padding."""
TILE_COLUMNS = 16


class SplitLinear(torch.nn.Linear):
    """A Linear layer whose `weight` holds the parts as bytes, in the kernel's order."""

    parts: ClassVar[int]
    """Of a number."""
    products: ClassVar[int]
    """In bfloat16 for one in fp32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`(..., in_features)` to `(..., out_features)`, fp32."""
        y: torch.Tensor = torch.ops.cotenant.split_linear(input, self.weight, self.bias, self.out_features, self.parts)
        return y


class TwoParts(SplitLinear):
    """Near to fp32."""

    parts = 2
    products = 3


class ThreeParts(SplitLinear):
    """As exact as fp32."""

    parts = 3
    products = 6


KINDS: tuple[type[SplitLinear], ...] = (TwoParts, ThreeParts)
"""The faster first."""


class SplitProducts(LayerSwap):
    """Makes Linear layers SplitLinear, in place: whoever else refers to a layer has it changed, too."""

    def __init__(self, layers: Sequence[torch.nn.Linear], kind: type[SplitLinear]) -> None:
        self.name = f"fp32 products as {kind.products} of bfloat16"
        self._layers = layers
        self._kind = kind
        self._weights: list[torch.Tensor] = []

    def apply(self) -> None:
        """See LayerSwap."""
        self._weights = [layer.weight for layer in self._layers]
        for layer in self._layers:
            layer.weight = torch.nn.Parameter(arranged(layer.weight, self._kind.parts), requires_grad=False)
            layer.__class__ = self._kind

    def undo(self) -> None:
        """See LayerSwap."""
        for layer, weight in zip(self._layers, self._weights, strict=True):
            layer.__class__ = torch.nn.Linear
            layer.weight = weight
        self._weights = []


def swaps_for(module: torch.nn.Module, spare_bytes: int) -> Sequence[LayerSwap]:
    """What may be tried on `module`, the fastest first; nothing where the processor or a compiler is missing.

    `spare_bytes`: memory for the parts, since the layers' own weights stay until the check is over.
    """
    layers = _splittable(module)
    if not layers or not available():
        return ()
    part_bytes = sum(layer.weight.numel() for layer in layers) * torch.bfloat16.itemsize
    return [SplitProducts(layers, kind) for kind in KINDS if kind.parts * part_bytes <= spare_bytes]


def added_bytes(shapes: Iterable[tuple[int, int]]) -> int:
    """Most bytes that the parts of weights of these shapes, `(out, in)`, take more than fp32; 0 where none are made.

    Of the kind with most parts: which one is near enough is known only once it was tried.
    """
    large = [(columns, depth) for columns, depth in shapes if min(columns, depth) >= BLOCK]
    if not large or not available():
        return 0
    part_bytes = max(kind.parts for kind in KINDS) * torch.bfloat16.itemsize
    padded = sum((columns + -columns % BLOCK) * (depth + -depth % BLOCK) for columns, depth in large)
    own_bytes = sum(columns * depth for columns, depth in large) * torch.float32.itemsize
    return padded * part_bytes - own_bytes


def arranged(weight: torch.Tensor, parts: int) -> torch.Tensor:
    """The parts of `weight`, `(out, in)` fp32, in the order of use: `[16 columns][32 of depth][part][pair][column][2]`.

    Columns are padded to whole blocks and the depth to whole tiles, with zeros. One dimension of int8.
    """
    columns, depth = weight.shape
    rest = torch.nn.functional.pad(weight, (0, -depth % BLOCK, 0, -columns % BLOCK))
    split = []
    for _ in range(parts):
        split.append(rest.bfloat16())
        rest = rest - split[-1].float()
    tiles = torch.stack(split).view(parts, -1, TILE_COLUMNS, rest.shape[1] // BLOCK, BLOCK // 2, 2)
    return tiles.permute(1, 3, 0, 4, 2, 5).contiguous().view(-1).view(torch.int8)


def _splittable(module: torch.nn.Module) -> list[torch.nn.Linear]:
    """fp32 layers of some size whose weight is theirs alone: an embedding table that shares it must keep it."""
    owners = Counter(id(weight) for each in module.modules() for weight in each.parameters(recurse=False))
    return [
        layer
        for layer in module.modules()
        if type(layer) is torch.nn.Linear
        and layer.weight.dtype == torch.float32
        and min(layer.weight.shape) >= BLOCK
        and owners[id(layer.weight)] == 1
    ]


def has_amx() -> bool:
    """Whether the processor has what the kernel is compiled for, and the operating system lets this process use it."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return all(capabilities.get(name) for name in PROCESSOR) and torch.cpu._init_amx()


@cache
def available() -> bool:
    """Whether this process can run the kernel; the reason why not is logged once."""
    if not has_amx():
        return False
    try:
        load_kernel(SOURCE, COMPILER_FLAGS)
    except NotCompiled as reason:
        log.warning("this processor has AMX, but products in fp32 stay with the library: %s", reason)
        return False
    return True
