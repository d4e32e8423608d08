"""How addresses, paths and keys may be written in the registry and on the command line."""

from __future__ import annotations

from typing import Any


def parse_address(address: str) -> tuple[str, int]:
    """Host (empty: the server's own) and port of `HOST:PORT`, `[HOST]:PORT`, `:PORT` or `PORT`. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address: write one such as :8082 or 127.0.0.1:8082")
    return host.strip("[]"), int(port)


def bound_models(value: Any) -> Any:
    """`["alias=:8082"]`, as the command line has it, as `{":8082": "alias"}`. Raises ValueError."""
    if not isinstance(value, list):
        return value
    pairs = [entry.rpartition("=") if isinstance(entry, str) else ("", "", "") for entry in value]
    if not all(model and address for model, _, address in pairs):
        raise ValueError("write MODEL=ADDRESS, such as reranker=:8082")
    return {address: model for model, _, address in pairs}


def path_prefix(value: Any) -> Any:
    """`/retrieval` of `retrieval/`; nothing of `/`."""
    if not isinstance(value, str):
        return value
    path = value.strip("/")
    return f"/{path}" if path else ""


def as_text(value: object) -> object:
    """A number as text: keys may look like one, and a refusal would repeat it."""
    return str(value) if isinstance(value, int | float) else value
