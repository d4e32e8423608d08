"""The OpenAPI document is of the specification's form, has every route, and tells the truth; the page needs nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from runtime import __version__
from runtime.api.app import build_app
from runtime.api.openapi import document
from runtime.api.operations import OPERATIONS
from runtime.cli import app
from runtime.registry import ServerSettings
from tests.api.schema_check import complaints
from tests.fakes import FakeEngine
from tests.test_docs import routes

API: dict[str, Any] = json.loads(document())
METHODS = {"get", "post"}
KINDS = {"object", "array", "string", "integer", "number", "boolean", "null"}


def everything(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of the document."""
    if isinstance(node, dict):
        yield node
        for name, child in node.items():
            if name != "example":
                yield from everything(child)
    elif isinstance(node, list):
        for child in node:
            yield from everything(child)


def found(reference: str) -> Any:
    place: Any = API
    for name in reference.removeprefix("#/").split("/"):
        place = place[name]
    return place


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [(method, path, each) for path, item in API["paths"].items() for method, each in item.items()]


POSTS = [(path, each) for _, path, each in operations() if "requestBody" in each]


def test_every_route_is_in_it_and_no_other() -> None:
    assert set(OPERATIONS) == routes()
    assert {f"{method.upper()} {path}" for method, path, _ in operations()} == routes()


def test_it_has_the_form_of_openapi_3_1() -> None:
    assert re.fullmatch(r"3\.1\.\d", API["openapi"])
    assert {"title", "version"} <= set(API["info"])
    assert API["info"]["version"] == __version__
    assert {tag["name"] for tag in API["tags"]} == {tag for _, _, each in operations() for tag in each["tags"]}
    names = [each["operationId"] for _, _, each in operations()]
    assert len(set(names)) == len(names)
    for method, path, each in operations():
        assert method in METHODS
        assert path.startswith("/")
        assert each["summary"]
        assert all(re.fullmatch(r"[1-5]\d\d|default", status) for status in each["responses"])
        assert all(answer["description"] for answer in each["responses"].values())
        parameters = [found(item["$ref"]) if "$ref" in item else item for item in each.get("parameters", ())]
        in_path = {item["name"] for item in parameters if item["in"] == "path"}
        assert in_path == set(re.findall(r"{(\w+)}", path))
        assert all(item["required"] for item in parameters if item["in"] == "path")


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    for node in everything(API):
        if "$ref" in node:
            assert isinstance(found(node["$ref"]), dict)
        if isinstance(node.get("type"), str) and "scheme" not in node and "in" not in node:
            assert node["type"] in KINDS
        if isinstance(node.get("required"), list) and "properties" in node:
            assert set(node["required"]) <= set(node["properties"])
        for word in ("anyOf", "allOf"):
            assert word not in node or node[word]


def test_it_holds_nothing_of_the_code_and_nothing_from_elsewhere() -> None:
    assert "http" not in document().decode().replace('"type":"http"', "")
    assert re.findall(r"`\w+_of`", document().decode()) == []


@pytest.mark.parametrize(("path", "operation"), POSTS, ids=[path for path, _ in POSTS])
def test_the_example_is_answered_as_the_document_says(path: str, operation: dict[str, Any]) -> None:
    body = operation["requestBody"]["content"]["application/json"]
    client = TestClient(build_app(FakeEngine.of_all_tasks()))
    response = client.post(path, json=body["example"])
    answer = operation["responses"].get("200")
    if answer is None:
        assert path == "/embed_sparse"
        assert response.status_code == 424
        return
    assert response.status_code == 200, response.text
    assert complaints(response.json(), answer["content"]["application/json"]["schema"]) == []


@pytest.mark.parametrize("path", [path for method, path, _ in operations() if method == "get"])
def test_what_is_asked_without_a_body_is_answered_as_the_document_says(path: str) -> None:
    operation = API["paths"][path]["get"]
    client = TestClient(build_app(FakeEngine.of_all_tasks()))
    response = client.get(path.replace("{model_id}", "owner/letters"))
    answer = operation["responses"][str(response.status_code)]
    if "content" in answer:
        ((media_type, content),) = answer["content"].items()
        assert response.headers["content-type"].startswith(media_type)
        value = response.json() if media_type == "application/json" else response.text
        assert complaints(value, content["schema"]) == []


@pytest.mark.parametrize(("path", "operation"), POSTS, ids=[path for path, _ in POSTS])
def test_every_error_has_the_form_that_the_document_says(path: str, operation: dict[str, Any]) -> None:
    client = TestClient(build_app(FakeEngine.of_all_tasks()))
    response = client.post(path, content=b"{", headers={"content-type": "application/json"})
    assert response.status_code == 400
    schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
    forms = [found(form["$ref"]) for form in schema.get("anyOf", [schema])]
    assert [] in [complaints(response.json(), form) for form in forms]


def test_a_required_field_may_come_under_any_of_its_names() -> None:
    schema = API["components"]["schemas"]["RerankRequest"]
    assert complaints({"query": "a", "texts": ["b"]}, schema) == []
    assert complaints({"query": "a", "documents": ["b"]}, schema) == []
    assert complaints({"query": "a"}, schema)
    assert complaints({"documents": ["b"]}, schema)


def test_it_is_served_and_printed_alike() -> None:
    client = TestClient(build_app(FakeEngine(settings=ServerSettings(url_prefix="/rag"))))
    served = client.get("/rag/openapi.json")
    assert served.headers["content-type"] == "application/json"
    assert served.json() == {**API, "servers": [{"url": "/rag"}]}
    printed = CliRunner().invoke(app, ["openapi"])
    assert json.loads(printed.stdout) == API


def test_the_page_refers_to_nothing_outside(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", page.text) == []
    assert re.findall(r"(?:src|href)=\"(?!data:|openapi\.json)", page.text) == []
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert "innerHTML" not in page.text


def test_a_browser_is_led_from_the_root_to_the_page() -> None:
    client = TestClient(build_app(FakeEngine(settings=ServerSettings(url_prefix="/rag"))), follow_redirects=False)
    assert client.get("/rag", headers={"accept": "application/json"}).json()["name"] == "cotenant"
    led = client.get("/rag", headers={"accept": "text/html,application/xhtml+xml"})
    assert (led.status_code, led.headers["location"]) == (307, "/rag/docs")


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/info", "/meta", "/version", "/"])
def test_they_need_a_key_where_there_is_one(path: str) -> None:
    client = TestClient(build_app(FakeEngine(settings=ServerSettings.model_validate({"api_key": "k"}))))
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"x-api-key": "k"}).status_code == 200
