"""A request reaches the model that its body, its path, its port or its header means, and no other."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from runtime.api import addressing
from runtime.api.app import build_app
from runtime.errors import ModelNotFound, ModelRequired
from runtime.registry import ModelSpec, RuntimeConfig, ServerSettings
from runtime.router import Router
from runtime.work import Task
from runtime.worker import Worker
from tests.api.live import SERVERS, HttpServer, live_server
from tests.fakes import FakeEngine, spec

API = Path(addressing.__file__).parent
BODY = {"input": "a text"}
THREE = (spec("owner/one", aliases=["uno"]), spec("two"), spec("owner/three", aliases=["deep/drei"]))


class RoutedEngine(FakeEngine):
    """Names reach models as in the real one."""

    def resolve(self, name: str | None, task: Task | None) -> ModelSpec:
        return Router(map(Worker, self.specs)).resolve(name, task).spec


def answering(path: str, engine: RoutedEngine | None = None, headers: Any = None, **body: Any) -> str:
    """The id of the one model that answered, or the error's code."""
    engine = engine or RoutedEngine(*THREE)
    answer = TestClient(build_app(engine)).post(path, json=BODY | body, headers=headers)
    if answer.status_code != 200:
        assert engine.jobs == []
        code: str = answer.json()["error"]["code"]
        return code
    [job] = engine.jobs
    return job.model


@pytest.mark.parametrize(
    ("prefix", "model"),
    [
        ("/m/uno", "owner/one"),
        ("/m/two", "two"),
        ("/m/owner/three", "owner/three"),
        ("/m/owner%2Fthree", "owner/three"),
        ("/m/deep/drei", "owner/three"),
        ("/m/three", "owner/three"),
    ],
)
@pytest.mark.parametrize("route", ["/embeddings", "/v1/embeddings"])
def test_a_prefix_names_the_model_by_any_of_its_names(prefix: str, model: str, route: str) -> None:
    assert answering(prefix + route) == model


def test_the_longest_name_counts() -> None:
    engine = RoutedEngine(spec("a"), spec("a/embeddings"))
    assert answering("/m/a/embeddings/embeddings", engine) == "a/embeddings"
    assert answering("/m/a/embeddings", RoutedEngine(*engine.specs)) == "a/embeddings"


def test_the_header_names_the_model() -> None:
    for name in ("uno", "two", "owner/three"):
        assert answering("/embeddings", headers={"x-model-id": name}) in (name, "owner/one")


def test_the_order_is_body_path_header() -> None:
    header = {"x-model-id": "two"}
    assert answering("/m/uno/embeddings", headers=header, model="three") == "owner/three"
    assert answering("/m/uno/embeddings", headers=header) == "owner/one"
    assert answering("/embeddings", headers=header, model="three") == "owner/three"


def test_a_body_that_says_it_names_nothing_leaves_it_to_the_path() -> None:
    assert answering("/m/two/embeddings", model="default/not-specified") == "two"
    assert answering("/m/two/embeddings", model=None) == "two"


def test_an_unknown_name_is_refused_wherever_it_stands() -> None:
    assert answering("/m/two/embeddings", model="four") == "model_not_found"
    assert answering("/m/four/embeddings", model="two") == "model_not_found"
    assert answering("/embeddings", headers={"x-model-id": "four"}) == "model_not_found"


def test_no_name_among_several_is_refused_with_the_ids() -> None:
    answer = TestClient(build_app(RoutedEngine(*THREE))).post("/embeddings", json=BODY)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "model_required"
    assert all(model.id in answer.json()["error"]["message"] for model in THREE)


def test_a_short_name_of_several_is_refused_as_such() -> None:
    engine = RoutedEngine(spec("a/mini"), spec("b/mini"))
    assert answering("/m/mini/embeddings", engine) == "model_required"


@pytest.mark.parametrize("path", ["/m/two/v1/models", "/m/owner/one/health", "/m/two/", "/m/two"])
def test_the_prefix_carries_the_other_routes(path: str) -> None:
    assert TestClient(build_app(RoutedEngine(*THREE))).get(path).status_code == 200


@pytest.mark.parametrize("path", ["/m/four/v1/models", "/m/four", "/m//health", "/m/" + "/x" * 5000])
def test_the_prefix_of_no_model_leads_nowhere(path: str) -> None:
    answer = TestClient(build_app(RoutedEngine(*THREE))).get(path)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["code"] in ("model_not_found", "model_required")


def test_a_url_prefix_is_taken_off_before_all_else() -> None:
    settings = ServerSettings(port=0, url_prefix="api/v3/")
    assert settings.url_prefix == "/api/v3"
    engine = RoutedEngine(*THREE, settings=settings)
    assert answering("/api/v3/m/two/embeddings", engine) == "two"
    client = TestClient(build_app(RoutedEngine(*THREE, settings=settings)))
    statuses = [client.get(path).status_code for path in ("/api/v3/health", "/health", "/api/v3", "/api/v33/health")]
    assert statuses == [200, 200, 200, 404]


@pytest.mark.parametrize("http", SERVERS)
def test_a_port_names_the_model(http: HttpServer) -> None:
    bound = {":0": "uno", "127.0.0.1:0": "owner/three"}
    engine = RoutedEngine(*THREE, settings=ServerSettings(port=0, bind_model=bound))
    with live_server(engine, http) as server:
        asked = []
        for port, model in server.listening.models.items():
            url = f"http://127.0.0.1:{port}/embeddings"
            assert httpx2.post(url, json=BODY).status_code == 200
            assert httpx2.post(url, json=BODY, headers={"x-model-id": "two"}).status_code == 200
            assert httpx2.post(url, json=BODY | {"model": "two"}).status_code == 200
            assert httpx2.post(f"http://127.0.0.1:{port}/m/two/embeddings", json=BODY).status_code == 200
            asked += [THREE[0].id if model == "uno" else THREE[2].id] * 2 + ["two"] * 2
        assert httpx2.post(f"{server.url}/embeddings", json=BODY).status_code == 400
    assert [job.model for job in engine.jobs] == asked


def test_a_default_answers_for_its_task_alone() -> None:
    router = Router(
        map(Worker, (spec("a", task="embed"), spec("b", task="embed", default=True), spec("c", task="rerank")))
    )
    assert router.resolve(None, Task.EMBED).spec.id == "b"
    assert router.resolve(None, Task.RERANK).spec.id == "c"
    assert router.resolve("a", Task.EMBED).spec.id == "a"


def test_two_defaults_whose_task_is_found_out_later_are_no_guess() -> None:
    router = Router(map(Worker, (spec("a", default=True), spec("b", default=True), spec("c"))))
    with pytest.raises(ModelRequired, match=r"embed: a, b; several are marked as default$"):
        router.resolve(None, Task.EMBED)
    with pytest.raises(ModelNotFound):
        router.resolve("d", Task.EMBED)
    with pytest.raises(ModelRequired, match=r"embed: a, c$"):
        Router(map(Worker, (spec("a"), spec("c")))).resolve(None, Task.EMBED)


def configured(*models: ModelSpec, **server: Any) -> RuntimeConfig:
    return RuntimeConfig(models=models, server=ServerSettings.model_validate(server))


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        ({"bind_model": {":82": "z"}}, "bound to 'z', which no model is called"),
        ({"bind_model": {"x:y": "a"}}, "'x:y' is no address"),
        ({"bind_model": {":99999": "a"}}, "is no address"),
        ({"bind_model": ["a"]}, "write MODEL=ADDRESS"),
        ({"bind_model": {":82": "a", "127.0.0.1:82": "a"}}, "the same port"),
        ({"tls_key": "k"}, "go together"),
        ({"tls_key": "k", "tls_certificate": "c", "uds": "u"}, "needs no TLS"),
    ],
)
def test_mistakes_in_addresses_are_named(server: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        configured(spec("a"), **server)


def test_two_defaults_for_one_task_are_a_mistake() -> None:
    with pytest.raises(ValidationError, match="'a' and 'b' are both the default for embed"):
        configured(*(spec(name, task="embed", default=True) for name in "ab"))


def callers_of(name: str) -> set[str]:
    """Modules of the edge that call `engine.<name>`."""
    found = set()
    for path in API.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == name and ast.unparse(node.value).endswith("engine"):
                found.add(path.stem)
    return found


def test_every_route_asks_one_function_for_its_model() -> None:
    assert callers_of("resolve") == {"addressing", "app", "catalogue"}
