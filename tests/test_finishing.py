"""Vectors leave the device cut, then normalised, in the order of the inputs, in one copy that nobody keeps alive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime.devices.base import Download
from runtime.models.finishing import finish_vectors, send_vectors
from runtime.work import Finish, Row
from tests.doubles import StillDevice

WIDTH = 6


class Arrived(Download):
    """Rows on the host."""

    def __init__(self, flat: NDArray[np.float32]) -> None:
        self._flat = flat

    def wait(self) -> NDArray[np.float32]:
        return self._flat


class CopyingDevice(StillDevice):
    """Joins what is downloaded and counts the copies."""

    def __init__(self) -> None:
        super().__init__()
        self.downloads = 0

    def download(self, rows: Sequence[torch.Tensor]) -> Download:
        self.downloads += 1
        return Arrived(torch.cat([block.reshape(-1).float() for block in rows]).numpy())


def vectors(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(count).normal(size=(count, WIDTH)).astype(np.float32)).to(dtype)


def finished(vector: NDArray[np.float32], finish: Finish) -> NDArray[np.float32]:
    """The plain way: cut, then divide by the length."""
    cut = vector[: finish.dimensions]
    return cut / np.linalg.norm(cut) if finish.normalize else cut


finishes = st.builds(Finish, dimensions=st.none() | st.integers(1, WIDTH), normalize=st.booleans())


@given(st.lists(finishes, min_size=1, max_size=12), st.data())
def test_each_item_gets_its_own_row_and_its_own_finish(wanted: list[Finish], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(wanted))))
    device, given_vectors = CopyingDevice(), vectors(len(wanted))
    rows = send_vectors(device, given_vectors, order, wanted).land()
    assert device.downloads == 1
    for position, item in enumerate(order):
        np.testing.assert_allclose(rows[item], finished(given_vectors[position].numpy(), wanted[item]), atol=1e-6)


def land(given_vectors: torch.Tensor, *wanted: Finish) -> list[Row]:
    return send_vectors(CopyingDevice(), given_vectors, range(len(wanted)), wanted).land()


def test_a_kept_row_keeps_no_batch_in_memory() -> None:
    for row in land(vectors(3), Finish(), Finish(dimensions=2), Finish(normalize=True)):
        assert row.base is None
        assert row.flags.owndata


def test_rows_do_not_share_memory_with_each_other() -> None:
    first, second = land(vectors(2), Finish(), Finish())
    before = second.copy()
    first[:] = 0
    np.testing.assert_array_equal(second, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("normalize", [True, False])
def test_rows_are_float32_whatever_the_model_computes_in(dtype: torch.dtype, normalize: bool) -> None:
    rows = land(vectors(2, dtype), Finish(normalize=normalize), Finish(dimensions=3, normalize=normalize))
    assert {row.dtype for row in rows} == {np.dtype(np.float32)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_norm_of_a_half_precision_vector_is_taken_in_float32(dtype: torch.dtype) -> None:
    row = land(vectors(1, dtype) * 3_000, Finish(normalize=True))[0]
    assert np.linalg.norm(row) == pytest.approx(1.0, abs=1e-6)


def test_the_cut_comes_before_the_norm() -> None:
    row = finish_vectors(torch.tensor([[3.0, 4.0, 12.0]]), Finish(dimensions=2, normalize=True))[0]
    torch.testing.assert_close(row, torch.tensor([0.6, 0.8]))


def test_a_vector_of_zeros_stays_one_and_is_not_divided_by_zero() -> None:
    row = land(torch.zeros(1, WIDTH), Finish(normalize=True))[0]
    np.testing.assert_array_equal(row, np.zeros(WIDTH))


def test_a_broken_vector_spoils_no_other() -> None:
    broken = vectors(3)
    broken[1, 0] = torch.nan
    rows = land(broken, *[Finish(normalize=True)] * 3)
    assert [bool(np.isfinite(row).all()) for row in rows] == [True, False, True]
