"""A process that runs out of descriptors says so, once each time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
from collections.abc import Iterator, Sequence

import psutil
import pytest

from runtime.api import descriptors as module
from runtime.api.descriptors import FEW, Descriptors, descriptors, watch
from runtime.registry import ServerSettings
from tests.api.live import SERVERS, HttpServer, live_server
from tests.fakes import FakeEngine

LIMIT = 1000
ROOM = 40


@pytest.fixture
def _few_descriptors() -> Iterator[None]:
    """This process may open 40 more at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def warnings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, left: Sequence[int]) -> list[str]:
    """What is logged while so many are left, look by look."""
    looks = iter(left)

    def look() -> Descriptors:
        try:
            found = next(looks)
        except StopIteration:
            raise EOFError from None
        return Descriptors(LIMIT - found, LIMIT)

    monkeypatch.setattr(module, "EVERY_S", 0.0)
    monkeypatch.setattr(module, "descriptors", look)
    with caplog.at_level(logging.INFO), pytest.raises(EOFError):
        asyncio.run(watch())
    return [record.getMessage().partition(":")[0] for record in caplog.records if record.name == "cotenant.server"]


@pytest.mark.parametrize(
    ("left", "warned"),
    [
        ([FEW], []),
        ([FEW - 1], [FEW - 1]),
        ([500, 20, 10, 0, 31], [20]),
        ([20, FEW + 1, 20], [20]),
        ([20, 2 * FEW, 10], [20, 10]),
    ],
    ids=["enough", "few", "stays-few", "not-recovered", "recovered"],
)
def test_it_warns_once_until_there_were_enough_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, left: list[int], warned: list[int]
) -> None:
    expected = [f"{count} of {LIMIT} file descriptors are left" for count in warned]
    assert warnings(monkeypatch, caplog, left) == expected


@pytest.mark.usefixtures("_few_descriptors")
def test_none_left_is_known_though_the_count_takes_one() -> None:
    first = descriptors()
    assert first is not None
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while len(taken) < 2 * ROOM:
                taken.append(os.dup(0))
        found = descriptors()
    finally:
        for each in taken:
            os.close(each)
    assert first.left == ROOM <= len(taken) < 2 * ROOM
    assert found is not None
    assert (found.left, found.limit) == (0, first.limit)


def test_no_limit_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert descriptors() is None


@pytest.mark.parametrize("http", SERVERS)
def test_a_server_that_is_short_of_them_says_so(
    http: HttpServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "descriptors", lambda: Descriptors(998, 1000))
    with live_server(FakeEngine(settings=ServerSettings()), http) as server:
        server.wait_until(lambda: "2 of 1000 file descriptors are left" in caplog.text)
