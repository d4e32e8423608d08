"""An asyncio event loop that lives by a virtual clock: where nothing is ready, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, Unpack

from runtime.clock import VirtualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class NothingLeft(RuntimeError):
    """Everybody waits and no timer is set: the simulation would stand still for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    """Looks at the sockets without waiting, and lets the clock jump instead."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise NothingLeft("nothing is left to happen, and somebody still waits")
        if timeout > 0:
            self._clock.wait_until(self._clock.now_s() + timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread for all: work for other threads is done in place, and ends when its own waits say."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_JumpingSelector(clock))
        self._virtual = clock
        self._free_s: dict[int, float] = {}
        """When each executor, which is taken to have one thread, has done what it was given."""

    def time(self) -> float:
        """The virtual clock's seconds."""
        return self._virtual.now_s()

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` now; its outcome comes when it would end, after what the same executor does before it."""
        now_s = self._virtual.now_s()
        outcome: asyncio.Future[T] = self.create_future()
        self._virtual.set(max(now_s, self._free_s.get(id(executor), 0.0)))
        try:
            settle = partial(_unless_done, outcome, outcome.set_result, func(*args))
        except Exception as error:
            settle = partial(_unless_done, outcome, outcome.set_exception, error)
        end_s = self._virtual.now_s()
        self._free_s[id(executor)] = end_s
        self._virtual.set(now_s)
        self.call_at(end_s, settle)
        return outcome


def _unless_done(outcome: asyncio.Future[T], settle: Callable[[Any], None], value: object) -> None:
    if not outcome.done():
        settle(value)
