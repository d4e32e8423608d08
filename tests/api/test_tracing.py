"""Spans of requests continue the caller's trace; those of batches are linked to the requests in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from runtime.api import edge
from runtime.api.app import build_app
from runtime.api.tracing import Tracing
from runtime.errors import ConfigurationError
from runtime.registry import ServerSettings
from tests.engines import running
from tests.fakes import FakeEngine

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MARKER = "zebra-in-the-bathtub"


def test_tracing_that_is_not_installed_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match=r"install cotenant\[tracing\]"):
        build_app(FakeEngine(settings=ServerSettings(port=0, tracing=True)))


def exported() -> Any:
    """An exporter that keeps the spans."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return InMemorySpanExporter()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    exporter = exported()
    monkeypatch.setattr(edge, "Tracing", lambda: Tracing(exporter))
    yield exporter
    exporter.shutdown()


@pytest.mark.tracing
@pytest.mark.anyio
async def test_requests_and_batches_are_spans_of_the_callers_trace(spans: Any) -> None:
    async with running("a", settings=ServerSettings(tracing=True)) as (engine, _):
        transport = httpx2.ASGITransport(app=build_app(engine))
        async with httpx2.AsyncClient(transport=transport, base_url="http://cotenant") as client:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            assert (await client.post("/embeddings", json={"input": MARKER}, headers=headers)).status_code == 200
            assert (await client.post("/embeddings", json={"input": []})).status_code == 422
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 200
    batch, asked, refused, listed = spans.get_finished_spans()
    assert f"{asked.context.trace_id:032x}" == TRACE
    assert f"{asked.parent.span_id:016x}" == PARENT
    assert asked.attributes["gen_ai.operation.name"] == "embeddings"
    assert (asked.attributes["cotenant.tokens"], asked.attributes["cotenant.code"]) == (len(MARKER), "ok")
    assert refused.attributes["cotenant.code"] == "empty_input"
    assert (batch.name, [link.context for link in batch.links]) == ("batch a", [asked.context])
    assert batch.parent is None
    assert batch.attributes["cotenant.jobs"] == 1
    assert listed.name == "GET /v1/models"
    assert not [span for span in spans.get_finished_spans() if MARKER in span.to_json()]
