"""Answers of the routes that are asked rarely, as starlette responses."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response


def json_response(content: Any, status: int = 200) -> Response:
    """`content` as JSON."""
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")
