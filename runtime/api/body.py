"""What a request's body has to be: JSON in UTF-8, not too large, and there in time."""

from __future__ import annotations

import asyncio
import codecs
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.errors import BodyTimeout, BodyTooLarge, CotenantError, DeadlineExceeded, UnsupportedMediaType

GRAIN = 1 / 64
"""Of the time without a byte: a timer is put off only by more, as that takes as long as reading a small body."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bytes; and seconds without a byte, and from the first to the last."""

    max_bytes: int
    stall_s: float = math.inf
    total_s: float = math.inf

    def too_large(self) -> BodyTooLarge:
        """The refusal, with the limit in it."""
        return BodyTooLarge(f"the body is larger than the {self.max_bytes} bytes that this server takes")


class Patience:
    """How long one body is waited for. Times are the running event loop's."""

    __slots__ = ("_deadline_s", "_end_s", "_limits", "_loop")

    def __init__(self, limits: BodyLimits, deadline_s: float | None) -> None:
        """`deadline_s`: the request's own, on `time.perf_counter`'s clock; None: it has none."""
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._deadline_s = math.inf if deadline_s is None else now_s + deadline_s - time.perf_counter()
        self._end_s = min(now_s + limits.total_s, self._deadline_s)

    def timer(self) -> asyncio.Timeout:
        """Goes off where it ends, unless a byte comes before."""
        return asyncio.timeout_at(self._until_s())

    def prolong(self, timer: asyncio.Timeout) -> None:
        """Put the timer off: some bytes came."""
        until_s = self._until_s()
        if until_s - (timer.when() or 0.0) > GRAIN * self._limits.stall_s:
            timer.reschedule(until_s)

    def _until_s(self) -> float:
        return min(self._loop.time() + self._limits.stall_s, self._end_s)

    def refusal(self, timer: asyncio.Timeout) -> CotenantError:
        """Why it went off when it did."""
        until_s = timer.when()
        if until_s == self._deadline_s:
            return DeadlineExceeded("the deadline passed before the body was there")
        if until_s == self._end_s:
            return BodyTimeout(f"the body was not there after the {self._limits.total_s:g} s that it may take")
        return BodyTimeout(f"nothing more of the body came for {self._limits.stall_s:g} s")


def check_media(headers: Mapping[bytes, bytes]) -> None:
    """Raises UnsupportedMediaType where they say that the body is something else; they may say nothing of it."""
    media_type, _, parameters = headers.get(b"content-type", b"").partition(b";")
    media_type = media_type.strip().lower()
    if media_type not in (b"", b"application/json") and not media_type.endswith(b"+json"):
        raise UnsupportedMediaType("content-type must be application/json", param="content-type")
    if parameters and not is_utf8(charset(parameters)):
        raise UnsupportedMediaType("the charset in content-type must be utf-8", param="content-type")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        refusal = "compressed bodies are not accepted: leave the header content-encoding out"
        raise UnsupportedMediaType(refusal, param="content-encoding")


def charset(parameters: bytes) -> str:
    """The one that a content type's parameters name, as it is written there; without one, UTF-8."""
    for parameter in parameters.split(b";"):
        name, _, value = parameter.partition(b"=")
        if name.strip().lower() == b"charset":
            return value.strip().strip(b'"').decode("latin-1")
    return "utf-8"


def is_utf8(name: str) -> bool:
    """Whether text in that charset reads the same as UTF-8."""
    try:
        return codecs.lookup(name).name in ("utf-8", "ascii")
    except (LookupError, ValueError):
        return False
