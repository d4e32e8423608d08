"""What clients ask before they begin: TEI's `GET /info`, Weaviate's `GET /meta`, vLLM's `GET /version`.

Shapes as text-embeddings-inference 1.9 and Weaviate's modules have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime import __version__
from runtime.api.addressing import meant
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.responses import exchange_of, json_response
from runtime.errors import ModelRequired
from runtime.work import Head, Task

if TYPE_CHECKING:
    from runtime.registry import ModelSpec
    from runtime.worker import ModelStatus


def routes(edge: Edge) -> list[Route]:
    """`/info`, `/meta`, `/version`."""

    async def info(request: Request) -> Response:
        return json_response(server_info(edge, exchange_of(request)))

    async def meta(request: Request) -> Response:
        return json_response(weaviate_meta(edge, exchange_of(request)))

    async def version(request: Request) -> Response:
        return json_response({"version": __version__})

    return [Route("/info", info), Route("/meta", meta), Route("/version", version)]


def only_meant(edge: Edge, exchange: Exchange) -> ModelSpec | None:
    """The model that the request is about; None where it names none and several could be.

    Raises ModelNotFound, Forbidden.
    """
    try:
        return meant(edge, exchange, None, None)
    except ModelRequired:
        if exchange.query.get("model"):
            raise
        return None


def visible(edge: Edge, exchange: Exchange) -> list[tuple[ModelSpec, ModelStatus]]:
    """The models that the caller may use, in the registry's order."""
    caller = exchange.require_caller()
    statuses = {status.id: status for status in edge.engine.describe()}
    return [(spec, statuses[spec.id]) for spec in edge.engine.config.models if caller.may_use(spec.names)]


def server_info(edge: Edge, exchange: Exchange) -> dict[str, Any]:
    """TEI's object for the model that is meant, if there is one; `models` has it for each."""
    spec = only_meant(edge, exchange)
    described = {shown.id: model_info(edge, shown, status) for shown, status in visible(edge, exchange)}
    if spec is None:
        return {**server_limits(edge), "models": list(described.values())}
    named = exchange.addressed is not None or "model" in exchange.query
    return described[spec.id] | ({} if named else {"models": list(described.values())})


def server_limits(edge: Edge) -> dict[str, Any]:
    """What is true of every model here."""
    return {
        # TEI counts one for each input, so it is at least as many as one request may hold. Here there is no such limit.
        "max_concurrent_requests": edge.limits.max_inputs,
        "max_client_batch_size": edge.limits.max_inputs,
        "auto_truncate": True,
        "tokenization_workers": edge.engine.config.tokenizer_threads,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }


def model_info(edge: Edge, spec: ModelSpec, status: ModelStatus) -> dict[str, Any]:
    """TEI's object for one model; what isn't known before it is loaded is null."""
    limits = server_limits(edge)
    if status.task is Task.RERANK:
        limits["max_client_batch_size"] = min(edge.limits.max_documents, edge.limits.max_inputs)
    return {
        "model_id": spec.id,
        "model_sha": spec.revision,
        "model_dtype": status.dtype,
        "served_model_name": spec.name,
        "model_type": model_type(status),
        "max_input_length": status.max_tokens,
        "max_batch_tokens": status.max_batch_tokens,
        "max_batch_requests": None,
        **limits,
    }


def model_type(status: ModelStatus) -> dict[str, Any] | None:
    """What the model does, as the only key; None until its files were looked at."""
    if status.task in (Task.EMBED, Task.MULTI_VECTOR):
        return {"embedding": {"pooling": status.pooling or "none"}}
    kinds = {Task.RERANK: "reranker", Task.CLASSIFY: "classifier"}
    return None if status.task is None else {kinds[status.task]: label_maps(status.head)}


def label_maps(head: Head | None) -> dict[str, Any]:
    """Labels by number and numbers by label."""
    labels = head.labels if head else ()
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def weaviate_meta(edge: Edge, exchange: Exchange) -> dict[str, Any]:
    """Any object will do for Weaviate, which shows it: the model that is meant, or all."""
    spec = only_meant(edge, exchange)
    shown = [
        {
            "model": each.name,
            "task": status.task,
            "dimensions": status.dimensions,
            "max_tokens": status.max_tokens,
            "state": status.state,
        }
        for each, status in visible(edge, exchange)
        if spec is None or each.id == spec.id
    ]
    return {"name": "cotenant", "version": __version__, "models": shown}
