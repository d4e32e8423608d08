"""Fields of bodies whose shapes pydantic doesn't know, because code checks them: their JSON Schema, by name."""

from __future__ import annotations

from typing import Final

from runtime.api.answers import ANYTHING, BOOLEAN, INTEGER, STRING, Schema, either, listed, record

TEXT_OR_PARTS: Final = either(STRING, record(text=STRING), record(content=either(STRING, listed(ANYTHING))))
TEXTS: Final = either(STRING, listed(STRING))
IDS: Final = listed(INTEGER)


def field(meaning: str, schema: Schema) -> Schema:
    """A field's schema, with what it means."""
    return {**schema, "description": meaning}


SHAPES: Final[dict[str, Schema]] = {
    "input": field(
        "A text, or a list of texts or pictures.", either(STRING, IDS, listed(either(STRING, IDS, ANYTHING)))
    ),
    "inputs": field(
        "A text or a list of them, or what the route's own form of it is.",
        either(STRING, listed(either(STRING, IDS, listed(STRING), ANYTHING)), ANYTHING),
    ),
    "messages": field("A conversation, or a list of them.", listed(either(ANYTHING, listed(ANYTHING)))),
    "texts": field("Texts.", TEXTS),
    "images": field("Pictures, as `data:` URIs or base64.", TEXTS),
    "query": field("What is looked for.", TEXT_OR_PARTS),
    "queries": field("One query, or as many as documents.", either(TEXT_OR_PARTS, listed(TEXT_OR_PARTS))),
    "documents": field("What is looked through.", either(TEXT_OR_PARTS, listed(TEXT_OR_PARTS))),
    "ids": field("Token ids, or lists of them.", either(IDS, listed(IDS))),
    "tokens": field("Token ids.", IDS),
    "prompt": field("A text.", STRING),
    "text": field("A text.", STRING),
    "truncate": {
        "description": "Whether an over-long input is cut, and where.",
        "default": True,
        **either(BOOLEAN, {"type": "string", "enum": ["END", "START", "NONE"]}),
    },
    "truncate_prompt_tokens": {"type": "integer", "minimum": -1},
}
