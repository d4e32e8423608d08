"""How vectors end, on the device: cut to `dimensions`, divide by the L2 norm, one copy to the host, rows in order.

Matryoshka order: first the cut, then the norm, so that a cut vector is a unit vector again
(Kusupati et al. 2022, "Matryoshka Representation Learning").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from runtime.devices.base import Device, Download
from runtime.models.base import Flight
from runtime.work import Finish, Row


class VectorFlight(Flight):
    """Vectors of one batch on their way to the host."""

    def __init__(self, download: Download, places: Sequence[tuple[int, int]]) -> None:
        """`places`: for each row of the download, the item it belongs to and its width."""
        self._download = download
        self._places = places

    def land(self) -> list[Row]:
        """Rows in the order of the launched items. Each owns its memory, so a kept row keeps no batch alive."""
        flat = self._download.wait()
        rows: list[Row] = [flat] * len(self._places)
        start = 0
        for item, width in self._places:
            rows[item] = flat[start : start + width].copy()
            start += width
        return rows


def send_vectors(
    device: Device, vectors: torch.Tensor, order: Sequence[int], finishes: Sequence[Finish]
) -> VectorFlight:
    """Finish vectors `(items, dim)` and start their copy. `order[i]`: the item of vector i, whose finish it gets."""
    groups: dict[Finish, list[int]] = {}
    for position, item in enumerate(order):
        groups.setdefault(finishes[item], []).append(position)
    if len(groups) == 1:
        blocks = [finish_vectors(vectors, next(iter(groups)))]
    else:
        index = {finish: torch.as_tensor(at, device=vectors.device) for finish, at in groups.items()}
        blocks = [finish_vectors(vectors.index_select(0, index[finish]), finish) for finish in groups]
    places = [
        (order[position], block.shape[1])
        for block, positions in zip(blocks, groups.values(), strict=True)
        for position in positions
    ]
    return VectorFlight(device.download(blocks), places)


def finish_vectors(vectors: torch.Tensor, finish: Finish) -> torch.Tensor:
    """Cut, then normalise, `(items, dim)` to `(items, dimensions)`, in float32 as the wire is."""
    vectors = vectors[:, : finish.dimensions] if finish.dimensions is not None else vectors
    return functional.normalize(vectors.float(), p=2, dim=1) if finish.normalize else vectors
