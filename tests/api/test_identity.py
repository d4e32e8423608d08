"""Who may ask what: keys, models, lanes, tokens a minute."""

from __future__ import annotations

import hmac
import inspect
import logging
from typing import Any

import httpx2
import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from runtime.api.app import HOT_ROUTES, build_app
from runtime.api.identity import PROBES, Caller
from runtime.api.quota import Quota
from runtime.errors import Forbidden, RateLimited
from runtime.registry import ServerSettings
from runtime.work import Lane
from tests.api.test_addressing import callers_of
from tests.fakes import FakeEngine, spec

KEYS = """
keys:
  - {name: plain, key: plain-key}
  - {name: narrow, key: narrow-key, tenant: shop, models: [uno], tokens_per_minute: 20}
  - {name: indexer, key: indexer-key, lane: bulk}
  - {name: person, key: person-key, lane: online}
"""
BODY = {"input": "a b c", "model": "one"}
"""Five tokens."""


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> FakeEngine:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text(KEYS)
    return FakeEngine(spec("one", aliases=["uno"]), spec("two"), settings=ServerSettings(port=0, keys_file=str(path)))


def ask(
    engine: FakeEngine, key: str | None = "plain-key", path: str = "/v1/embeddings", **body: Any
) -> httpx2.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return TestClient(build_app(engine)).post(path, json=BODY | body, headers=headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer plain-key"},
        {"authorization": "bearer  plain-key "},
        {"authorization": "plain-key"},
        {"x-api-key": "plain-key"},
        {"authorization": "Bearer unused", "x-api-key": "plain-key"},
    ],
)
def test_a_key_comes_in_either_header(headers: dict[str, str], guarded: FakeEngine) -> None:
    assert TestClient(build_app(guarded)).post("/embeddings", json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer plain-kez"},
        {"authorization": "Basic plain-key"},
        {"x-api-key": ""},
        {"x-api-key": "sha256:plain-key"},
    ],
)
@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
def test_anything_else_is_401_in_the_dialect(headers: dict[str, str], path: str, guarded: FakeEngine) -> None:
    answer = TestClient(build_app(guarded)).post(path, content=b"not even JSON", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["code"] == "unauthenticated"
    assert answer.json()["error"]["type"] == "authentication_error"
    sent = [value for value in headers.values() if value.strip() not in ("", "Bearer")]
    said = "this API key is not known" if sent else "an API key is needed"
    assert answer.json()["error"]["message"].startswith(said)
    assert guarded.jobs == []


def every_route(engine: FakeEngine) -> set[tuple[str, str]]:
    router = inspect.getclosurevars(build_app(engine)).nonlocals["router"]
    routes = [route for route in router.routes if isinstance(route, Route)]
    asked = {(method, route.path_format) for route in routes for method in (route.methods or set()) - {"HEAD"}}
    return asked | {("POST", path) for path in HOT_ROUTES} | {("GET", "/no/such"), ("PUT", "/v1/embeddings")}


def open_paths(engine: FakeEngine) -> set[str]:
    client = TestClient(build_app(engine))
    statuses = {path: client.request(method, path).status_code for method, path in every_route(engine)}
    assert len(statuses) > len(PROBES)
    return {path for path, status in statuses.items() if status != 401}


def test_without_a_key_only_liveness_and_readiness_answer(guarded: FakeEngine) -> None:
    assert open_paths(guarded) == PROBES


def test_models_and_metrics_are_opened_by_flags() -> None:
    opened = {"public_models": True, "public_metrics": True}
    engine = FakeEngine(settings=ServerSettings.model_validate({"port": 0, "api_key": "k", **opened}))
    assert open_paths(engine) == PROBES | {"/models", "/v1/models", "/v1/models/{model_id}", "/metrics"}


def test_a_prefix_opens_nothing_and_tells_nothing(guarded: FakeEngine) -> None:
    client = TestClient(build_app(guarded))
    assert client.get("/m/one/metrics").status_code == 401
    for path in ("/m/four/metrics", "/m/four/v1/models"):
        answer = client.get(path)
        assert (answer.status_code, "two" in answer.text) == (401, False)


def test_readiness_names_no_models_to_strangers(guarded: FakeEngine) -> None:
    client = TestClient(build_app(guarded))
    assert client.get("/ready").json() == {"status": "ready"}
    assert len(client.get("/ready", headers={"x-api-key": "plain-key"}).json()["models"]) == 2


def test_a_key_is_for_its_models_by_any_of_their_names(guarded: FakeEngine) -> None:
    assert [ask(guarded, "narrow-key", model=name).status_code for name in ("one", "uno", "two")] == [200, 200, 403]
    refusal = ask(guarded, "narrow-key", path="/m/two/embeddings", model=None)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (403, "forbidden")
    assert refusal.headers["x-should-retry"] == "false"
    client = TestClient(build_app(guarded), headers={"x-api-key": "narrow-key"})
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["one"]
    assert [client.get(f"/v1/models/{name}").status_code for name in ("uno", "two", "three")] == [200, 403, 404]


def test_the_tenant_is_the_keys(guarded: FakeEngine) -> None:
    for key in ("narrow-key", "plain-key"):
        assert ask(guarded, key).status_code == 200
    assert [job.tenant for job in guarded.jobs] == ["shop", "plain"]


def test_a_keys_lane_counts_unless_bulk_is_asked_for(guarded: FakeEngine) -> None:
    client = TestClient(build_app(guarded))
    for key, lane in (("indexer", None), ("indexer", "online"), ("plain", None), ("plain", "bulk"), ("person", None)):
        headers = {"x-api-key": f"{key}-key"} | ({"x-lane": lane} if lane else {})
        assert client.post("/embeddings", json=BODY, headers=headers).status_code == 200
    assert [job.lane for job in guarded.jobs] == [Lane.BULK, Lane.BULK, Lane.ONLINE, Lane.BULK, Lane.ONLINE]
    assert [job.may_go_bulk for job in guarded.jobs] == [False, False, True, False, False]


def test_a_key_that_has_spent_its_minute_waits(guarded: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    client = TestClient(build_app(guarded), headers={"x-api-key": "narrow-key"})
    answers = [client.post("/embeddings", json=BODY) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 4 + [429]
    assert answers[4].json()["error"]["code"] == "rate_limited"
    assert answers[4].headers["retry-after"] == "55"
    assert len(guarded.jobs) == 4
    assert client.post("/embeddings", json=BODY, headers={"x-api-key": "plain-key"}).status_code == 200


class Clock:
    """A time that stands until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_800_000_005.0
        monkeypatch.setattr("time.time", lambda: self.now_s)


def spent(quota: Quota, caller: Caller) -> float | None:
    """Seconds to wait; None: none."""
    try:
        quota.check(caller)
    except RateLimited as refusal:
        return refusal.retry_after_s
    return None


def test_tokens_come_back_with_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, quota = Clock(monkeypatch), Quota()
    caller = Caller(name="a", tokens_per_minute=100)
    quota.charge(caller, 99)
    assert spent(quota, caller) is None
    quota.charge(caller, 1)
    assert spent(quota, caller) == pytest.approx(55, abs=1)
    assert spent(quota, Caller(name="b", tokens_per_minute=100)) is None
    clock.now_s += 62
    assert spent(quota, caller) is None


def test_what_goes_beyond_the_limit_is_paid_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, quota = Clock(monkeypatch), Quota()
    caller = Caller(name="a", tokens_per_minute=100)
    quota.charge(caller, 300)
    waits = []
    for _ in range(6):
        waits.append(spent(quota, caller))
        clock.now_s += 60
    assert waits[0] == pytest.approx(120, abs=1)
    assert waits[:3].count(None) == 0
    assert waits[-1] is None


def test_keys_without_a_limit_are_not_counted() -> None:
    quota = Quota()
    quota.charge(Caller(name="a"), 10**9)
    assert spent(quota, Caller(name="a")) is None


def test_rights_are_checked() -> None:
    with pytest.raises(Forbidden):
        Caller(admin=False).check_admin()
    Caller(admin=True).check_admin()


def test_every_key_is_compared_in_constant_time(guarded: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    whole = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return whole(one, other)

    client = TestClient(build_app(guarded))
    monkeypatch.setattr(hmac, "compare_digest", counted)
    client.get("/health", headers={"authorization": "Bearer plain-key"})
    assert len(compared) == 4


def test_no_key_is_logged(guarded: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for key in ("plain-key", "narrow-key", "wrong-key"):
        ask(guarded, key)
        ask(guarded, key, path="/nowhere")
    assert caplog.records
    assert not [record for record in caplog.records if "-key" in str(vars(record))]


def test_every_job_runs_on_its_callers_account() -> None:
    assert callers_of("run") == {"inference"}
