"""Every client has one pinned version, and README's table names it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.clients.environments import FOLDER, OVER_OURS
from tests.readme import named, table

PIN = re.compile(r"([\w.-]+)==([\w.+-]+)")
TOOLS = {"numpy", "pillow", "requests", "schemathesis"}
"""What programs and clients need beside the clients."""


def pins(file: Path) -> dict[str, str]:
    """Each line of the requirements as name and version."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        matched = PIN.fullmatch(line)
        assert matched, f"{file.name}: {line} is no exact version"
        found[matched[1]] = matched[2]
    return found


def python_clients() -> set[tuple[str, str]]:
    """Names with versions; of what is installed over our own environment, the first alone is a client."""
    found: set[tuple[str, str]] = set()
    for file in (FOLDER / "requirements").glob("*.txt"):
        pinned = list(pins(file).items())
        found |= set(pinned[:1] if file.stem in OVER_OURS else pinned)
    return found - {pin for pin in found if pin[0] in TOOLS}


def npm() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((FOLDER / "npm" / "package.json").read_text(encoding="utf-8"))
    return parsed


def documented(registry: str) -> set[tuple[str, str]]:
    """Name and version of each client of README's table, as "cohere 7.3.1" has them."""
    rows = [row for row in table("Clients") if row[1] == registry]
    return {(name, version) for row in rows for name, _, version in (cell.partition(" ") for cell in named(row[0]))}


def test_readme_names_every_python_client_with_its_version_and_no_other() -> None:
    assert documented("PyPI") == python_clients()


def test_readme_names_every_npm_client_with_its_version_and_no_other() -> None:
    assert documented("npm") == set(npm()["dependencies"].items())


def test_the_lock_has_what_package_json_asks_for_and_names_no_registry() -> None:
    text = (FOLDER / "npm" / "package-lock.json").read_text(encoding="utf-8")
    locked = json.loads(text)["packages"]
    for name, version in npm()["dependencies"].items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
        assert locked[f"node_modules/{name}"]["version"] == version
        assert locked[f"node_modules/{name}"]["integrity"].startswith("sha512-")
    assert "://" not in re.sub(r'"(url|node|funding)": *"[^"]*"', "", text)


COMMIT = re.compile(r"\b[0-9a-f]{7}\b")


def test_readme_names_every_recorded_client_with_the_commits_that_were_read() -> None:
    recorded = {}
    for file in (FOLDER / "recorded").glob("*.json"):
        source = json.loads(file.read_text(encoding="utf-8"))
        recorded[source["client"]] = set(COMMIT.findall(" ".join(source["read_from"])))
    assert all(recorded.values())
    rows = [row for row in table("Clients") if row[1].startswith("recorded")]
    assert {row[0]: set(COMMIT.findall(row[1])) for row in rows} == recorded
