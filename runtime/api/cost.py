"""What a request cost, in its answer's body where that is asked for: for clients that never show headers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from runtime.api.exchange import Exchange
from runtime.api.problems import Answer
from runtime.api.record import Record
from runtime.errors import InvalidRequest

COST_HEADER = "x-include-cost"
JSON = b"application/json"
DIGITS = 3


def wants_cost(exchange: Exchange) -> bool:
    """Whether the header asks for it. Raises InvalidRequest for anything but true and false."""
    written = exchange.headers.get(COST_HEADER.encode(), b"false").strip().lower()
    if written not in (b"true", b"false"):
        raise InvalidRequest(f"the header {COST_HEADER} must be true or false", param=COST_HEADER)
    return written == b"true"


def stating_cost(answer: Answer, record: Record) -> Answer:
    """`answer` with the member `cost`, where it is a JSON object; lists and bytes have it in headers alone."""
    is_object = answer.media_type == JSON and answer.body.startswith(b"{") and answer.body.endswith(b"}")
    if answer.status != 200 or not is_object:
        return answer
    # Spliced: a body of vectors may be megabytes, and parsing it would take longer than making it.
    member = b'"cost":' + orjson.dumps(cost_of(record)) + b"}"
    return replace(answer, body=answer.body[:-1] + (b"," if len(answer.body) > len(b"{}") else b"") + member)


def cost_of(record: Record) -> dict[str, Any]:
    """Milliseconds by stage, the device's share of them that is charged, and dollars (null without a price)."""
    return {
        **record.account._asdict(),
        "stages_ms": {stage: round(spent_ms, DIGITS) for stage, spent_ms in record.stages_ms.items()},
        "device_share_ms": round(record.timings.device_share_ms, DIGITS),
        "usd": record.cost_usd,
    }
