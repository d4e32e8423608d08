"""Bodies made up for every POST route: of its schema, nearly of its schema, and of none."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hypothesis import strategies as st

from runtime.api.openapi import document

MARKER = "MARKERmarkerMARKER"
API: dict[str, Any] = json.loads(document())
NAMES = ["owner/letters", "owner/rows", "owner/ranker", "owner/moods", "letters", "default/not-specified"]
HOSTILE = [
    "\x00",
    "\ud800",
    "💥",
    "../../etc/passwd",
    "{{7*7}}",
    "\r\nx: y",
    "data:image/png;base64,AAAA",
    "http://[::1]/",
]

TEXTS = st.one_of(
    st.sampled_from(["", " ", MARKER, f"a {MARKER}", *HOSTILE, *NAMES]),
    st.text(max_size=12).map(lambda text: text + MARKER),
)
NUMBERS = st.one_of(
    st.integers(-2, 4), st.sampled_from([2**31, 2**63, -(2**63), 2**53 + 1]), st.floats(allow_nan=False, width=32)
)
WORDS = [
    "text",
    "content",
    "image",
    "image_url",
    "type",
    "url",
    "source_sentence",
    "sentences",
    "query",
    "inputs",
    "model",
]
KEYS = st.sampled_from(WORDS) | TEXTS
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@dataclass(frozen=True)
class Request:
    """What is sent."""

    path: str
    body: bytes = field(repr=False)
    headers: dict[str, str]
    query: dict[str, str]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = API["components"]["schemas"][name] if name else schema
    return found


def fitting(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of the schema, about."""
    return fitting_text(json.dumps(resolved(schema)))


@cache
def fitting_text(written_schema: str) -> st.SearchStrategy[Any]:
    """The same for a schema as JSON, each strategy made once."""
    schema = json.loads(written_schema)
    if "anyOf" in schema:
        return st.one_of([fitting(part) for part in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        return of_properties(properties) if properties else st.dictionaries(KEYS, JUNK, max_size=3)
    if kind == "array":
        return st.lists(fitting(schema.get("items", {})), max_size=4)
    simple = {"string": TEXTS, "integer": st.integers(-2, 5), "number": NUMBERS, "boolean": st.booleans()}
    return simple.get(str(kind), st.none() if kind == "null" else JUNK)


def of_properties(properties: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the properties, most of them fitting."""
    each = {
        name: st.one_of(fitting(schema), fitting(schema), fitting(schema), JUNK) for name, schema in properties.items()
    }
    each["model"] = st.sampled_from(NAMES) | TEXTS
    return st.fixed_dictionaries({}, optional=each)


@cache
def posts() -> dict[str, dict[str, Any]]:
    """The media of each POST route's body."""
    return {
        path: item["post"]["requestBody"]["content"]["application/json"]
        for path, item in API["paths"].items()
        if "requestBody" in item.get("post", ())
    }


@st.composite
def changed(draw: st.DrawFn, media: dict[str, Any]) -> dict[str, Any]:
    """The route's example with some fields added, replaced or taken away: mostly answered."""
    properties = resolved(media["schema"]).get("properties", {})
    fields: dict[str, Any] = {**media["example"], "model": draw(st.sampled_from(NAMES))}
    for name in draw(st.lists(st.sampled_from(sorted(properties)), max_size=2)) if properties else ():
        fields[name] = draw(fitting(properties[name]) | JUNK)
    return fields


def written(value: Any) -> bytes:
    """As JSON in ASCII, which can say what UTF-8 can't: half a character."""
    return json.dumps(value).encode()


def torn(body: bytes) -> bytes:
    """All but its end."""
    return body[: len(body) * 2 // 3]


def bodies(media: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """What is sent to a route of this body."""
    schema = resolved(media["schema"])
    objects = st.one_of(changed(media), changed(media), changed(media), of_properties(schema.get("properties", {})))
    fields = objects.map(written)
    return st.one_of(
        fields, fields, fields, fields, fields, fields, JUNK.map(written), fields.map(torn), st.binary(max_size=40)
    )


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "x-lane": st.sampled_from(["online", "BULK", "fast", MARKER]),
        "x-model-id": st.sampled_from([*NAMES, MARKER]),
        "content-encoding": st.sampled_from(["identity", "gzip"]),
        "x-request-id": st.sampled_from(["id-1", "x" * 300, "a b"]),
    },
)
QUERIES = st.fixed_dictionaries(
    {}, optional={"model": st.sampled_from([*NAMES, MARKER]), "format": st.sampled_from(["vllm", "infinity", MARKER])}
)


@cache
def bodies_of(path: str) -> st.SearchStrategy[bytes]:
    """The route's bodies; making the strategy takes longer than drawing from it."""
    return bodies(posts()[path])


PATHS = st.sampled_from(sorted(posts()))
MEDIA_TYPES = st.sampled_from(["application/json"] * 8 + ["text/plain", MARKER])
RARELY = st.integers(0, 3).map(lambda number: number == 3)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """One request to one of the POST routes."""
    path = draw(PATHS)
    body = draw(bodies_of(path))
    rarely = draw(RARELY)
    headers = draw(HEADERS) if rarely else {}
    media_type = draw(MEDIA_TYPES) if rarely else "application/json"
    return Request(path, body, {"content-type": media_type, **headers}, draw(QUERIES) if rarely else {})
