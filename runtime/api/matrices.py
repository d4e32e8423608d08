"""Multi-vectors as clients send them back: nested numbers, or base64 with shape and dtype as they were given.

Everything that this server's own routes write is read: float32 and float16, and int8 and uint8 with the fixed ranges
of `tensors.quantized`. Bits can't be compared by dot products and are refused.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pybase64
from numpy.typing import NDArray

from runtime.errors import InvalidEncoding, InvalidRequest
from runtime.work import MAXSIM_ROWS

Matrix = NDArray[np.float32]

KEYS: Final = ("embedding", "embeddings", "data")
"""Where our answers have their vectors."""
DTYPES: Final[Mapping[str, str]] = {"float32": "<f4", "float16": "<f2", "int8": "i1", "uint8": "u1"}
MOST_WIDTH: Final = 4096
LARGEST: Final = 1e9
"""Numbers within it make scores that float32 holds, whatever the shapes."""


def is_matrix(value: object) -> bool:
    """Whether the value means to be a multi-vector rather than something to embed."""
    return isinstance(value, list) or (isinstance(value, dict) and any(key in value for key in KEYS))


def matrix_of(value: object, name: str) -> Matrix:
    """`(rows, width)` of nested lists, or of an object that holds them or base64. `name`: the place in the body.

    Raises InvalidRequest, InvalidEncoding.
    """
    param = name.partition("[")[0]
    fields: Mapping[str, Any] = value if isinstance(value, dict) else {"embedding": value}
    numbers = next(fields[key] for key in KEYS if key in fields)
    read = _decoded(numbers, fields, name, param) if isinstance(numbers, str) else _nested(numbers, name, param)
    rows, width = read.shape
    if rows > MAXSIM_ROWS or not 1 <= width <= MOST_WIDTH:
        raise InvalidRequest(
            f"{name} must have at most {MAXSIM_ROWS} rows of 1 to {MOST_WIDTH} numbers, and has {rows} of {width}",
            param=param,
        )
    if not np.abs(read).max(initial=0) <= LARGEST:  # not so for NaN either
        raise InvalidRequest(f"{name} must hold numbers between -{LARGEST:.0e} and {LARGEST:.0e}", param=param)
    return read


def _nested(numbers: object, name: str, param: str) -> Matrix:
    try:
        array = np.array(numbers) if isinstance(numbers, list) else np.empty(0)
    except ValueError:  # rows of unequal length
        array = np.empty(0)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InvalidRequest(
            f"{name} must be a list of rows, each a list of as many numbers, or base64 with its shape", param=param
        )
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _decoded(text: str, fields: Mapping[str, Any], name: str, param: str) -> Matrix:
    dtype, shape = fields.get("dtype") or "float32", fields.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InvalidEncoding(f"{name}: dtype must be one of {', '.join(DTYPES)}", param=param)
    if not isinstance(shape, list) or len(shape) != 2 or any(type(side) is not int or side < 0 for side in shape):
        raise InvalidEncoding(f"{name}: base64 needs its shape beside it: rows and width", param=param)
    try:
        data = pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidEncoding(f"{name} is not valid base64", param=param) from None
    flat = np.dtype(DTYPES[dtype])
    rows, width = shape
    if len(data) != rows * width * flat.itemsize:
        raise InvalidEncoding(
            f"{name} holds {len(data)} bytes; its shape and dtype need {rows * width * flat.itemsize}", param=param
        )
    return _widened(np.frombuffer(data, flat).reshape(rows, width), dtype)


def _widened(array: NDArray[Any], dtype: str) -> Matrix:
    """float32, in memory of its own; small integers as the numbers that they stand for."""
    if dtype == "int8":
        return array.astype(np.float32) / np.float32(127)
    if dtype == "uint8":
        return array.astype(np.float32) / np.float32(127.5) - np.float32(1)
    return array.astype(np.float32)
