"""Pictures in requests: every way to write one reaches the engine, every broken one is refused and does no harm."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from runtime.api.app import build_app
from runtime.registry import ServerSettings
from runtime.work import Picture, Task
from tests.fakes import FakeEngine, matrix, spec, status
from tests.test_pictures import REFUSED_BY_THE_HEADER, empty_png


def png(width: int = 6, height: int = 4) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


PNG = png()
BASE64 = base64.b64encode(PNG).decode()
DATA_URI = f"data:image/png;base64,{BASE64}"

SPELLINGS = {
    "data URI": DATA_URI,
    "bare base64": BASE64,
    "upper case": f"DATA:IMAGE/PNG;BASE64,{BASE64}",
    "parameters": f"data:image/png;name=a.png;charset=utf-8;base64,{BASE64}",
    "no media type": f"data:;base64,{BASE64}",
    "another media type": f"data:text/plain;base64,{BASE64}",
    "a blank before base64": f"data:image/png; base64,{BASE64}",
    "no padding": DATA_URI.rstrip("="),
    "lines": "data:image/png;base64,\r\n" + "\n".join(BASE64[i : i + 60] for i in range(0, len(BASE64), 60)) + "\n",
    "blanks around": f"  {DATA_URI} ",
    "url-safe": "data:image/png;base64," + base64.urlsafe_b64encode(PNG).decode(),
    "percent-encoded": DATA_URI.replace("+", "%2B").replace("/", "%2F").replace("image%2Fpng", "image/png"),
}

BROKEN = {
    "nothing": ("", "invalid_image"),
    "an empty data URI": ("data:image/png;base64,", "invalid_image"),
    "a bare data URI": ("data:,", "invalid_image"),
    "no comma": ("data:image/png;base64", "invalid_image"),
    "not base64": ("data:image/png,%89PNG", "invalid_image"),
    "bad base64": ("data:image/png;base64,@@@@", "invalid_image"),
    "a lone letter": ("A", "invalid_image"),
    "no ASCII": ("é" * 8, "invalid_image"),
    "plain text": ("data:text/plain;base64," + base64.b64encode(b"just words").decode(), "unsupported_image"),
    "half a picture's head": (base64.b64encode(PNG[:20]).decode(), "invalid_image"),
    "an address": ("http://127.0.0.1:9/a.png", "image_url_not_allowed"),
    "a file": ("file:///etc/passwd", "image_url_not_allowed"),
    "a word with a colon": ("about:blank", "image_url_not_allowed"),
}


@pytest.fixture
def engine() -> FakeEngine:
    """An embedder that sees."""
    engine = FakeEngine()
    engine.statuses = [status(engine.specs[0], modalities=("text", "image"))]
    return engine


def pictures(engine: FakeEngine) -> list[tuple[int, int]]:
    """The sizes of the last job's pictures, which must be all that it holds."""
    found = []
    for item in engine.jobs[-1].inputs:
        assert isinstance(item, Picture)
        found.append((item.width, item.height))
    return found


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings", "/pooling"])
def test_every_spelling_of_a_picture_is_taken(client: TestClient, engine: FakeEngine, path: str, spelling: str) -> None:
    response = client.post(path, json={"input": [SPELLINGS[spelling]], "modality": "image"})
    assert response.status_code == 200, response.text
    [picture] = engine.jobs[0].inputs
    assert picture == Picture(PNG, 6, 4)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/pooling"])
def test_a_list_of_objects_may_hold_texts_and_pictures(client: TestClient, engine: FakeEngine, path: str) -> None:
    given = ["plain", {"text": "in an object"}, {"image": BASE64}]
    assert client.post(path, json={"model": engine.specs[0].id, "input": given}).status_code == 200
    first, second, third = engine.jobs[-1].inputs
    assert (first, second) == ("plain", "in an object")
    assert isinstance(third, Picture)


def test_infinity_s_image_route_needs_no_modality(client: TestClient, engine: FakeEngine) -> None:
    answer = client.post("/embeddings_image", json={"input": DATA_URI}).json()
    assert pictures(engine) == [(6, 4)]
    assert answer["data"][0]["embedding"][0] == len("6 x 4")
    assert answer["id"].startswith("infinity-")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_picture_is_refused_and_the_next_is_served(client: TestClient, engine: FakeEngine, name: str) -> None:
    text, code = BROKEN[name]
    response = client.post("/embeddings", json={"input": [DATA_URI, text], "modality": "image"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert not engine.jobs
    assert len(text) < 8 or text not in response.text
    for _ in range(20):
        assert client.post("/embeddings", json={"input": DATA_URI, "modality": "image"}).status_code == 200


@pytest.mark.parametrize("name", REFUSED_BY_THE_HEADER)
def test_a_hostile_picture_never_reaches_a_model(client: TestClient, engine: FakeEngine, name: str) -> None:
    data, kind = REFUSED_BY_THE_HEADER[name]
    body = {"input": [base64.b64encode(data).decode()], "modality": "image"}
    response = client.post("/v1/embeddings", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (kind.status, kind.code)
    assert not engine.jobs


def test_the_limits_are_the_registry_s() -> None:
    engine = FakeEngine(settings=ServerSettings(max_image_bytes=1024, max_image_pixels=100))
    client = TestClient(build_app(engine))
    for data in (bytes(1025), bytes(5000), empty_png(11, 10, rows=10)):
        body = {"input": base64.b64encode(data).decode(), "modality": "image"}
        engine.statuses = [status(engine.specs[0], modalities=("image",))]
        assert client.post("/v1/embeddings", json=body).status_code == 413
    assert client.post("/v1/embeddings", json={"input": BASE64, "modality": "image"}).status_code == 200


def test_a_large_body_of_pictures_is_read_off_the_loop(client: TestClient, engine: FakeEngine) -> None:
    """Its bytes pass the threshold of `off_loop`; what arrives is the same."""
    noisy = io.BytesIO()
    Image.effect_noise((400, 400), 90).save(noisy, "PNG")
    text = base64.b64encode(noisy.getvalue()).decode()
    assert len(text) > 64 * 1024
    assert client.post("/embeddings", json={"input": [text, DATA_URI], "modality": "image"}).status_code == 200
    assert pictures(engine) == [(400, 400), (6, 4)]


def test_a_model_that_does_not_see_says_so(client: TestClient, engine: FakeEngine) -> None:
    engine.statuses = [status(engine.specs[0])]
    response = client.post("/v1/embeddings", json={"input": DATA_URI, "modality": "image"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_capability")
    assert "takes text" in response.json()["error"]["message"]
    assert not engine.jobs


# -- messages ---------------------------------------------------------------------------------------------------


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


TEXT = {"type": "text", "text": "a b"}
PICTURE_PARTS = [
    {"type": "image_url", "image_url": {"url": DATA_URI}},
    {"type": "image_url", "image_url": {"url": DATA_URI, "detail": "low"}},
    {"type": "image_url", "image_url": DATA_URI},
    {"type": "image", "image": BASE64},
    {"type": "input_image", "image_url": DATA_URI},
    {"image": DATA_URI},
]


@pytest.mark.parametrize("part", PICTURE_PARTS)
@pytest.mark.parametrize("nested", [False, True])
def test_a_conversation_with_one_picture_is_that_picture(
    client: TestClient, engine: FakeEngine, part: dict[str, Any], nested: bool
) -> None:
    messages = [user(part, {"type": "text", "text": " "})]
    response = client.post("/v1/embeddings", json={"messages": [messages] if nested else messages})
    assert response.status_code == 200, response.text
    assert pictures(engine) == [(6, 4)]


def test_a_conversation_of_text_is_its_lines(client: TestClient, engine: FakeEngine) -> None:
    messages = [{"role": "system", "content": "be brief"}, user(TEXT, {"type": "input_text", "text": "c"})]
    assert client.post("/v1/embeddings", json={"messages": messages}).status_code == 200
    assert engine.jobs[0].inputs == ["be brief\na b\nc"]


@pytest.mark.parametrize("messages", [[user()], [user(), user()], [[user()]]])
def test_a_message_without_parts_is_the_empty_text(client: TestClient, engine: FakeEngine, messages: Any) -> None:
    assert client.post("/v1/embeddings", json={"messages": messages}).status_code == 200
    assert engine.jobs[0].inputs == [""]


def test_a_list_of_conversations_is_a_list_of_inputs(client: TestClient, engine: FakeEngine) -> None:
    body = {"messages": [[user(PICTURE_PARTS[0])], [user(TEXT)]], "encoding_format": "float"}
    answer = client.post("/v1/embeddings", json=body).json()
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert engine.jobs[0].inputs == [Picture(PNG, 6, 4), "a b"]


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([user(PICTURE_PARTS[0], TEXT)], "unsupported_capability"),
        ([user(PICTURE_PARTS[0]), user(PICTURE_PARTS[1])], "unsupported_capability"),
        ([], "empty_input"),
        ([[]], "empty_input"),
        ("hello", "invalid_request"),
        ([{"role": "user"}], "invalid_request"),
        ([5], "invalid_request"),
        ([user(5)], "invalid_request"),
        ([user({"type": "audio", "audio": "x"})], "invalid_request"),
        ([user(TEXT), [user(TEXT)]], "invalid_request"),
        ([[user(TEXT)]] * 3000, "too_many_inputs"),
    ],
)
def test_other_conversations_are_refused(client: TestClient, engine: FakeEngine, messages: Any, code: str) -> None:
    response = client.post("/v1/embeddings", json={"messages": messages})
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, "messages")
    assert not engine.jobs


def test_an_unknown_modality_is_refused(client: TestClient) -> None:
    error = client.post("/embeddings", json={"input": "a", "modality": "audio"}).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_capability", "modality")


def test_pictures_go_to_a_late_interaction_model_by_name() -> None:
    engine = FakeEngine(spec("org/text"), spec("org/pages", task="multi_vector"))
    engine.statuses = [status(each, modalities=("text", "image")) for each in engine.specs]
    client = TestClient(build_app(engine))
    body = {"model": "org/pages", "input": [DATA_URI], "modality": "image"}
    [item] = client.post("/embeddings", json=body).json()["data"]
    assert len(item["embedding"]) == len(matrix("6 x 4"))
    assert engine.jobs[0].task is Task.MULTI_VECTOR
    assert [seen.task for seen in engine.metering.observations] == ["multi_vector"]
