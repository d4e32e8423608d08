"""schemathesis over a server's own OpenAPI document, with this project's promises as further checks."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.cli import schemathesis as command_line

given = json.load(sys.stdin)
MOST_ERROR_BYTES = 2048
SHORTEST_ECHO = 6
OUR_WORDS = frozenset({"base64"})
"""Values of ours that messages use, too."""
"""Characters: a shorter text may stand in a message by chance."""
CHECKS = (
    "response_schema_conformance",
    "content_type_conformance",
    "status_code_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "answers_whatever_comes",
    "has_small_errors_that_repeat_nothing",
)


def texts_of(value: Any) -> Iterator[str]:
    """Every text that is a value; fields are named in errors, and these are of the document."""
    if isinstance(value, dict):
        for part in value.values():
            yield from texts_of(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)
    elif isinstance(value, str):
        yield value


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Most bodies name a model that is there, so that they get further than its absence."""
    if isinstance(body, dict):
        place = len(repr(body)) % (len(given["models"]) + 1)
        if place < len(given["models"]):
            return {**body, "model": given["models"][place]}
    return body


@schemathesis.check
def answers_whatever_comes(context: Any, response: Any, case: Any) -> None:
    """No bug: not now (503) and not in the time that was given (504) are answers."""
    if response.status_code >= 500 and response.status_code not in (503, 504):
        raise AssertionError(f"status {response.status_code}")


@schemathesis.check
def has_small_errors_that_repeat_nothing(context: Any, response: Any, case: Any) -> None:
    """Errors under 2 KiB that hold no text of the body, names of models aside."""
    if response.status_code < 400:
        return
    if len(response.content) >= MOST_ERROR_BYTES:
        raise AssertionError(f"an error of {len(response.content)} bytes")
    said = response.content.decode("utf-8", "replace")
    for text in texts_of(case.body):
        known = text in OUR_WORDS or text in given["models"]
        if len(text) >= SHORTEST_ECHO and not known and text in said:
            raise AssertionError("an error repeats the input")


with tempfile.TemporaryDirectory() as folder:
    report = Path(folder) / "report.json"
    arguments = ["run", f"{given['url']}/openapi.json", "--checks", ",".join(CHECKS), "--report", "json"]
    arguments += [
        "--report-json-path",
        str(report),
        "--max-examples",
        str(given["examples"]),
        "--seed",
        str(given["seed"]),
    ]
    arguments += [
        "--request-timeout",
        str(given["timeout_s"]),
        "--generation-database",
        "none",
        "--continue-on-failure",
    ]
    arguments += ["--phases", "examples,coverage,fuzzing", "--exclude-path-regex", given["excluded"], "--no-color"]
    arguments += ["--suppress-health-check", "all"]  # how well it makes up bodies is no matter of ours
    try:
        command_line.main(arguments, standalone_mode=False)
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    found = json.loads(report.read_text())
    wanted = {
        "status": status,
        "cases": found["test_cases"]["generated"],
        "problems": found["failures"] + found["errors"],
    }
    print(json.dumps(wanted))
