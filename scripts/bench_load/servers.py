"""Starts, awaits and stops the servers that are measured."""

import http.client
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from scripts.bench_load.processor import family
from scripts.bench_load.target import Target, vector_lengths

READY_LIMIT_S = 180.0
STOP_LIMIT_S = 30.0
PROBE_PAUSE_S = 0.5
PROBE_TEXT = "Which statement closes a file at the end of its block?"
LOG_TAIL_LINES = 20


class ServerError(RuntimeError):
    """A server did not start, or does not answer as it should."""


@contextmanager
def serving(command: str | None, target: Target) -> Iterator[int]:
    """Runs the command, if one is given, for as long as the block; yields the length of the target's vectors.

    Raises:
        ServerError: the target does not answer an embedding request within `READY_LIMIT_S` (one try without a
            command), the command ended, or something else holds the port already.
    """
    if command is None:
        yield _await_vectors(target, None, None)
        return
    if family(target.port):
        raise ServerError(f"something listens on port {target.port} already; stop it or leave its --serve out")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield _await_vectors(target, process, log)
        finally:
            _stop(process)


def _await_vectors(target: Target, process: subprocess.Popen[bytes] | None, log: IO[str] | None) -> int:
    """Asks for one vector until it comes: `/health` may answer long before the model is loaded."""
    deadline_s = time.monotonic() + (READY_LIMIT_S if process else 0.0)
    while True:
        try:
            return _probe(target)
        except ServerError as error:
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > deadline_s:
                raise ServerError(f"{target.name}: {error}{_tail(log)}") from error
        time.sleep(PROBE_PAUSE_S)


def _probe(target: Target) -> int:
    """The length of one query's vector."""
    head, _, body = target.query(PROBE_TEXT).payload.partition(b"\r\n\r\n")
    path = head.split(b" ")[1].decode()
    connection = http.client.HTTPConnection(target.host, target.port, timeout=READY_LIMIT_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise ServerError(f"{target.url}{target.path} answers {answer.status}: {content[:200]!r}")
        return vector_lengths(content)[0]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise ServerError(f"no vector from {target.url}{target.path}: {error!r}") from error
    finally:
        connection.close()


def _tail(log: IO[str] | None) -> str:
    if log is None:
        return ""
    log.seek(0)
    return ":\n" + "\n".join(log.read().splitlines()[-LOG_TAIL_LINES:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the command alone, as an operator would; then SIGKILL to whatever is left of its session."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
