"""The process's log: where it goes, in which form, from which level on."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from rich.console import Console

from runtime.api.logs import OURS, set_up_logs
from runtime.registry import LogFormat, LogLevel, LogSettings

LOGGERS = ("", *OURS, "cotenant.server", "py.warnings")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, levels = root.handlers[:], {name: logging.getLogger(name).level for name in LOGGERS}
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def logged(capsys: pytest.CaptureFixture[str], level: LogLevel = "info", form: LogFormat = "auto") -> list[str]:
    """The lines of one message at each level from us, a library and the HTTP server."""
    set_up_logs(LogSettings(level=level, format=form), None)
    for name in ("cotenant.access", "runtime.engine", "library", "cotenant.server"):
        for severity in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(severity, "said by %s", name)
    out, err = capsys.readouterr()
    assert out == ""
    return str(err).splitlines()


def test_plain_lines_have_time_level_and_logger(capsys: pytest.CaptureFixture[str]) -> None:
    line = logged(capsys)[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO cotenant\.access: said by cotenant\.access", line)


def test_json_lines_are_objects(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in logged(capsys, form="json")]
    assert {"level": "info", "logger": "cotenant.access", "message": "said by cotenant.access"}.items() <= lines[
        0
    ].items()


@pytest.mark.parametrize(
    ("level", "counts"),
    [("debug", (4, 4, 3, 2)), ("info", (3, 3, 2, 2)), ("warning", (2, 2, 2, 2)), ("error", (1, 1, 1, 1))],
)
def test_libraries_and_the_http_server_are_quieter_than_we_are(
    level: LogLevel, counts: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = logged(capsys, level)
    sources = ("cotenant.access", "runtime.engine", "library", "cotenant.server")
    assert tuple(sum(f" {source}: " in line for line in lines) for source in sources) == counts


def test_a_terminal_gets_colours_unless_a_format_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=100)
    set_up_logs(LogSettings(), console)
    logging.getLogger("cotenant").warning("[not] markup")
    assert "\x1b[" in terminal.getvalue()
    assert "cotenant: [not] markup" in terminal.getvalue()
    set_up_logs(LogSettings(format="plain"), console)
    logging.getLogger("cotenant").warning("plainly")
    assert "plainly" not in terminal.getvalue()
    assert "WARNING cotenant: plainly" in capsys.readouterr().err
