"""Vectors on the wire, bit for bit."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from runtime.api.tensors import (
    EmbedDtype,
    EncodingFormat,
    Endianness,
    OutputDtype,
    Wire,
    concatenated,
    embedding_items,
    render,
    wire_bytes,
)
from runtime.errors import InvalidEncoding

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROWS = hnp.arrays(np.float32, st.integers(1, 40), elements=FINITE)


def on_the_wire(
    row: NDArray[Any], encoding_format: EncodingFormat, embed_dtype: EmbedDtype | None = None
) -> dict[str, Any]:
    wire = Wire(encoding_format=encoding_format, embed_dtype=embed_dtype)
    [item] = orjson.loads(render({"data": embedding_items([row], wire)}))["data"]
    assert isinstance(item, dict)
    return item


@given(ROWS)
def test_base64_is_little_endian_float32_in_the_standard_alphabet(row: NDArray[np.float32]) -> None:
    raw = base64.b64decode(on_the_wire(row, "base64")["embedding"], validate=True)
    assert raw == np.asarray(row, "<f4").tobytes()


@given(ROWS)
def test_numbers_read_back_as_the_same_float32(row: NDArray[np.float32]) -> None:
    numbers = on_the_wire(row, "float")["embedding"]
    assert np.array(numbers, "<f4").tobytes() == np.asarray(row, "<f4").tobytes()


def test_rows_that_are_not_contiguous_are_laid_out_first() -> None:
    column = np.arange(12, dtype=np.float32).reshape(3, 4)[:, 1]
    assert on_the_wire(column, "float")["embedding"] == [1.0, 5.0, 9.0]
    assert base64.b64decode(on_the_wire(column, "base64")["embedding"]) == column.tobytes()


@pytest.mark.parametrize(("embed_dtype", "wire"), [("float32", "<f4"), ("float16", "<f2")])
def test_a_dtype_asked_for_is_said(embed_dtype: EmbedDtype, wire: str) -> None:
    row = np.array([1.5, -2.0, 0.1], dtype=np.float32)
    item = on_the_wire(row, "base64", embed_dtype)
    assert (item["dtype"], item["shape"]) == (embed_dtype, [3])
    assert base64.b64decode(item["embedding"]) == row.astype(wire).tobytes()


def test_a_multi_vector_is_flat_with_its_shape_beside_it() -> None:
    row = np.arange(12, dtype=np.float32).reshape(4, 3)[:, ::-1]
    item = on_the_wire(row, "base64")
    assert (item["dtype"], item["shape"]) == ("float32", [4, 3])
    assert base64.b64decode(item["embedding"]) == np.ascontiguousarray(row, "<f4").tobytes()
    assert on_the_wire(row, "float")["embedding"] == row.tolist()


@pytest.mark.parametrize(("endianness", "order"), [("little", "<"), ("big", ">"), ("native", "=")])
def test_bytes_lie_one_after_another_in_the_order_asked_for(endianness: Endianness, order: str) -> None:
    rows = [np.ones((2, 3), np.float32), np.full(5, 0.5, np.float32)]
    wire = Wire(encoding_format="bytes", embed_dtype="float16", endianness=endianness)
    body, places = concatenated(rows, wire)
    assert [(place["start"], place["end"], place["shape"]) for place in places] == [(0, 12, (2, 3)), (12, 22, (5,))]
    for row, place in zip(rows, places, strict=True):
        assert (place["embed_dtype"], place["endianness"]) == ("float16", endianness)
        assert body[place["start"] : place["end"]] == row.astype(f"{order}f2").tobytes()


QUANTIZED: list[tuple[OutputDtype, list[int]]] = [
    ("int8", [127, -127, 0, 64, -6, 0, 13, -127]),
    ("uint8", [255, 0, 128, 191, 121, 128, 140, 0]),
    ("ubinary", [0b10010010]),
    ("binary", [0b10010010 - 128]),
]


@pytest.mark.parametrize(("kind", "expected"), QUANTIZED)
@pytest.mark.parametrize("tokens", [None, 3])
def test_small_numbers_by_fixed_rules(kind: OutputDtype, expected: list[int], tokens: int | None) -> None:
    vector = np.array([1, -1, 0, 0.5, -0.05, 0, 0.1, -2], np.float32)
    row = vector if tokens is None else np.tile(vector, (tokens, 1))
    [item] = orjson.loads(render({"data": embedding_items([row], Wire(output_dtype=kind))}))["data"]
    assert item["embedding"] == (expected if tokens is None else [expected] * tokens)
    [item] = orjson.loads(render({"data": embedding_items([row], Wire(output_dtype=kind, encoding_format="base64"))}))[
        "data"
    ]
    assert item["dtype"] == kind
    signed = np.uint8 if kind.startswith("u") else np.int8
    assert np.frombuffer(base64.b64decode(item["embedding"]), signed).reshape(item["shape"])[..., 0].tolist() == (
        expected[0] if tokens is None else [expected[0]] * tokens
    )


def test_bits_must_fill_bytes() -> None:
    with pytest.raises(InvalidEncoding, match="multiple of 8"):
        embedding_items([np.ones(9, np.float32)], Wire(output_dtype="binary"))


def test_float16_refuses_what_does_not_fit() -> None:
    with pytest.raises(InvalidEncoding, match="float16"):
        embedding_items([np.array([70_000.0], dtype=np.float32)], Wire(encoding_format="base64", embed_dtype="float16"))


def test_numbers_have_no_dtype_to_ask_for() -> None:
    assert on_the_wire(np.ones(2, dtype=np.float32), "float", "float16").keys() == {"object", "embedding", "index"}


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_the_size_estimate_is_near_the_truth(encoding_format: EncodingFormat) -> None:
    rows = list(np.random.default_rng(0).normal(0, 0.05, (32, 384)).astype(np.float32))
    exact = len(render({"data": embedding_items(rows, Wire(encoding_format=encoding_format))}))
    assert 0.8 < wire_bytes(rows, encoding_format) / exact < 1.25
