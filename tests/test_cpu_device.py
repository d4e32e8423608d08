"""The CPU as a device: its lanes give way to everything else, and never ask for what they may not have."""

from __future__ import annotations

import os
import sys

import pytest

from runtime.devices.cpu import LANE_NICENESS, CpuDevice


@pytest.mark.parametrize(
    ("platform", "spare", "before", "asked"),
    [
        ("linux", False, 0, [LANE_NICENESS]),
        ("linux", False, 12, [12]),  # nicer already: going back needs a privilege
        ("linux", True, 0, []),
        ("darwin", False, 0, []),  # niceness by thread is Linux's
    ],
)
def test_a_lane_only_ever_becomes_nicer_and_a_spare_lane_stays(
    monkeypatch: pytest.MonkeyPatch, platform: str, spare: bool, before: int, asked: list[int]
) -> None:
    device, found = CpuDevice(lanes=1), []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os, "getpriority", lambda which, who: before)
    monkeypatch.setattr(os, "setpriority", lambda which, who, niceness: found.append(niceness))
    device.enter_lane(spare)
    assert found == asked
