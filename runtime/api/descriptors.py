"""Watches how many file descriptors are left, and warns when hardly any are.

Without one the server can take no connection, and uvloop says nothing of it: clients are reset, and the log is silent.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
from typing import Final, NamedTuple

import psutil

LOG = logging.getLogger("cotenant.server")

EVERY_S: Final = 1.0
FEW: Final = 32
"""Left. Fewer are worth a warning; the next one comes only after there were twice as many again."""
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)
THIS_PROCESS: Final = psutil.Process()


class Descriptors(NamedTuple):
    """Of this process, now."""

    open: int
    limit: int

    @property
    def left(self) -> int:
        """How many more it may open."""
        return self.limit - self.open


def descriptors() -> Descriptors | None:
    """None: there is no limit. A millisecond or two for each thousand that are open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        return Descriptors(THIS_PROCESS.num_fds(), limit)
    except OSError as error:  # to count them takes one
        if error.errno not in EXHAUSTED:
            raise
        return Descriptors(limit, limit)


async def watch() -> None:
    """Warn whenever they become few. Never returns."""
    warned = False
    while True:
        found = await asyncio.to_thread(descriptors)
        left = FEW * 2 if found is None else found.left
        if found is not None and left < FEW and not warned:
            LOG.warning(
                "%d of %d file descriptors are left: without one, whoever connects is reset;"
                " raise the limit (ulimit -n), or have clients keep fewer connections",
                left,
                found.limit,
            )
        warned = left < FEW or (warned and left < FEW * 2)
        await asyncio.sleep(EVERY_S)
