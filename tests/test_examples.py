"""What `examples/` names exists: metrics with their labels, and every file is well-formed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.test_docs import every_metric

EXAMPLES = Path(__file__).parent.parent / "examples"
METRIC = re.compile(r"\bcotenant_\w+")
SELECTOR = re.compile(r"\b(cotenant_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|ignoring)\s*\(([^)]*)\)")
SCRAPED = {"le", "instance"}
"""Labels that a histogram and the scraping add."""


def dashboard() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((EXAMPLES / "grafana_dashboard.json").read_text(encoding="utf-8"))
    return parsed


def rules() -> list[dict[str, Any]]:
    parsed = yaml.safe_load((EXAMPLES / "alert_rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in parsed["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    yield from (variable["query"]["query"] for variable in dashboard()["templating"]["list"][1:])


async def labels_by_series() -> dict[str, set[str]]:
    """Every series that a scrape may show, with its labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(await every_metric()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.anyio
async def test_every_metric_of_the_dashboard_and_the_alerts_exists_with_its_labels() -> None:
    known = await labels_by_series()
    everywhere = set.union(*known.values()) | SCRAPED
    used = set()
    for expression in expressions():
        named = set(METRIC.findall(expression))
        assert named <= set(known), expression
        used |= named
        for series, selector in SELECTOR.findall(expression):
            assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= known[series] | SCRAPED, expression
        for group in GROUPING.findall(expression):
            assert set(re.findall(r"\w+", group)) <= everywhere, expression
    assert len(used) > 15


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(cotenant_\w+)`", readme, flags=re.MULTILINE))
    assert documented
    assert [name for name in sorted(documented) if name not in shown] == []


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("embed_with_openai.py", "http://127.0.0.1:9/v1"),
        ("retrieve_and_rerank.py", "http://127.0.0.1:9"),
        ("retrieve_pages.py", "http://127.0.0.1:9"),
    ],
)
def test_without_a_server_an_example_says_so_in_one_line(script: str, option: str) -> None:
    """Nothing listens on port 9 (discard)."""
    command = [sys.executable, str(EXAMPLES / script), "--url", option]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert re.fullmatch(
        r"no server answers at http://127\.0\.0\.1:9\S*: start one with \./scripts/serve\n", ended.stderr
    )


def test_every_example_that_asks_a_server_is_run_without_one() -> None:
    asking = {file.name for file in EXAMPLES.glob("*.py")}
    assert asking == {"embed_with_openai.py", "retrieve_and_rerank.py", "retrieve_pages.py"}


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (column, row)
        for panel in panels
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for row in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24


def test_every_alert_says_how_bad_it_is_and_what_is_wrong() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["expr"].count("(") == rule["expr"].count(")")
