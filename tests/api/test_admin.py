"""The operator's routes over a real engine on doubles: what they show, what they do, whom they refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from runtime.api.app import build_app
from runtime.engine import Engine
from runtime.errors import SourceNotFound, UnsupportedModel
from runtime.registry import ServerSettings
from tests.engines import job
from tests.residents import RoomBackend, residents, states

pytestmark = pytest.mark.anyio

MB = 2**20
MODELS = {"org/a": MB, "b": MB, "huge": 64 * MB}
ON_DEMAND = {"resident": "on_demand"}
LOCAL = "http://127.0.0.1:7997"


def client(engine: Engine, peer: str = "127.0.0.1", url: str = LOCAL, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=build_app(engine), client=(peer, 5000))
    return httpx2.AsyncClient(transport=transport, base_url=url, headers=headers)


@asynccontextmanager
async def operated() -> AsyncIterator[tuple[Engine, httpx2.AsyncClient]]:
    async with residents(MODELS, budget_bytes=8 * MB, keys=ON_DEMAND) as (engine, _, _), client(engine) as http:
        yield engine, http


async def test_a_model_is_loaded_shown_pinned_and_unloaded_by_its_id_with_a_slash() -> None:
    async with operated() as (engine, http):
        loaded = (await http.post("/admin/models/org/a/load")).raise_for_status().json()
        assert (loaded["id"], loaded["state"], loaded["bytes"]["weights"]) == ("org/a", "ready", MB)
        assert (await http.post("/admin/models/org/a/pin")).json()["pinned"]
        await engine.run(job("org/a", "x"))
        shown = (await http.get("/admin/models")).raise_for_status().json()["models"]
        assert [model["state"] for model in shown] == ["ready", "unloaded", "unloaded"]
        assert shown[0]["last_used_unix_s"] > 0
        assert shown[0]["cost"]["ms_per_token"] > 0
        assert shown[0]["queue"] == {lane: {"items": 0, "tokens": 0} for lane in ("online", "bulk")}
        assert (await http.post("/admin/models/org/a/unpin")).json()["pinned"] is False
        unloaded = (await http.post("/admin/models/A/unload")).raise_for_status().json()
        assert (unloaded["state"], unloaded["loads"], unloaded["bytes"]["weights"]) == ("unloaded", 1, 0)


async def test_memory_adds_up_and_decisions_come_newest_first() -> None:
    async with operated() as (_, http):
        await http.post("/admin/models/b/load")
        await http.post("/admin/models/huge/load")
        memory = (await http.get("/admin/memory")).raise_for_status().json()
        ledger = memory["ledger"]
        assert ledger["booked"] == sum(ledger[kind] for kind in ("base", "weights", "graphs", "workspace"))
        assert ledger["free"] == ledger["limit"] - ledger["booked"]
        assert memory["models"]["b"]["weights"] == ledger["weights"] == MB
        assert memory["driver"]["total"] == 10**8
        latest, first = (await http.get("/admin/decisions?limit=2")).json()["decisions"]
        assert (latest["model"], latest["verdict"], latest["reason"]) == ("huge", "refused", "over_budget")
        assert (first["model"], first["verdict"]) == ("b", "admitted")
        assert latest["asked"] > latest["free"]


async def test_what_cannot_be_is_refused_with_a_code() -> None:
    async with operated() as (_, http):
        for path, status, code in (
            ("/admin/models/huge/load", 503, "does_not_fit"),
            ("/admin/models/nope/load", 404, "model_not_found"),
            ("/admin/models/org/nope/unload", 404, "model_not_found"),
            ("/admin/models/a%00b/pin", 404, "model_not_found"),
            ("/admin/models//load", 400, "model_required"),
        ):
            answer = await http.post(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
        for limit in ("0", "1001", "-1", "x", "", "9" * 30):
            assert (await http.get(f"/admin/decisions?limit={limit}")).status_code == 400
        assert (await http.get("/admin/models/b/load")).status_code == 405


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (SourceNotFound("no weights under there"), "no weights under there"),
        (UnsupportedModel("no layout agrees"), "no layout agrees"),
        (RuntimeError("torn"), "RuntimeError: torn"),
    ],
)
async def test_a_load_that_fails_is_refused_as_a_request_for_the_model_is(
    failure: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise failure

    monkeypatch.setattr(RoomBackend, "load", failing)
    async with operated() as (_, http):
        asked = await http.post("/v1/embeddings", json={"model": "b", "input": "a"})
        for path in ("/admin/models/b/load", "/v1/models/b/load", "/v2/repository/models/b/load"):
            answer = await http.post(path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (asked.status_code, "model_failed") == (503, "model_failed")
            assert error["message"] == f"the model could not be loaded: {said}; the server's log has more"
            assert error["message"] == asked.json()["error"]["message"]


async def test_tritons_names_do_the_same() -> None:
    async with operated() as (engine, http):
        for prefix in ("/v1/models", "/v2/repository/models"):
            assert (await http.post(f"{prefix}/org/a/load")).json()["state"] == "ready"
            index = (await http.post("/v2/repository/index")).raise_for_status().json()
            assert [(each["name"], each["state"]) for each in index][:2] == [("org/a", "READY"), ("b", "UNAVAILABLE")]
            await http.post(f"{prefix}/org/a/unload")
            assert states(engine)["org/a"] == "unloaded"


@pytest.mark.parametrize(
    ("peer", "url", "headers", "reason"),
    [
        ("10.0.0.9", LOCAL, {}, "the request comes from another machine"),
        ("::ffff:10.0.0.9", LOCAL, {}, "the request comes from another machine"),
        ("127.0.0.1", "http://rebound.example", {}, "its host header names another machine"),
        ("127.0.0.1", LOCAL, {"x-forwarded-for": "10.0.0.9"}, "the header x-forwarded-for, as from a proxy"),
        ("127.0.0.1", LOCAL, {"origin": "https://elsewhere.example"}, "the header origin, as from a browser"),
        ("127.0.0.1", LOCAL, {"sec-fetch-site": "cross-site"}, "the header sec-fetch-site, as from a browser"),
    ],
)
async def test_without_a_token_only_programs_on_this_machine_may(
    peer: str, url: str, headers: dict[str, str], reason: str
) -> None:
    async with operated() as (engine, _), client(engine, peer, url, **headers) as http:
        for method, path in (("GET", "/admin/memory"), ("POST", "/v1/models/b/load"), ("POST", "/v2/repository/index")):
            answer = await http.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_refused")
            assert answer.json()["error"]["message"].endswith(reason)
        assert states(engine)["b"] == "unloaded"


@pytest.mark.parametrize(
    ("peer", "url"), [("127.0.0.1", LOCAL), ("::1", "http://[::1]:7997"), ("::ffff:127.0.0.1", LOCAL)]
)
async def test_programs_on_this_machine_may(peer: str, url: str) -> None:
    async with operated() as (engine, _), client(engine, peer, url) as http:
        assert (await http.get("/admin/memory")).status_code == 200


async def test_a_server_that_listens_elsewhere_wants_a_token() -> None:
    settings = ServerSettings(host="0.0.0.0")
    async with residents(MODELS, keys=ON_DEMAND, server=settings) as (engine, _, _), client(engine) as http:
        answer = await http.get("/admin/memory")
        assert (answer.status_code, "listens on other addresses too" in answer.text) == (403, True)


@pytest.mark.parametrize(("key", "status"), [("boss", 200), ("clerk", 403), ("s3cret", 401), ("", 401)])
async def test_with_api_keys_one_with_the_admin_right_is_needed_and_the_token_counts_for_nothing(
    key: str, status: int
) -> None:
    settings = ServerSettings.model_validate({"api_key": "boss", "api_keys": "clerk:clerk", "admin_token": "s3cret"})
    async with residents(MODELS, keys=ON_DEMAND, server=settings) as (engine, _, _):
        for peer in ("127.0.0.1", "10.0.0.9"):
            async with client(engine, peer, authorization=f"Bearer {key}") as http:
                assert (await http.get("/admin/models")).status_code == status


@pytest.mark.parametrize(
    ("given", "status"),
    [("Bearer s3cret", 200), ("bearer s3cret", 200), ("Bearer s3cre", 403), ("Basic s3cret", 403), ("", 403)],
)
async def test_with_a_token_it_alone_counts_wherever_one_is(given: str, status: int) -> None:
    settings = ServerSettings.model_validate({"host": "0.0.0.0", "admin_token": "s3cret"})
    async with residents(MODELS, keys=ON_DEMAND, server=settings) as (engine, _, _):
        async with client(engine, "10.0.0.9", "http://far.example", authorization=given) as http:
            answer = await http.get("/admin/models")
        assert answer.status_code == status
        assert "s3cret" not in answer.text
