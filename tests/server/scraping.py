"""What a real server's /metrics and /admin say, as numbers that tests add up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Server

WAIT_S = 60.0


def total(server: Server, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels; 0 where there is none. `name` as it is scraped."""
    return totals(server, name, **labels)[0]


def totals(server: Server, *names: str, **labels: str) -> list[float]:
    """The same of several metrics, at one moment."""
    found = dict.fromkeys(names, 0.0)
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            if sample.name in found and labels.items() <= sample.labels.items():
                found[sample.name] += sample.value
    return list(found.values())


def waiting(server: Server) -> tuple[float, float]:
    """Inputs and tokens in all queues."""
    items, tokens = totals(server, "cotenant_queue_items", "cotenant_queue_tokens")
    return items, tokens


def models(server: Server) -> Mapping[str, Any]:
    """What an operator sees of each model, by id."""
    return {model["id"]: model for model in server.client.get("/admin/models").json()["models"]}


def until(condition: Callable[[], bool]) -> None:
    """Return once `condition` holds; fail after WAIT_S."""
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, "it never came to be"
        time.sleep(0.02)
