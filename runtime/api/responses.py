"""Answers of the routes that are asked rarely, as starlette responses."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from runtime.api.exchange import Exchange


def json_response(content: Any, status: int = 200) -> Response:
    """`content` as JSON."""
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


def exchange_of(request: Request) -> Exchange:
    """The exchange that a request of the rarely asked routes came by."""
    exchange = request.scope["cotenant.exchange"]
    assert isinstance(exchange, Exchange)
    return exchange
