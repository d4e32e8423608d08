"""Alive and ready as other platforms ask: KServe's v2 protocol, Weaviate's modules.

Protocols: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol and Weaviate's
`/.well-known/live` and `/.well-known/ready`, which answer 204.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime.api.catalogue import find_status
from runtime.api.edge import Edge
from runtime.api.responses import exchange_of, json_response

if TYPE_CHECKING:
    from runtime.worker import ModelStatus

SERVING = ("ready", "unwell")
AWAY = ("unloaded", "offloaded")


def answers(status: ModelStatus) -> bool:
    """Whether a model answers a request, at once or after it was loaded for it."""
    return status.state in SERVING or (status.state in AWAY and status.available)


def routes(edge: Edge) -> list[Route]:
    """`/v2/health/…`, `/v2/models/{model_id}/ready`, `/.well-known/…`."""
    engine = edge.engine

    async def kserve_live(request: Request) -> Response:
        return json_response({"live": True})

    async def kserve_ready(request: Request) -> Response:
        return json_response({"ready": engine.ready}, 200 if engine.ready else 503)

    async def kserve_model(request: Request) -> Response:
        item = find_status(edge, exchange_of(request), request.path_params["model_id"])
        ready = answers(item)
        return json_response({"name": item.name, "ready": ready}, 200 if ready else 503)

    async def weaviate_live(request: Request) -> Response:
        return Response(status_code=204)

    async def weaviate_ready(request: Request) -> Response:
        return Response(status_code=204 if engine.ready else 503)

    endpoints = {
        "/v2/health/live": kserve_live,
        "/v2/health/ready": kserve_ready,
        "/v2/models/{model_id:path}/ready": kserve_model,
        "/.well-known/live": weaviate_live,
        "/.well-known/ready": weaviate_ready,
    }
    return [Route(path, endpoint) for path, endpoint in endpoints.items()]
