"""Vectors on the wire: JSON numbers, base64 or raw bytes; floats, or 8-bit and 1-bit numbers on request.

base64 and bytes are the row-major numbers and nothing else, little-endian float32 unless asked otherwise, whatever
the machine's own byte order. A multi-vector's `(tokens, dim)` are flattened; its `shape` and `dtype` stand beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from runtime.errors import InvalidEncoding
from runtime.work import Row

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDtype = Literal["float32", "float16"]
Endianness = Literal["native", "little", "big"]
OutputDtype = Literal["float", "int8", "uint8", "binary", "ubinary"]

FLOAT_CHARACTERS = 11
"""A float32's shortest digits with sign and comma, on average for the numbers of unit vectors."""

BYTE_ORDERS: dict[Endianness, str] = {"native": "=", "little": "<", "big": ">"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How vectors are to be written."""

    encoding_format: EncodingFormat = "float"
    embed_dtype: EmbedDtype | None = None
    """Of base64 and bytes; None: float32."""
    endianness: Endianness = "little"
    output_dtype: OutputDtype = "float"

    @property
    def dtype(self) -> str:
        """The name of a number's kind."""
        return (self.embed_dtype or "float32") if self.output_dtype == "float" else self.output_dtype


def embedding_items(
    rows: Sequence[Row], wire: Wire, *, kind: str = "embedding", key: str = "embedding"
) -> list[dict[str, Any]]:
    """The `data` list. `rows`: float32 `(dim,)` or `(tokens, dim)` each, in the order of the inputs.

    `kind`: each item's `object`; `key`: where its vector stands. Where base64 is more than a flat float32 vector,
    or a kind of number was asked for, `dtype` and `shape` stand beside it, so that it can be decoded without
    knowing the request. Raises InvalidEncoding where the numbers don't fit what was asked for.
    """
    if wire.encoding_format == "float":
        return [{"object": kind, key: numbers(row, wire), "index": index} for index, row in enumerate(rows)]
    asked = wire.embed_dtype is not None or wire.output_dtype != "float"
    items = []
    for index, row in enumerate(rows):
        array = wire_array(row, wire)
        item = {"object": kind, key: base64(array), "index": index}
        if asked or row.ndim > 1:
            item.update(dtype=wire.dtype, shape=array.shape)
        items.append(item)
    return items


def concatenated(rows: Sequence[Row], wire: Wire) -> tuple[bytes, list[dict[str, Any]]]:
    """All rows as one run of bytes, and where in it each lies, as vLLM's `metadata` header has it."""
    parts: list[bytes] = []
    places: list[dict[str, Any]] = []
    start = 0
    for index, row in enumerate(rows):
        array = wire_array(row, wire)
        parts.append(array.tobytes())
        places.append(
            {
                "index": index,
                "embed_dtype": wire.dtype,
                "endianness": wire.endianness,
                "start": start,
                "end": start + array.nbytes,
                "shape": array.shape,
            }
        )
        start += array.nbytes
    return b"".join(parts), places


def numbers(row: Row, wire: Wire) -> NDArray[Any]:
    """The row as orjson writes it itself: float32's shortest digits that read back the same, or small integers."""
    if wire.output_dtype != "float":
        return quantized(row, wire.output_dtype)
    return np.ascontiguousarray(row, dtype=np.float32)


def wire_array(row: Row, wire: Wire) -> NDArray[Any]:
    """The row in its wire dtype, contiguous."""
    if wire.output_dtype != "float":
        return quantized(row, wire.output_dtype)
    order = BYTE_ORDERS[wire.endianness]
    if wire.embed_dtype != "float16":
        return np.ascontiguousarray(row, dtype=f"{order}f4")
    with np.errstate(over="ignore"):
        array: NDArray[Any] = np.ascontiguousarray(row, dtype=f"{order}f2")
    if not np.isfinite(array).all():
        raise InvalidEncoding("this vector's numbers don't fit float16: ask for float32", param="embed_dtype")
    return array


def quantized(row: Row, kind: OutputDtype) -> NDArray[Any]:
    """The row's numbers as small integers, by rules that never depend on the request.

    int8: [-1, 1] to -127..127; uint8: [-1, 1] to 0..255; what lies outside (vectors that are not unit length) is
    clipped. ubinary: a bit is set where the number is above 0, eight to a byte, the first highest; binary: that
    byte minus 128, as sentence-transformers and Cohere have it. Raises InvalidEncoding where bits fill no bytes.
    """
    unit: NDArray[np.float32] = np.clip(row, -1, 1)
    if kind == "int8":
        signed: NDArray[np.int8] = np.rint(unit * 127).astype(np.int8)
        return signed
    if kind == "uint8":
        unsigned: NDArray[np.uint8] = np.rint((unit + 1) * 127.5).astype(np.uint8)
        return unsigned
    if row.shape[-1] % 8:
        raise InvalidEncoding("binary needs a width that is a multiple of 8", param="output_dtype")
    bits: NDArray[np.uint8] = np.packbits(row > 0, axis=-1)
    return bits if kind == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)


def base64(array: NDArray[Any]) -> orjson.Fragment:
    """The array's bytes as a JSON string that orjson copies without scanning it for escapes."""
    return orjson.Fragment(b'"' + pybase64.b64encode(array.reshape(-1).view(np.uint8).data) + b'"')


def wire_bytes(rows: Sequence[Row], encoding_format: EncodingFormat) -> int:
    """About how long the rows will be on the wire."""
    count = sum(row.size for row in rows)
    return count * FLOAT_CHARACTERS if encoding_format == "float" else count * 16 // 3


def render(answer: Any) -> bytes:
    """An answer as JSON bytes."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
