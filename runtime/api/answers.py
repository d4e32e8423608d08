"""What answers look like, as JSON Schema for the OpenAPI document. The tests hold real answers against it."""

from __future__ import annotations

from typing import Any, Final

from runtime.api.problems import Dialect

Schema = dict[str, Any]


def record(optional: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """An object that has these properties, and may have more."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def listed(items: Schema) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": items}


def either(*schemas: Schema) -> Schema:
    """One of these."""
    return {"anyOf": list(schemas)}


STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
NULL: Final[Schema] = {"type": "null"}
ANYTHING: Final[Schema] = {"type": "object"}
VECTOR: Final = listed(NUMBER)
MATRIX: Final = listed(VECTOR)
USAGE: Final = record(prompt_tokens=INTEGER, total_tokens=INTEGER)
ENCODED: Final = either(VECTOR, MATRIX, {"type": "string", "contentEncoding": "base64"})


def vector_list(key: str = "embedding", /, **more: Schema) -> Schema:
    """OpenAI's list of vectors; `key`: where in an item its vector stands."""
    item = record(object=STRING, index=INTEGER, **{key: ENCODED})
    return record(object=STRING, data=listed(item), model=STRING, usage=USAGE, **more)


STAMPED: Final = {"id": STRING, "created": INTEGER}
VECTORS: Final = vector_list()
STAMPED_VECTORS: Final = vector_list(**STAMPED)
POOLED: Final = vector_list("data", **STAMPED)
MULTI_VECTORS: Final = vector_list("embeddings")

COHERE_VECTORS: Final = record(
    id=STRING,
    response_type=STRING,
    embeddings=either(MATRIX, ANYTHING),
    texts=listed(STRING),
    meta=record(api_version=ANYTHING, billed_units=ANYTHING),
)

TEI_RANKING: Final = listed(record(("text",), index=INTEGER, score=NUMBER, text=STRING))
RANKED: Final = record(
    ("document",), index=INTEGER, relevance_score=NUMBER, document=either(STRING, record(text=STRING), NULL)
)
COHERE_RANKING: Final = record(
    id=STRING, object=STRING, created=INTEGER, model=STRING, results=listed(RANKED), usage=USAGE, meta=ANYTHING
)
VOYAGE_RANKING: Final = record(object=STRING, data=listed(RANKED), model=STRING, usage=record(total_tokens=INTEGER))
WEAVIATE_RANKING: Final = record(query=STRING, scores=listed(record(document=STRING, score=NUMBER)))
RANKING: Final = either(COHERE_RANKING, TEI_RANKING, VOYAGE_RANKING, WEAVIATE_RANKING)

SCORES: Final = record(
    **STAMPED, object=STRING, model=STRING, usage=USAGE, data=listed(record(index=INTEGER, score=NUMBER))
)
LABELS: Final = listed(record(label=STRING, score=NUMBER))
CLASSES: Final = record(
    **STAMPED,
    object=STRING,
    model=STRING,
    usage=USAGE,
    data=listed(either(LABELS, record(index=INTEGER, label=STRING, probs=VECTOR, num_classes=INTEGER))),
)
PREDICTIONS: Final = either(LABELS, listed(LABELS))

TEI_TOKENS: Final = listed(
    listed(
        record(id=INTEGER, text=STRING, special=BOOLEAN, start=either(INTEGER, NULL), stop=either(INTEGER, NULL)),
    )
)
VLLM_TOKENS: Final = record(
    count=INTEGER,
    max_model_len=either(INTEGER, NULL),
    tokens=listed(INTEGER),
    token_strs=either(listed(STRING), NULL),
)
COHERE_TOKENS: Final = record(tokens=listed(INTEGER), token_strings=listed(STRING), meta=ANYTHING)
TOKENS: Final = either(TEI_TOKENS, VLLM_TOKENS, COHERE_TOKENS)

WEAVIATE_VECTOR: Final = record(text=STRING, vector=VECTOR, dim=INTEGER, dims=INTEGER)
TEI_INFO: Final = record(
    ("model_id", "model_type", "max_input_length", "models"),
    model_id=STRING,
    model_type=either(ANYTHING, NULL),
    max_input_length=either(INTEGER, NULL),
    max_client_batch_size=INTEGER,
    version=STRING,
    models=listed(ANYTHING),
)
MODEL: Final = record(
    id=STRING, object=STRING, created=INTEGER, owned_by=STRING, state=STRING, capabilities=listed(STRING)
)
MODELS: Final = record(object=STRING, data=listed(MODEL))
READINESS: Final = record(("models",), status=STRING, models=listed(ANYTHING))

OPENAI_ERROR: Final = record(
    error=record(message=STRING, type=STRING, param=either(STRING, NULL), code=STRING),
)
ERRORS: Final[dict[Dialect, Schema]] = {
    Dialect.OPENAI: OPENAI_ERROR,
    Dialect.VLLM: OPENAI_ERROR,
    Dialect.INFINITY: {**OPENAI_ERROR, "description": "With FastAPI's `detail` where the body is at fault."},
    Dialect.COHERE: {**OPENAI_ERROR, "description": "With the text as `message` and `detail`, too."},
    Dialect.VOYAGE: {**OPENAI_ERROR, "description": "With the text as `detail`, too."},
    Dialect.TEI: record(error=STRING, error_type=STRING),
    Dialect.WEAVIATE: record(error=STRING),
}
