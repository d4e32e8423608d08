"""How multi-vectors end, on the device: every row cut and divided by its norm, one copy to the host, items in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.devices.base import Device, Download
from runtime.models.base import Flight
from runtime.models.finishing import finish_vectors
from runtime.work import Finish, Row


class MultiVectorFlight(Flight):
    """Multi-vectors of one batch on their way to the host."""

    def __init__(self, download: Download, places: Sequence[tuple[int, int, int]]) -> None:
        """`places`: for each item in the download's order, its index in the batch, its rows and their width."""
        self._download = download
        self._places = places

    def land(self) -> list[Row]:
        """`(rows, width)` of each item. Each owns its memory, so a kept item keeps no batch alive."""
        flat = self._download.wait()
        items: list[Row] = [flat] * len(self._places)
        start = 0
        for item, rows, width in self._places:
            items[item] = flat[start : start + rows * width].reshape(rows, width).copy()
            start += rows * width
        return items


def send_multi_vectors(
    device: Device, pieces: Sequence[tuple[int, torch.Tensor]], finishes: Sequence[Finish]
) -> MultiVectorFlight:
    """Finish and start the copy of `pieces`: an item's index in the batch and its rows `(rows, dim)`.

    `finishes`: by index in the batch. Neighbours of one finish that share a tensor's memory cost one call each.
    """
    groups: dict[Finish, list[tuple[int, torch.Tensor]]] = {}
    for item, rows in pieces:
        groups.setdefault(finishes[item], []).append((item, rows))
    blocks, places = [], []
    for finish, group in groups.items():
        block = finish_vectors(torch.cat([rows for _, rows in group]), finish)
        blocks.append(block)
        places += [(item, rows.shape[0], block.shape[1]) for item, rows in group]
    return MultiVectorFlight(device.download(blocks), places)
