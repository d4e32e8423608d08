"""README.md as its headings and tables, code blocks left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

Row = list[str]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@cache
def sections() -> dict[str, list[str]]:
    """The lines under each heading, up to the next; code blocks left out."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    in_code = False
    for line in README.splitlines():
        in_code ^= line.lstrip().startswith("```")
        if not in_code and line.startswith("#"):
            lines = found.setdefault(line.lstrip("# "), [])
        elif not in_code:
            lines.append(line)
    return found


def tables(heading: str) -> list[list[Row]]:
    """The tables under a heading, without their heads."""
    found: list[list[Row]] = []
    inside = False
    for line in sections()[heading]:
        is_row = line.startswith("|")
        if is_row and not inside:
            found.append([])
        if is_row:
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        inside = is_row
    return [table[2:] for table in found]


def table(heading: str) -> list[Row]:
    """The only table under a heading."""
    (only,) = tables(heading)
    return only


def named(cell: str) -> tuple[str, ...]:
    """What a cell has in backticks."""
    return tuple(re.findall(r"`([^`]+)`", cell))


def first_names(rows: Sequence[Row]) -> list[str]:
    """Every name in the first column, each once."""
    names = [name for row in rows for name in named(row[0])]
    assert len(set(names)) == len(names)
    return names
