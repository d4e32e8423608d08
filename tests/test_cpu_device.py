"""The CPU as a device: its lanes give way to everything else, and never ask for what they may not have."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from runtime.devices.cpu import LANE_NICENESS, CpuDevice

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="niceness by thread is Linux's")


def niceness_in_lane(spare: bool, before: int) -> int:
    """Niceness of a fresh thread that was at `before` more than its process and entered a lane."""
    found: list[int] = []

    def lane() -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, before)
        CpuDevice(lanes=1).enter_lane(spare)
        found.append(os.getpriority(os.PRIO_PROCESS, thread))

    runner = threading.Thread(target=lane)
    runner.start()
    runner.join()
    return found[0]


def test_a_lane_gives_way_and_a_spare_lane_does_not() -> None:
    base = os.getpriority(os.PRIO_PROCESS, 0)
    assert niceness_in_lane(False, base) == max(base, LANE_NICENESS)
    assert niceness_in_lane(True, base) == base


def test_a_thread_that_is_nicer_already_stays_so() -> None:
    assert niceness_in_lane(False, 12) == 12
