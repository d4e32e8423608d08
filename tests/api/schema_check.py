"""A value held against a JSON Schema: as much of the language as the OpenAPI document uses."""

from __future__ import annotations

from typing import Any

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
KNOWN = {
    *("type", "properties", "required", "items", "anyOf", "allOf", "enum", "const", "minimum", "maximum", "minLength"),
    *("minItems", "additionalProperties", "title", "description", "default", "contentEncoding", "$ref", "prefixItems"),
    *("maxItems",),
}


def complaints(value: Any, schema: dict[str, Any], place: str = "answer") -> list[str]:
    """What is wrong with `value`, in words; nothing: it fits. A schema's `$ref`s must be resolved."""
    assert set(schema) <= KNOWN, f"words that aren't checked: {set(schema) - KNOWN}"
    found = [text for part in schema.get("allOf", ()) for text in complaints(value, part, place)]
    if "anyOf" in schema and all(complaints(value, part, place) for part in schema["anyOf"]):
        found.append(f"{place} is none of its forms")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{place} is not one of {schema['enum']}")
    if "type" in schema and not is_of(value, schema["type"]):
        found.append(f"{place} is no {schema['type']}")
    return [*found, *within(value, schema, place)]


def is_of(value: Any, kind: str) -> bool:
    """Whether the value is of JSON Schema's type; Python's booleans are integers, JSON's are not."""
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def within(value: Any, schema: dict[str, Any], place: str) -> list[str]:
    """What is wrong with an object's properties or a list's items."""
    found: list[str] = []
    if isinstance(value, dict):
        found += [f"{place} has no {name}" for name in schema.get("required", ()) if name not in value]
        known = {name: part for name, part in schema.get("properties", {}).items() if name in value}
        found += [text for name, part in known.items() for text in complaints(value[name], part, f"{place}.{name}")]
    if isinstance(value, list) and "items" in schema:
        each = (complaints(item, schema["items"], f"{place}[{index}]") for index, item in enumerate(value))
        found += [text for texts in each for text in texts]
    return found
