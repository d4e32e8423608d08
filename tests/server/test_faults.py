"""A real server with a bad neighbour, bad input and a stop in mid-request: everyone else notices nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.server.conftest import MINILM, Server, Start
from tests.server.scraping import models
from tests.tiny_models.bad_neighbours import NAN_WORD, POISON

WORDS = "every good server answers each request once and in order "


@pytest.fixture(scope="module")
def server(start: Start, tiny_model: Callable[[str], Path]) -> Server:
    return start(
        [
            {"id": "good", "source": MINILM},
            {"id": "poisoned", "source": str(tiny_model("poisoned-vocabulary"))},
            {"id": "nan", "source": str(tiny_model("nan-word")), "required": False},
            {"id": "broken", "source": str(tiny_model("nan-weights")), "required": False},
        ]
    )


def embed(server: Server, model: str, text: object) -> httpx2.Response:
    return server.client.post("/v1/embeddings", json={"model": model, "input": text})


def test_a_model_whose_forward_raises_fails_its_own_requests_only(server: Server) -> None:
    bad = [embed(server, "poisoned", f"{POISON} {i}") for i in range(20)]
    assert [answer.status_code for answer in bad] == [500] * 20
    assert {answer.json()["error"]["code"] for answer in bad} == {"forward_failed"}
    assert not any(POISON in answer.text for answer in bad)
    good = [embed(server, "good", f"text {i}") for i in range(20)]
    assert [answer.status_code for answer in good] == [200] * 20
    ready = server.client.get("/ready")
    assert ready.status_code == 503
    states = {model["id"]: model["state"] for model in ready.json()["models"]}
    assert states["poisoned"] == "unwell"
    assert states["good"] == "ready"
    metrics = server.client.get("/metrics").text
    assert 'cotenant_job_errors_total{code="forward_failed",model="poisoned"} 20.0' in metrics
    assert embed(server, "poisoned", "harmless").status_code == 200
    assert server.client.get("/ready").status_code == 200


@pytest.mark.anyio
async def test_one_poisoned_request_among_32_fails_alone(server: Server) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
        texts = [f"{WORDS} {i}" for i in range(31)]
        bodies = [{"model": "poisoned", "input": text} for text in [*texts[:15], f"x {POISON}", *texts[15:]]]
        answers = await asyncio.gather(*[client.post("/v1/embeddings", json=body) for body in bodies])
    assert [answer.status_code for answer in answers] == [200] * 15 + [500] + [200] * 16
    items = [f"text {i}" for i in range(8)]
    items[5] = POISON
    answer = embed(server, "poisoned", items)
    assert answer.status_code == 500
    assert "input[5]" in answer.json()["error"]["message"]


def test_nan_is_an_error_and_never_null(server: Server) -> None:
    assert embed(server, "nan", "anything").status_code == 200
    answer = embed(server, "nan", NAN_WORD)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "non_finite_output"
    assert "null," not in answer.text.replace('"param":null', "")


def test_a_model_whose_weights_are_nan_is_refused_when_it_is_loaded(server: Server) -> None:
    error = embed(server, "broken", "anything").json()["error"]
    assert error["code"] == "model_failed"
    assert "its weights are broken" in error["message"]


BAD_BODIES: dict[str, tuple[bytes, str, int]] = {
    "malformed JSON": (b'{"input": "a"', "application/json", 400),
    "a lone surrogate": (b'{"model":"good","input":"bad \\ud800 x"}', "application/json", 400),
    "not an object": (b"[1,2,3]", "application/json", 400),
    "no input": (b'{"model":"good"}', "application/json", 400),
    "a number as input": (b'{"model":"good","input":3}', "application/json", 400),
    "null as input": (b'{"model":"good","input":null}', "application/json", 400),
    "a null among inputs": (b'{"model":"good","input":["a",null]}', "application/json", 400),
    "an empty list": (b'{"model":"good","input":[]}', "application/json", 422),
    "token ids": (b'{"model":"good","input":[1,2,3]}', "application/json", 400),
    "lists of token ids": (b'{"model":"good","input":[[1,2],[3]]}', "application/json", 400),
    "10,000 inputs": (b'{"model":"good","input":[' + b",".join([b'"x"'] * 10_000) + b"]}", "application/json", 400),
    "an unknown encoding": (b'{"model":"good","input":"a","encoding_format":"hex"}', "application/json", 400),
    "too many dimensions": (b'{"model":"good","input":"a","dimensions":385}', "application/json", 400),
    "negative dimensions": (b'{"model":"good","input":"a","dimensions":-1}', "application/json", 400),
    "dimensions in words": (b'{"model":"good","input":"a","dimensions":"abc"}', "application/json", 400),
    "an unknown prompt": (b'{"model":"good","input":"a","prompt_name":"nope"}', "application/json", 400),
    "another content type": (b"input=a", "application/x-www-form-urlencoded", 415),
    "an unknown model": (b'{"model":"nope","input":"a"}', "application/json", 404),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_bad_input_gets_a_short_clear_error_and_the_server_goes_on(server: Server, name: str) -> None:
    body, content_type, status = BAD_BODIES[name]
    answer = server.client.post("/v1/embeddings", content=body, headers={"content-type": content_type})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert error["code"]
    assert len(answer.content) < 2048
    assert answer.headers["x-request-id"]
    assert embed(server, "good", "still here").status_code == 200


def test_an_unknown_model_is_told_which_there_are(server: Server) -> None:
    message = embed(server, "nope", "a").json()["error"]["message"]
    assert all(name in message for name in ("good", "poisoned", "nan"))


@pytest.mark.parametrize("text", ["." * 1_000_000, "a" * 1_000_000, "word " * 200_000, " " * 1_000_000 + "end"])
def test_a_megabyte_of_text_is_an_input_like_any_other(server: Server, text: str) -> None:
    answer = embed(server, "good", text)
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] <= 256


def test_nulls_and_unknown_fields_are_as_if_absent(server: Server) -> None:
    body = {"model": "good", "input": "a", "encoding_format": None, "dimensions": None, "user": None, "novel": {"x": 1}}
    assert server.client.post("/v1/embeddings", json=body).status_code == 200


async def in_flight(server: Server) -> int:
    """Jobs of the model `good` that were taken and are not answered."""
    status = await asyncio.to_thread(models, server)
    return int(status["good"]["results_pending"])


@pytest.mark.anyio
async def test_sigterm_lets_16_requests_in_flight_finish_and_exits_with_zero(start: Start) -> None:
    server = start([{"id": "good", "source": MINILM}])
    body = {"model": "good", "input": [WORDS * 20] * 6}
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
        requests = [asyncio.create_task(client.post("/v1/embeddings", json=body)) for _ in range(16)]
        # Those that the server has not read yet when it is told to end are not in flight, and refused.
        while await in_flight(server) + sum(request.done() for request in requests) < len(requests):
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(asyncio.to_thread(server.terminate))
        answers = await asyncio.gather(*requests)
    assert [answer.status_code for answer in answers] == [200] * 16
    assert all(len(answer.json()["data"]) == 6 for answer in answers)
    assert await stopping == 0


@pytest.mark.anyio
async def test_health_answers_while_models_still_load(start: Start, tmp_path: Path) -> None:
    server = start([{"id": "good", "source": MINILM}, {"id": "missing", "source": str(tmp_path)}])
    health, ready = server.client.get("/health"), server.client.get("/ready")
    assert (health.status_code, ready.status_code) == (200, 503)
    states = {model["id"]: model["state"] for model in ready.json()["models"]}
    assert states == {"good": "ready", "missing": "failed"}
    answer = embed(server, "missing", "a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
    message = answer.json()["error"]["message"]
    assert message.startswith("the model could not be loaded: no weights (*.safetensors, *.bin)")
    assert str(tmp_path) not in message
