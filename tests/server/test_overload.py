"""Four times as much as a real server can do: whom it takes it answers in time, whom it refuses it tells. Slow."""

from __future__ import annotations

from typing import Any

import pytest
import uvloop

from scripts.bench_load.case import Case, Pace
from scripts.bench_load.corpus import load_corpus
from scripts.bench_load.overload import DEADLINE_MS
from scripts.bench_load.target import Target
from scripts.bench_load.workloads import measure
from tests.server.conftest import MINILM, Server, Start
from tests.server.scraping import models, total, until, waiting

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 30.0
ON_THE_WIRE = 1.1
"""The server keeps a deadline to the answer's first byte; what comes after is the network's and the client's."""


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    return start([{"id": "minilm", "source": MINILM}])


def flood(server: Server) -> Any:
    case = Case(
        workload="overload",
        target=Target(name="cotenant", url=server.url, model="minilm", path="/v1/embeddings"),
        dimensions=384,
        corpus=load_corpus(),
        pace=Pace(warmup_s=0.0, seconds=SECONDS),
        round=1,
    )
    return uvloop.run(measure(case))


def test_whoever_is_taken_is_answered_in_time_and_the_others_are_told_when_to_come_back(server: Server) -> None:
    measured = flood(server)
    figures = measured.figures
    print(f"\n{figures}")
    assert (measured.faults, measured.fault_samples) == (0, ())
    assert figures["refused"] > figures["accepted_per_s"] * SECONDS
    assert figures["without_retry_after"] == 0
    assert figures["accepted_p99_ms"] <= ON_THE_WIRE * DEADLINE_MS
    # Batches for nobody would show here: most of what is let in must get its answer.
    assert figures["expired"] < figures["accepted_per_s"] * SECONDS
    until(lambda: waiting(server) == (0, 0) and models(server)["minilm"]["results_pending"] == 0)
    refused = total(server, "cotenant_admission_decisions_total", decision="refused", reason="queue_full")
    assert refused >= figures["refused"]
    assert server.client.post("/v1/embeddings", json={"model": "minilm", "input": "x"}).status_code == 200
