"""Whether the process is alive, whether it is ready, how each model is, and the metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from runtime import __version__
from runtime.api.contract import Engine
from runtime.api.edge import Edge
from runtime.api.responses import exchange_of, json_response

if TYPE_CHECKING:
    from runtime.worker import ModelStatus

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def readiness(engine: Engine) -> dict[str, Any]:
    """`ready`, `draining` or `not_ready`, and each model's state with what is wrong with it."""
    status = "draining" if engine.draining or engine.retiring else "ready" if engine.ready else "not_ready"
    return {"status": status, "models": [brief(model) for model in engine.describe()]}


def brief(model: ModelStatus) -> dict[str, Any]:
    """A model's state and the reason for it."""
    return {"id": model.name, "state": model.state, "detail": model.detail, "required": model.required}


def full(model: ModelStatus) -> dict[str, Any]:
    """All that is known of a model's condition. Bytes, seconds, items and tokens."""
    return {
        **brief(model),
        "root": model.id,
        "task": model.task,
        "device": model.device,
        "dtype": model.dtype,
        "execution": model.execution,
        "execution_reason": model.execution_reason,
        "weight_bytes": model.weight_bytes,
        "activation_bytes": model.activation_bytes,
        "loaded_s": model.loaded_s,
        "queue_items": {lane.value: items for lane, items in model.queue_items.items()},
        "queue_tokens": {lane.value: tokens for lane, tokens in model.queue_tokens.items()},
        "results_pending": model.results_pending,
        "idle_s": model.idle_s,
    }


def routes(edge: Edge) -> list[Route]:
    """`/`, `/health`, `/live`, `/ping`, `/ready`, `/health/models`, `/metrics`."""
    engine = edge.engine

    async def alive(request: Request) -> Response:
        return json_response({"unix": time.time(), "status": "ok"})

    async def ready(request: Request) -> Response:
        answer = readiness(engine)
        status = 200 if answer["status"] == "ready" else 503
        if exchange_of(request).caller is None:
            del answer["models"]  # names and reasons are not for everybody
        return json_response(answer, status)

    async def models(request: Request) -> Response:
        return json_response({"models": [full(model) for model in engine.describe()]})

    async def metrics(request: Request) -> Response:
        return Response(engine.metering.render(), headers={"content-type": PROMETHEUS_TEXT})

    async def name(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(f"{edge.limits.url_prefix}/docs", status_code=307)
        return json_response({"name": "cotenant", "version": __version__})

    endpoints = {
        "/": name,
        "/health": alive,
        "/live": alive,
        "/ping": alive,
        "/ready": ready,
        "/health/models": models,
        "/metrics": metrics,
    }
    return [Route(path, endpoint) for path, endpoint in endpoints.items()]
