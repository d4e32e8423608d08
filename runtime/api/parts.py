"""Inputs as clients write them: texts, token ids, and references to pictures, which aren't looked at yet.

Content parts are OpenAI's (`text`, `image_url`, `input_text`, `input_image`), vLLM's and MTEB's use of them in
`messages`, Cohere's in `inputs`, and Jina's `{"text"}` and `{"image"}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from runtime.errors import EmptyInput, InvalidRequest, TooManyInputs, UnsupportedCapability
from runtime.work import Input

MIXED = "holds text and picture together; send one picture, or only text, in each"


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a picture is: a `data:` URI, bare base64, or an address."""

    text: str = field(repr=False)


Source: TypeAlias = Input | Reference
"""An input as it came, or a picture that is still to be had."""


def checked_length(values: list[Any], max_inputs: int, param: str) -> list[Any]:
    """The list, if it holds something and not too much. Raises EmptyInput, TooManyInputs."""
    if not values:
        raise EmptyInput(f"{param} is an empty list", param=param)
    if len(values) > max_inputs:
        raise TooManyInputs(
            f"{param} holds {len(values)} inputs, this server takes at most {max_inputs} in one request", param=param
        )
    return values


def place_in(value: object, param: str, index: int) -> str:
    """Where one of a field's inputs stands: in its list, or as the field itself."""
    return f"{param}[{index}]" if isinstance(value, list) else param


def references(value: object, max_inputs: int, param: str = "input") -> list[Source]:
    """Pictures given as one string or a list of strings. Raises InvalidRequest's kinds."""
    values = value if isinstance(value, list) else [value]
    checked_length(values, max_inputs, param)
    return [_picture(item, place_in(value, param, index)) for index, item in enumerate(values)]


def _picture(item: object, place: str) -> Reference:
    if not isinstance(item, str):
        raise InvalidRequest(f"{place} must be a picture (data URI, base64 or address)", param=_param(place))
    return Reference(item)


def conversations(value: object, max_inputs: int) -> list[Source]:
    """`messages`: one conversation is one input; a list of conversations is so many.

    Raises InvalidRequest's kinds, UnsupportedCapability where one mixes text and picture.
    """
    if not isinstance(value, list):
        raise InvalidRequest("messages must be a list", param="messages")
    checked_length(value, max_inputs, "messages")
    nested = [item for item in value if isinstance(item, list)]
    if nested and len(nested) < len(value):
        raise InvalidRequest("messages must be a list of messages or a list of such lists", param="messages")
    return [conversation(messages, f"messages[{index}]") for index, messages in enumerate(nested)] or [
        conversation(value, "messages")
    ]


def contents(value: object, max_inputs: int, param: str) -> list[Source]:
    """A list of texts, of parts, or of objects whose `content` is a text or a list of parts; each is one input.

    Raises InvalidRequest's kinds, UnsupportedCapability where one mixes text and picture.
    """
    values = value if isinstance(value, list) else [value]
    checked_length(values, max_inputs, param)
    return [content_of(item, place_in(value, param, index)) for index, item in enumerate(values)]


def conversation(messages: list[Any], place: str) -> Source:
    """One conversation as one input. Raises what `conversations` raises."""
    parts: list[Any] = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if content is None:
            raise InvalidRequest(f"{place}[{index}] must be an object with content", param="messages")
        parts += content if isinstance(content, list) else [content]
    if messages and not parts:
        return ""  # as MTEB's wrappers write the empty text
    return _one_input(parts, place)


def content_of(item: object, place: str) -> Source:
    """One of `contents`, which stands at `place` in the body."""
    if isinstance(item, dict) and item.get("content") is not None:
        item = item["content"]
    return _one_input(item if isinstance(item, list) else [item], place)


def _one_input(parts: Sequence[Any], place: str) -> Source:
    """Exactly one picture (blank texts beside it don't count), or texts joined by newlines."""
    found = [_part(part, place) for part in parts]
    texts = [part for part in found if isinstance(part, str)]
    pictures = [part for part in found if isinstance(part, Reference)]
    if not pictures:
        if not texts:
            raise EmptyInput(f"{place} holds no part", param=_param(place))
        return "\n".join(texts)
    if len(pictures) > 1 or any(text.strip() for text in texts):
        raise UnsupportedCapability(f"{place} {MIXED}", param=_param(place))
    return pictures[0]


def _part(part: object, place: str) -> str | Reference:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise InvalidRequest(f"{place}: a part must be a text or an object", param=_param(place))
    if isinstance(text := part.get("text"), str):
        return text
    for key in ("image_url", "image", "input_image"):
        image = part.get(key)
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str):
            return Reference(url)
    raise InvalidRequest(f"{place}: a part must be text, image_url or image", param=_param(place))


def _param(place: str) -> str:
    return place.partition("[")[0]
