"""The OpenAPI 3.1 document, made of the schemas that check the bodies; and the page that shows it.

Specification: https://spec.openapis.org/oas/v3.1.1.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runtime import __version__
from runtime.api.answers import BOOLEAN, ERRORS, NULL, STRING, either
from runtime.api.edge import Edge
from runtime.api.field_shapes import SHAPES
from runtime.api.operations import OPERATIONS, Operation

REFERENCE: Final = "#/components/schemas/{model}"
ONLY_OURSELVES: Final = (
    "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)
"""The page may ask this server and nobody else."""
PAGE: Final = Path(__file__).parent / "docs.html"

TITLES: Final = {
    "openai": "OpenAI, and health",
    "infinity": "Infinity",
    "tei": "Text Embeddings Inference",
    "cohere": "Cohere and Jina",
    "vllm": "vLLM",
    "weaviate": "Weaviate",
}
ABOUT: Final = (
    "Retrieval models behind one port. Every path is also under `/m/{model}`, which then says which model is meant."
    " `null` counts as absent, and unknown fields are ignored. Which errors there are, README lists."
)
PARAMETERS: Final = {
    "model": ("query", "Which model, for clients whose bodies name none.", STRING),
    "x-model-id": ("header", "The same; anything else that names a model wins over it.", STRING),
    "x-lane": ("header", "`bulk` work gives way to `online` work.", {"type": "string", "enum": ["online", "bulk"]}),
    "x-include-cost": ("header", "Whether the answer, if it is an object, says what it cost.", BOOLEAN),
}


def routes(edge: Edge) -> list[Route]:
    """`/openapi.json`, `/docs`."""

    async def openapi(request: Request) -> Response:
        return Response(document(edge.limits.url_prefix), media_type="application/json")

    async def docs(request: Request) -> Response:
        headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": ONLY_OURSELVES}
        return Response(PAGE.read_bytes(), headers=headers)

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


@cache
def document(url_prefix: str = "") -> bytes:
    """The document as JSON, for a server whose routes are below `url_prefix`."""
    bodies = {operation.body for operation in OPERATIONS.values() if operation.body}
    paths: dict[str, dict[str, Any]] = {}
    for route, operation in OPERATIONS.items():
        method, path = route.split(" ")
        paths.setdefault(path, {})[method.lower()] = described(route, operation)
    api = {
        "openapi": "3.1.0",
        "info": {"title": "Cotenant", "version": __version__, "description": ABOUT, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": url_prefix or "/"}],
        "tags": [{"name": name, "description": title} for name, title in TITLES.items()],
        "security": [{}, {"bearer": []}, {"header": []}],
        "paths": paths,
        "components": {
            "schemas": body_schemas(bodies) | {f"{name}_error": schema for name, schema in ERRORS.items()},
            "parameters": {
                name: {"name": name, "in": place, "description": text, "schema": schema}
                for name, (place, text, schema) in PARAMETERS.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    return orjson.dumps(api)


def described(route: str, operation: Operation) -> dict[str, Any]:
    """One route as an Operation Object."""
    responses: dict[str, Any] = {
        str(status): answered(operation) if status != 204 else {"description": "Yes."} for status in operation.statuses
    }
    forms = [reference(f"{dialect}_error") for dialect in dict.fromkeys((operation.dialect, *operation.others))]
    responses["default"] = {
        "description": "An error.",
        "content": {"application/json": {"schema": either(*forms) if len(forms) > 1 else forms[0]}},
    }
    found: dict[str, Any] = {
        "tags": [str(operation.dialect)],
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", route).strip("_").lower(),
        "responses": responses,
    }
    named = [{"name": name, "in": "path", "required": True, "schema": STRING} for name in re.findall(r"{(\w+)}", route)]
    shared = [{"$ref": f"#/components/parameters/{name}"} for name in PARAMETERS] if operation.body else []
    if named or shared:
        found["parameters"] = [*named, *shared]
    if operation.body:
        media = {"schema": reference(operation.body.__name__), "example": operation.example}
        found["requestBody"] = {"required": True, "content": {"application/json": media}}
    return found


def answered(operation: Operation) -> dict[str, Any]:
    """What a route answers where nothing is wrong."""
    return {"description": operation.summary, "content": {operation.media_type: {"schema": operation.answer}}}


def reference(name: str) -> dict[str, str]:
    """Where a schema stands."""
    return {"$ref": REFERENCE.format(model=name)}


def body_schemas(bodies: set[type[BaseModel]]) -> dict[str, Any]:
    """The bodies' schemas by name, and those that they are made of."""
    ordered = sorted(bodies, key=lambda body: body.__name__)
    _, made = models_json_schema([(body, "validation") for body in ordered], ref_template=REFERENCE)
    schemas: dict[str, Any] = made["$defs"]
    for schema in schemas.values():
        schema["description"] = schema.get("description", "").partition(". ")[0]
        for name, shape in schema.get("properties", {}).items():
            schema["properties"][name] = with_shape(name, shape)
    for body in ordered:
        add_aliases(body, schemas[body.__name__])
    return schemas


def with_shape(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A field's schema, with what is taken besides what pydantic knows of."""
    if name not in SHAPES or "$ref" in schema:
        return schema
    words = {key: value for key, value in schema.items() if key in ("title", "description", "default")}
    words |= {key: value for key, value in SHAPES[name].items() if key in ("description", "default")}
    shape = {key: value for key, value in SHAPES[name].items() if key not in words}
    return {**words, **(either(shape, NULL) if words.get("default", ...) is None else shape)}


def add_aliases(body: type[BaseModel], schema: dict[str, Any]) -> None:
    """Every name of a field that has several; of a required one, any of them."""
    required = list(schema.pop("required", ()))
    choices = []
    for field in body.model_fields.values():
        if not isinstance(alias := field.validation_alias, AliasChoices):
            continue
        first, *others = (str(name) for name in alias.choices)
        for name in others:
            schema["properties"][name] = {**schema["properties"][first], "description": f"The same as `{first}`."}
        if first in required:
            required.remove(first)
            choices.append({"anyOf": [{"required": [name]} for name in (first, *others)]})
    if required:
        schema["required"] = required
    if choices:
        schema["allOf"] = choices
