"""What goes wrong, in each dialect: status, code, form, and whether to come back.

One table of situations, one of dialects. Two kinds of bad input (an over-long input, wrong dimensions) are 400 in
Infinity's dialect, as Infinity itself has it, and not 422 as its errors of the schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.testclient import TestClient

from runtime import errors
from runtime.api.app import build_app
from runtime.registry import ServerSettings
from tests.fakes import FakeEngine, spec

MARKER = "MARKERmarkerMARKER"
OTHERS = ("cohere", "voyage", "vllm", "weaviate")


@dataclass(frozen=True)
class Case:
    """One way to ask in a dialect."""

    dialect: str
    path: str
    body: Mapping[str, Any]
    many: str
    """The field that may hold too many or none; empty: there is none."""
    wrong_model: str = "owner/moods"
    """One that can't do it."""

    def __str__(self) -> str:
        return f"{self.dialect}{self.path.replace('/', '-')}"


CASES = [
    Case("openai", "/v1/embeddings", {"input": MARKER}, "input"),
    Case("infinity", "/embeddings", {"input": MARKER}, "input"),
    Case("infinity", "/rerank", {"query": MARKER, "documents": [MARKER]}, "documents"),
    Case("infinity", "/classify", {"input": [MARKER]}, "input", "owner/letters"),
    Case("tei", "/embed", {"inputs": MARKER}, "inputs"),
    Case("tei", "/rerank", {"query": MARKER, "texts": [MARKER]}, "texts"),
    Case("tei", "/embed_all", {"inputs": MARKER}, "inputs", "owner/letters"),
    Case("tei", "/similarity", {"inputs": {"source_sentence": MARKER, "sentences": [MARKER]}}, ""),
    Case("tei", "/predict", {"inputs": [[MARKER]]}, "inputs", "owner/letters"),
    Case("tei", "/", {"inputs": {"source_sentence": MARKER, "sentences": [MARKER]}}, ""),
    Case("tei", "/vertex", {"instances": [{"type": "embed", "inputs": MARKER}]}, "instances"),
    Case("cohere", "/v1/embed", {"texts": [MARKER]}, "texts"),
    Case("cohere", "/v2/embed", {"texts": [MARKER]}, "texts"),
    Case("cohere", "/v2/rerank", {"query": MARKER, "documents": [MARKER]}, "documents"),
    Case("cohere", "/v1/multi-vector", {"input": [MARKER]}, "input"),
    Case("voyage", "/v1/rerank", {"query": MARKER, "documents": [MARKER], "top_k": 1}, "documents"),
    Case("vllm", "/score", {"queries": MARKER, "documents": [MARKER]}, "documents"),
    Case("vllm", "/pooling", {"input": MARKER}, "input"),
    Case("weaviate", "/vectors", {"text": MARKER}, ""),
    Case("weaviate", "/rerank", {"query": MARKER, "documents": [MARKER], "property": ""}, "documents"),
]
LONG = [case for case in CASES if case.many]
READ_ALIKE = [case for case in CASES if (case.dialect, case.path) not in {("tei", "/rerank"), ("weaviate", "/rerank")}]
"""Those whose dialect is known, or Cohere's, before the body is."""


def statuses(openai: int, infinity: int, tei: int, others: int) -> dict[str, int]:
    return {"openai": openai, "infinity": infinity, "tei": tei, **dict.fromkeys(OTHERS, others)}


def everywhere(status: int) -> dict[str, int]:
    return statuses(status, status, status, status)


def engine() -> FakeEngine:
    return FakeEngine(
        spec("owner/letters"),
        spec("owner/rows", task="multi_vector"),
        spec("owner/ranker", task="rerank"),
        spec("owner/moods", task="classify"),
    )


def assert_answer(
    case: Case, response: Any, status: Mapping[str, int], code: str, kind: str, param: str | None = None
) -> None:
    """`code` and `param`: OpenAI's, the latter where it is known; `kind`: TEI's `error_type`."""
    assert response.status_code == status[case.dialect], response.text
    assert len(response.content) < 2048
    assert MARKER not in response.text
    assert response.headers["x-request-id"]
    answer = response.json()
    if case.dialect == "tei":
        assert set(answer) == {"error", "error_type"}
        assert isinstance(answer["error"], str)
        assert answer["error_type"] == kind
    elif case.dialect == "weaviate":
        assert set(answer) == {"error"}
        assert isinstance(answer["error"], str)
    else:
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["code"] in (code, code.replace("inputs", "documents"))
        assert param in (None, answer["error"]["param"])
    if case.dialect == "cohere":
        assert answer["message"] == answer["detail"] == answer["error"]["message"]
    if case.dialect == "infinity" and response.status_code == 422:
        assert answer["detail"][0]["loc"][0] == "body"


@pytest.mark.parametrize("case", READ_ALIKE, ids=str)
def test_malformed_json_is_400(case: Case) -> None:
    read_as = Case("cohere", case.path, {}, "") if case.dialect == "voyage" else case
    response = TestClient(build_app(engine())).post(
        case.path, content=b'{"a": "' + MARKER.encode(), headers={"content-type": "application/json"}
    )
    assert_answer(read_as, response, everywhere(400), "invalid_json", "Validation")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_field_of_the_wrong_kind(case: Case) -> None:
    body = {**case.body, "model": {"name": MARKER}}
    if case.path == "/vertex":
        body = {"instances": [{"type": "embed", "inputs": {"a": MARKER}}]}
    response = TestClient(build_app(engine())).post(case.path, json=body)
    assert_answer(case, response, statuses(400, 422, 422, 400), "invalid_request", "Validation", "model")
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("case", LONG, ids=str)
def test_too_many_at_once(case: Case) -> None:
    (one,) = case.body[case.many] if isinstance(case.body[case.many], list) else [case.body[case.many]]
    response = TestClient(build_app(engine())).post(case.path, json={**case.body, case.many: [one] * 2049})
    assert_answer(case, response, statuses(400, 422, 422, 400), "too_many_inputs", "Validation", case.many)


@pytest.mark.parametrize("case", LONG, ids=str)
def test_none_at_all(case: Case) -> None:
    response = TestClient(build_app(engine())).post(case.path, json={**case.body, case.many: []})
    assert_answer(case, response, statuses(422, 422, 400, 400), "empty_input", "Empty", case.many)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_unknown_model_is_404(case: Case) -> None:
    response = TestClient(build_app(engine())).post(f"{case.path}?model={MARKER}", json=case.body)
    assert_answer(case, response, everywhere(404), "model_not_found", "Validation")
    assert "owner/letters" in response.text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_that_can_t(case: Case) -> None:
    response = TestClient(build_app(engine())).post(f"{case.path}?model={case.wrong_model}", json=case.body)
    assert_answer(case, response, statuses(400, 400, 424, 400), "unsupported_capability", "Backend")


@pytest.mark.parametrize("case", READ_ALIKE, ids=str)
def test_a_body_that_is_too_large_is_413(case: Case) -> None:
    read_as = Case("cohere", case.path, {}, "") if case.dialect == "voyage" else case
    small = FakeEngine(*engine().specs, settings=ServerSettings(max_body_bytes=1024))
    response = TestClient(build_app(small)).post(case.path, json={**case.body, "a": MARKER * 100})
    assert_answer(read_as, response, everywhere(413), "request_too_large", "Validation")


@pytest.mark.parametrize("case", READ_ALIKE, ids=str)
def test_no_key_is_401_with_the_scheme(case: Case) -> None:
    read_as = Case("cohere", case.path, {}, "") if case.dialect == "voyage" else case
    locked = FakeEngine(*engine().specs, settings=ServerSettings.model_validate({"api_key": "k"}))
    response = TestClient(build_app(locked)).post(case.path, json=case.body)
    assert_answer(read_as, response, everywhere(401), "unauthenticated", "Validation")
    assert response.headers["www-authenticate"] == "Bearer"


FAILURES: list[tuple[errors.CotenantError, dict[str, int], str, str, str]] = [
    # what the engine raises, statuses, code, TEI's word, whether to come back
    (errors.InputTooLong("too long"), statuses(400, 400, 422, 400), "input_too_long", "Validation", "never"),
    (errors.InvalidDimensions("too wide"), statuses(400, 400, 422, 400), "invalid_dimensions", "Validation", "never"),
    (errors.UnknownPrompt("no prompt"), statuses(400, 400, 422, 400), "unknown_prompt", "Validation", "never"),
    (errors.QueueFull("full", retry_after_s=2.5), everywhere(429), "queue_full", "Overloaded", "later"),
    (errors.RateLimited("spent", retry_after_s=2.5), everywhere(429), "rate_limited", "Overloaded", "later"),
    (errors.DeadlineExceeded("too late"), everywhere(504), "deadline_exceeded", "Overloaded", "open"),
    (errors.NoRoomNow("no room", retry_after_s=2.5), everywhere(503), "no_room_now", "Unhealthy", "later"),
    (errors.PinnedOut("no room"), everywhere(503), "pinned_out", "Unhealthy", "later"),
    (errors.ModelLoading("loading"), everywhere(503), "model_loading", "Unhealthy", "later"),
    (errors.Draining("draining"), everywhere(503), "draining", "Unhealthy", "later"),
    (errors.DoesNotFit("too big"), everywhere(503), "does_not_fit", "Unhealthy", "never"),
    (errors.ModelFailed("broken"), everywhere(503), "model_failed", "Unhealthy", "never"),
    (errors.OutOfMemory("no memory"), statuses(503, 503, 424, 503), "out_of_memory", "Backend", "open"),
    (errors.ForwardFailed("failed"), statuses(500, 500, 424, 500), "forward_failed", "Backend", "open"),
    (errors.NonFiniteOutput("NaN"), statuses(500, 500, 424, 500), "non_finite_output", "Backend", "open"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    ("failure", "status", "code", "kind", "retry"), FAILURES, ids=[failure[0].code for failure in FAILURES]
)
def test_what_the_engine_raises(
    case: Case, failure: errors.CotenantError, status: dict[str, int], code: str, kind: str, retry: str
) -> None:
    failing = engine()
    failing.failure = failure
    response = TestClient(build_app(failing)).post(case.path, json=case.body)
    assert_answer(case, response, status, code, kind)
    assert failing.metering.request_errors == [(case.dialect, code)]
    assert ("retry-after" in response.headers) is (retry == "later")
    assert ("retry-after-ms" in response.headers) is (retry == "later")
    assert response.headers.get("x-should-retry") == ("false" if retry == "never" else None)
    if code in ("queue_full", "rate_limited", "no_room_now"):
        assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("3", "2500")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bug_is_500_and_says_only_where_to_look(case: Case) -> None:
    failing = engine()
    failing.failure = RuntimeError(MARKER)
    response = TestClient(build_app(failing)).post(case.path, json=case.body)
    assert_answer(case, response, everywhere(500), "internal_error", "Backend")
    assert response.headers["x-request-id"] in response.text


def test_one_failing_instance_stops_the_others() -> None:
    class Stuck(FakeEngine):
        """Waits for ever, but for the text `bad`."""

        async def run(self, job: Any) -> Any:
            if job.inputs[0] == "bad":
                await asyncio.sleep(0.01)
                raise errors.ForwardFailed("failed")
            self.gate = asyncio.Event()
            return await super().run(job)

    stuck = Stuck()
    response = TestClient(build_app(stuck)).post("/vertex", json={"instances": [{"inputs": "a"}, {"inputs": "bad"}]})
    assert response.status_code == 424
    assert len(stuck.cancelled) == 1
