"""How much of a device's memory all models together may take."""

from __future__ import annotations

import logging

from runtime.devices.base import Memory

LOG = logging.getLogger(__name__)

DEFAULT_SHARE_OF_MEMORY = 0.90


def memory_limit_bytes(budget_bytes: int | None, memory: Memory) -> int:
    """Most bytes that may be booked on a device: what the registry says, or else 90 % of its memory."""
    if budget_bytes is not None and budget_bytes > memory.total_bytes:
        LOG.warning("memory_budget is %s bytes, and the device has %s", f"{budget_bytes:,}", f"{memory.total_bytes:,}")
    return budget_bytes or int(memory.total_bytes * DEFAULT_SHARE_OF_MEMORY)
