"""The served models as JSON: one object that suits OpenAI's, vLLM's and Infinity's clients alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.work import ABILITIES

if TYPE_CHECKING:
    from runtime.worker import ModelStatus


def model_list(edge: Edge, exchange: Exchange, owner: str) -> dict[str, Any]:
    """The models that the caller may use, in the registry's order; of a path or port that names one, that one."""
    caller, addressed = exchange.caller, exchange.addressed
    only = None if addressed is None else edge.engine.resolve(addressed, None).id
    shown = [
        status
        for status in edge.engine.describe()
        if only in (None, status.id) and (caller is None or caller.may_use((status.id, status.name, *status.aliases)))
    ]
    return {"object": "list", "data": [model_item(edge, status, owner) for status in shown]}


def find_item(edge: Edge, exchange: Exchange, name: str, owner: str) -> dict[str, Any]:
    """The model that a request naming it would reach. Raises ModelNotFound, which lists the names, and Forbidden."""
    return model_item(edge, find_status(edge, exchange, name), owner)


def find_status(edge: Edge, exchange: Exchange, name: str) -> ModelStatus:
    """That model as it is now. Raises as `find_item` does."""
    spec = edge.engine.resolve(name, None)
    if exchange.caller is not None:
        exchange.caller.check_model(spec)
    return status_of(edge, spec.id)


def status_of(edge: Edge, model_id: str) -> ModelStatus:
    """The model of that registry id as it is now."""
    return next(status for status in edge.engine.describe() if status.id == model_id)


def model_item(edge: Edge, status: ModelStatus, owner: str) -> dict[str, Any]:
    """One model: its names, what it can do, its limits, and how busy it is."""
    return {
        "id": status.name,
        "object": "model",
        "created": edge.created,
        "owned_by": owner,
        "root": status.id,
        "aliases": status.aliases,
        "backend": status.backend,
        "capabilities": sorted(ABILITIES[status.task]) if status.task else [],
        "modalities": status.modalities,
        "labels": status.head.labels if status.head else None,
        "state": status.state,
        "device": status.device,
        "dtype": status.dtype,
        "execution": status.execution,
        "execution_reason": status.execution_reason,
        "dimensions": status.dimensions,
        "max_model_len": status.max_tokens,
        "prompts": status.prompts,
        "stats": stats(status),
        "limits": {
            "max_inputs": edge.limits.max_inputs,
            "max_documents": edge.limits.max_documents,
            "max_body_bytes": edge.limits.max_body_bytes,
            "max_batch_tokens": status.max_batch_tokens,
        },
    }


def stats(status: ModelStatus) -> dict[str, Any]:
    """Infinity's figures. `queue_fraction`: waiting tokens, in batches of `batch_size` tokens."""
    batch_tokens = status.max_batch_tokens or 0
    waiting_tokens = sum(status.queue_tokens.values())
    return {
        "queue_fraction": waiting_tokens / batch_tokens if batch_tokens else 0.0,
        "queue_absolute": sum(status.queue_items.values()),
        "results_pending": status.results_pending,
        "batch_size": batch_tokens,
    }
