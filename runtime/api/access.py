"""One log line a request: who was asked, how it ended, where the milliseconds went. Never the input."""

from __future__ import annotations

import logging
import time
import traceback
from typing import Any

import orjson

from runtime.api.exchange import Exchange
from runtime.api.identity import PROBES
from runtime.api.record import CLIENT_GONE, Record

ACCESS = logging.getLogger("cotenant.access")
MAX_PATH_CHARACTERS = 200
MOST_CAUSES = 5
POLLED = PROBES | {"/metrics"}
"""Paths that machines ask every few seconds: logged at DEBUG."""


def log_inference(exchange: Exchange, record: Record, total_ms: float) -> None:
    """The line of a request to a model."""
    if not ACCESS.isEnabledFor(logging.INFO):
        return
    timings = record.timings
    fields: dict[str, Any] = {
        "model": record.model,
        "lane": record.lane,
        "code": record.code,
        "inputs": record.inputs,
        "tokens": record.tokens,
        "candidates": record.candidates,
        "prepare_ms": round(timings.prepare_ms, 3),
        "queue_ms": round(timings.queue_ms, 3),
        "device_ms": round(timings.device_ms, 3),
        "render_ms": round(record.render_ms, 3),
        "device_share_ms": round(timings.device_share_ms, 3),
        "cost_usd": record.cost_usd,
    }
    log(logging.INFO, exchange, record.status, total_ms, fields)


def log_plain(exchange: Exchange) -> None:
    """The line of any other request."""
    level = logging.DEBUG if exchange.path in POLLED else logging.INFO
    if ACCESS.isEnabledFor(level):
        total_ms = (time.perf_counter() - exchange.started) * 1000
        log(level, exchange, exchange.status or CLIENT_GONE, total_ms, {})


def log(level: int, exchange: Exchange, status: int, total_ms: float, fields: dict[str, Any]) -> None:
    """Hand the line to logging: a sentence for people, `fields` for JsonFormatter."""
    path = exchange.path[:MAX_PATH_CHARACTERS]
    fields = {
        "id": exchange.request_id,
        "method": exchange.method,
        "path": path,
        "status": status,
        "total_ms": round(total_ms, 3),
        "tenant": exchange.caller.tenant if exchange.caller else None,
        **fields,
    }
    ACCESS.log(level, "%s %r %d %.1f ms", exchange.method, path, status, total_ms, extra={"fields": fields})


def trace_of(error: BaseException) -> str:
    """Where an error arose, without its message: libraries put what they were given into theirs."""
    causes: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < MOST_CAUSES:
        causes.append(f"{type(cause).__name__}\n{''.join(traceback.format_tb(cause.__traceback__))}")
        cause = cause.__cause__ or cause.__context__
    return "from ".join(causes)


class JsonFormatter(logging.Formatter):
    """A record as one JSON object a line: time, level, logger, message, and the record's `fields` if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """ISO 8601 in UTC with milliseconds."""
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
