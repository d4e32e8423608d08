"""The operator's routes: load, unload, pin, what is in memory and why. Only for those who may.

Beside our own paths stand those that Triton's clients know (its model repository extension).
"""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime.api.edge import Edge
from runtime.api.responses import exchange_of, json_response
from runtime.errors import AdminRefused, InvalidRequest
from runtime.registry import ServerSettings

if TYPE_CHECKING:
    from runtime.worker import ModelStatus

DEFAULT_DECISIONS = 100
MAX_DECISIONS = 1_000
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
BROWSER = ("origin", "sec-fetch-site")
"""Headers that only a browser sends: a page of another site can make it ask a server on this machine."""
LEDGER_KINDS: Final = ("limit", "booked", "base", "weights", "graphs", "host", "workspace")
TRITON_STATES = {"ready": "READY", "unwell": "READY", "loading": "LOADING", "draining": "UNLOADING"}

Handler = Callable[[Request], Awaitable[Response]]


def check_operator(request: Request, edge: Edge) -> None:
    """Let an operator pass: with API keys configured, a key with the admin right; else whom `check_stranger` lets.

    Raises Unauthenticated, Forbidden, AdminRefused.
    """
    exchange_of(request).require_caller().check_admin()
    if not edge.guard.has_keys:
        check_stranger(request, edge.limits)


def check_stranger(request: Request, settings: ServerSettings) -> None:
    """Let the holder of the token pass, and where there is none, programs on this machine. Raises AdminRefused."""
    if settings.admin_token is not None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        wanted = settings.admin_token.get_secret_value()
        if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), wanted.encode()):
            return
        raise AdminRefused("this needs the server's admin token, as authorization: Bearer TOKEN")
    problem = _why_a_stranger(request, settings)
    if problem is not None:
        raise AdminRefused(
            "without server.admin_token, only programs on this machine may ask a server that listens there;"
            f" but {problem}"
        )


def _why_a_stranger(request: Request, settings: ServerSettings) -> str | None:
    """What says that it isn't a program on this machine that asks for itself; None: nothing does."""
    if not _is_loopback(settings.host):
        return "this server listens on other addresses too"
    if not _is_loopback(request.client.host if request.client else ""):
        return "the request comes from another machine"
    if not _is_loopback(request.url.hostname or ""):
        return "its host header names another machine"
    sent = next((name for name in (*FORWARDED, *BROWSER) if name in request.headers), None)
    if sent is None:
        return None
    return f"the request has the header {sent}, as from a {'proxy' if sent in FORWARDED else 'browser'}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def model_report(status: ModelStatus, bytes_by_kind: dict[str, int]) -> dict[str, Any]:
    """One model as an operator sees it. Bytes, milliseconds, seconds, items and tokens."""
    return {
        "id": status.name,
        "root": status.id,
        "state": status.state,
        "available": status.available,
        "required": status.required,
        "resident": status.resident,
        "pinned": status.pinned,
        "bytes": bytes_by_kind,
        "cost": {"fixed_ms": status.fixed_ms, "ms_per_token": status.ms_per_token},
        "max_batch_tokens": status.max_batch_tokens,
        "queue": {
            lane.value: {"items": status.queue_items[lane], "tokens": status.queue_tokens[lane]}
            for lane in status.queue_items
        },
        "results_pending": status.results_pending,
        "waiting_for_load": status.waiting_for_load,
        "loaded_s": status.loaded_s,
        "loads": status.loads,
        "evictions": status.evictions,
        "last_used_unix_s": status.last_used_unix_s,
        "last_error": status.last_error,
    }


class AdminRoutes:
    """Handlers over one engine."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._engine = edge.engine

    async def models(self, request: Request) -> Response:
        """Every model."""
        by_model = self._engine.admin.memory().by_model
        reports = [model_report(status, by_model.get(status.name, {})) for status in self._engine.describe()]
        return json_response({"models": reports})

    async def memory(self, request: Request) -> Response:
        """The ledger and the driver's truth."""
        report = self._engine.admin.memory()
        kinds = report.by_kind
        return json_response(
            {
                "device": report.device,
                "description": report.description,
                "ledger": {kind: kinds[kind] for kind in LEDGER_KINDS} | {"free": kinds["limit"] - kinds["booked"]},
                "driver": {kind: kinds[kind] for kind in ("total", "free", "used")},
                "models": report.by_model,
            }
        )

    async def decisions(self, request: Request) -> Response:
        """The latest decisions, newest first."""
        given = request.query_params.get("limit", str(DEFAULT_DECISIONS))
        if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= MAX_DECISIONS):
            raise InvalidRequest(f"limit must be a whole number from 1 to {MAX_DECISIONS}", param="limit")
        decisions = self._engine.admin.decisions(int(given))
        return json_response({"decisions": [dataclasses.asdict(decision) for decision in decisions]})

    async def load(self, request: Request) -> Response:
        """Load the model of the path."""
        return self._report(await self._engine.admin.load(_name(request)))

    async def unload(self, request: Request) -> Response:
        """Unload the model of the path."""
        return self._report(await self._engine.admin.unload(_name(request)))

    async def pin(self, request: Request) -> Response:
        """Never evict the model of the path."""
        return self._report(self._engine.admin.pin(_name(request), True))

    async def unpin(self, request: Request) -> Response:
        """Let the model of the path be evicted."""
        return self._report(self._engine.admin.pin(_name(request), False))

    async def index(self, request: Request) -> Response:
        """Every model as Triton's repository index lists it."""
        return json_response(
            [
                {
                    "name": status.name,
                    "version": "1",
                    "state": TRITON_STATES.get(status.state, "UNAVAILABLE"),
                    "reason": status.detail or "",
                }
                for status in self._engine.describe()
            ]
        )

    def guarded(self, handler: Handler) -> Handler:
        """`handler` for those who may."""

        async def guard(request: Request) -> Response:
            check_operator(request, self._edge)
            return await handler(request)

        return guard

    def _report(self, status: ModelStatus) -> Response:
        return json_response(model_report(status, self._engine.admin.memory().by_model.get(status.name, {})))


def _name(request: Request) -> str:
    name: str = request.path_params["model_id"]
    return name


def routes(edge: Edge) -> list[Route]:
    """`/admin/...`, and Triton's names for some of it. Ids may hold slashes."""
    admin = AdminRoutes(edge)
    get = {"/admin/models": admin.models, "/admin/memory": admin.memory, "/admin/decisions": admin.decisions}
    post = {
        "/admin/models/{model_id:path}/load": admin.load,
        "/admin/models/{model_id:path}/unload": admin.unload,
        "/admin/models/{model_id:path}/pin": admin.pin,
        "/admin/models/{model_id:path}/unpin": admin.unpin,
        "/v1/models/{model_id:path}/load": admin.load,
        "/v1/models/{model_id:path}/unload": admin.unload,
        "/v2/repository/models/{model_id:path}/load": admin.load,
        "/v2/repository/models/{model_id:path}/unload": admin.unload,
        "/v2/repository/index": admin.index,
    }
    return [
        *[Route(path, admin.guarded(handler), methods=["GET"]) for path, handler in get.items()],
        *[Route(path, admin.guarded(handler), methods=["POST"]) for path, handler in post.items()],
    ]
