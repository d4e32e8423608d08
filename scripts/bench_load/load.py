"""Keeps a server under a known load for a known time, and writes down when each request began and ended."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scripts.bench_load.connection import ConnectionPool
from scripts.bench_load.target import AnswerCheck, PreparedRequest, Target, reported_tokens

# A server that refuses at once must not make the load generator spin.
PAUSE_AFTER_FAULT_S = 0.05


@dataclass(frozen=True)
class Span:
    """The measured time, on `time.perf_counter`; the load begins before it and outlasts it."""

    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


class Exchange(NamedTuple):
    """One request's life; `begin_s` is when it was due, so a late start counts as waiting."""

    begin_s: float
    end_s: float
    texts: int
    tokens: int
    fault: str | None
    status: int = 0
    """0: no whole answer came."""
    retry_after_s: float | None = None
    """When the server asks to come back."""

    @property
    def refused(self) -> bool:
        """The server said that it has too much to do, or that the deadline passed."""
        return self.status in (429, 503, 504)


@dataclass
class Load:
    """All requests of one measurement.

    Both loops go on until every request that was due within the span has ended: the last ones measured are
    under the same load as the first.
    """

    target: Target
    dimensions: int
    span: Span
    pool: ConnectionPool = field(init=False)
    check: AnswerCheck = field(init=False)
    _unfinished: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.pool = ConnectionPool(self.target.host, self.target.port)
        self.check = AnswerCheck(self.dimensions)

    def phase(self, seconds: float) -> "Load":
        """The same server, on the same connections, for `seconds` from now."""
        begin_s = time.perf_counter()
        phase = replace(self, span=Span(begin_s, begin_s + seconds))
        phase.pool = self.pool
        return phase

    async def closed_loop(self, requests: Iterator[PreparedRequest], in_flight: int) -> list[Exchange]:
        """`in_flight` clients, each sending its next request when it has the answer to its last."""
        exchanges: list[Exchange] = []

        async def client() -> None:
            while not self._over():
                exchange = await self._exchange(next(requests), time.perf_counter())
                exchanges.append(exchange)
                if exchange.fault:
                    await asyncio.sleep(PAUSE_AFTER_FAULT_S)

        async with asyncio.TaskGroup() as clients:
            for _ in range(in_flight):
                clients.create_task(client())
        return exchanges

    async def open_loop(self, requests: Iterator[PreparedRequest], arrivals_s: Iterator[float]) -> list[Exchange]:
        """Sends each request when it is due, whether or not earlier ones have been answered."""
        exchanges: list[Exchange] = []

        async def send(request: PreparedRequest, due_s: float) -> None:
            exchanges.append(await self._exchange(request, due_s))

        async with asyncio.TaskGroup() as senders:
            for due_s in arrivals_s:
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                if self._over():
                    break
                senders.create_task(send(next(requests), due_s))
        return exchanges

    def _over(self) -> bool:
        return time.perf_counter() >= self.span.end_s and not self._unfinished

    async def _exchange(self, request: PreparedRequest, due_s: float) -> Exchange:
        measured = due_s < self.span.end_s
        self._unfinished += measured
        fault: str | None
        tokens, status, retry_after_s = 0, 0, None
        try:
            answer = await self.pool.exchange(request.payload)
            end_s = time.perf_counter()
            status, retry_after_s = answer.status, _seconds(answer.header(b"retry-after"))
            tokens = reported_tokens(answer.body)
            fault = self.check.fault(answer, request)
        except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
            end_s = time.perf_counter()
            fault = f"{type(error).__name__}: {error}"
        finally:
            self._unfinished -= measured
        return Exchange(due_s, end_s, request.texts, tokens, fault, status, retry_after_s)


def _seconds(header: bytes) -> float | None:
    return float(header) if header.strip().isdigit() else None
