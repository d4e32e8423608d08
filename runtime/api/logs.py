"""Logging of the whole process, on standard error: coloured on a terminal, plain lines or JSON elsewhere."""

from __future__ import annotations

import logging
import time
from typing import Final

from rich.console import Console
from rich.highlighter import NullHighlighter
from rich.logging import RichHandler

from runtime.api.access import JsonFormatter
from runtime.registry import LogSettings

OURS: Final = ("cotenant", "runtime")
"""Logger names of the project. Libraries speak up from WARNING on, or INFO at our debug level."""
PLAIN: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


def set_up_logs(settings: LogSettings, console: Console | None) -> None:
    """Replace the root logger's handlers. `console`: the terminal that progress is shown on, None without one."""
    logging.basicConfig(handlers=[_handler(settings, console)], force=True)
    logging.captureWarnings(True)
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    logging.getLogger().setLevel(logging.INFO if level == logging.DEBUG else max(level, logging.WARNING))
    for name in OURS:
        logging.getLogger(name).setLevel(level)
    # The HTTP server's own "running" comes before any model can answer, and would be taken for readiness.
    logging.getLogger("cotenant.server").setLevel(max(level, logging.WARNING))


def _handler(settings: LogSettings, console: Console | None) -> logging.Handler:
    if settings.format == "auto" and console is not None:
        coloured = RichHandler(console=console, show_path=False, highlighter=NullHighlighter())
        coloured.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        return coloured
    handler = logging.StreamHandler()
    if settings.format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        formatter = logging.Formatter(PLAIN, datefmt="%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    return handler
