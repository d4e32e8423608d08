"""Tells systemd that the service is ready or stopping: sd_notify's protocol, where NOTIFY_SOCKET is set.

Protocol: https://www.freedesktop.org/software/systemd/man/sd_notify.html
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

LOG = logging.getLogger("cotenant.server")


def notify(state: str) -> None:
    """Send one state; a supervisor that doesn't listen is no reason to stop."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as caller:
        try:
            # A leading @ stands for the zero byte of Linux's abstract names.
            caller.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            LOG.warning("NOTIFY_SOCKET can't be told %s: %s", state, error.strerror)
