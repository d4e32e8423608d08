"""Vectors on the wire: JSON numbers or base64 of little-endian floats.

base64 is always the row-major bytes of `<f4` (or `<f2` on request) in the standard alphabet with padding,
whatever the machine's own byte order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from runtime.errors import InvalidEncoding
from runtime.work import Row

EncodingFormat = Literal["float", "base64"]
EmbedDtype = Literal["float32", "float16"]

FLOAT_CHARACTERS = 11
"""A float32's shortest digits with sign and comma, on average for the numbers of unit vectors."""


def embedding_items(
    rows: Sequence[Row], encoding_format: EncodingFormat, embed_dtype: EmbedDtype | None
) -> list[dict[str, Any]]:
    """The `data` list. `rows`: float32 `(dim,)` each, in the order of the inputs.

    Where base64 is asked with `embed_dtype`, `dtype` and `shape` stand beside it, so that it can be decoded
    without knowing the request. Raises InvalidEncoding where a number doesn't fit float16.
    """
    if encoding_format == "float":
        return [{"object": "embedding", "embedding": numbers(row), "index": index} for index, row in enumerate(rows)]
    items = [
        {"object": "embedding", "embedding": base64(wire_array(row, embed_dtype)), "index": index}
        for index, row in enumerate(rows)
    ]
    if embed_dtype is not None:
        for item, row in zip(items, rows, strict=True):
            item.update(dtype=embed_dtype, shape=row.shape)
    return items


def numbers(row: Row) -> NDArray[np.float32]:
    """The row as orjson writes it itself: contiguous float32, shortest digits that read back the same."""
    return np.ascontiguousarray(row, dtype=np.float32)


def wire_array(row: Row, embed_dtype: EmbedDtype | None) -> NDArray[Any]:
    """The row in its wire dtype, contiguous."""
    if embed_dtype != "float16":
        return np.ascontiguousarray(row, dtype="<f4")
    with np.errstate(over="ignore"):
        array: NDArray[Any] = np.ascontiguousarray(row, dtype="<f2")
    if not np.isfinite(array).all():
        raise InvalidEncoding("this vector's numbers don't fit float16: ask for float32", param="embed_dtype")
    return array


def base64(array: NDArray[Any]) -> orjson.Fragment:
    """The array's bytes as a JSON string that orjson copies without scanning it for escapes."""
    return orjson.Fragment(b'"' + pybase64.b64encode(array.data) + b'"')


def wire_bytes(rows: Sequence[Row], encoding_format: EncodingFormat) -> int:
    """About how long the rows will be on the wire."""
    count = sum(row.size for row in rows)
    return count * FLOAT_CHARACTERS if encoding_format == "float" else count * 16 // 3


def render(answer: dict[str, Any]) -> bytes:
    """An answer as JSON bytes."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
