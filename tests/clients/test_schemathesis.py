"""schemathesis over the server's own OpenAPI document: every answer is of it, and nothing breaks or is repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.environments import run_program
from tests.server.conftest import Server, Start, start
from tests.server.test_made_up_bodies import MODELS

__all__ = ["start"]

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1_800)]

EXAMPLES = 25
"""A route in the fuzzing phase; some 20 more a field come from the phase that covers the schema."""
LEAST_CASES = 5_000
"""Fewer, and it has lost sight of most bodies."""
TIMEOUT_S = 30
"""What takes longer counts as hanging."""
OPERATORS = "(^/admin|^/v2/repository|/(load|unload)$)"
"""Routes that take models away."""


@pytest.fixture(scope="module")
def server(start: Start, tiny_model: Callable[[str], Path]) -> Server:
    return start([{"id": name, "source": str(tiny_model(made))} for name, made in MODELS.items()])


def test_every_answer_is_of_the_document_and_no_error_is_a_bug_or_an_echo(server: Server) -> None:
    answer = run_program(
        "schemathesis",
        "schemathesis_run",
        limit_s=1_500,
        url=server.url,
        models=list(MODELS),
        examples=EXAMPLES,
        seed=1,
        timeout_s=TIMEOUT_S,
        excluded=OPERATORS,
    )
    assert answer["problems"] == []
    assert answer["status"] == 0
    assert answer["cases"] > LEAST_CASES
    assert server.client.get("/ready").status_code == 200
    assert "ended in a bug" not in server.log.read_text()
