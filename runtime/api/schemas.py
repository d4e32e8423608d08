"""Request bodies: JSON bytes -> validated fields, with errors of one line that never repeat the input.

Fields and their meanings are those of OpenAI, Infinity, TEI, vLLM, Cohere and Voyage put together. `null` counts
as absent and unknown fields are ignored, because their clients send both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError
from pydantic_core import PydanticCustomError

from runtime.api.parts import Source, checked_length, contents, conversations, references
from runtime.api.spellings import Spelled
from runtime.api.tensors import EmbedDtype, EncodingFormat, Endianness, OutputDtype
from runtime.errors import (
    InvalidDimensions,
    InvalidEncoding,
    InvalidJson,
    InvalidRequest,
    TokenIdsNotAccepted,
    UnsupportedCapability,
)
from runtime.work import Input

B = TypeVar("B", bound=BaseModel)

FIELD_ERRORS: dict[str, type[InvalidRequest]] = {
    "dimensions": InvalidDimensions,
    "output_dimension": InvalidDimensions,
    "encoding_format": InvalidEncoding,
    "embed_dtype": InvalidEncoding,
    "output_dtype": InvalidEncoding,
    "embedding_type": InvalidEncoding,
    "embedding_types": InvalidEncoding,
    "endianness": InvalidEncoding,
}

PHRASES: dict[str, str] = {
    "missing": "is required",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
}
"""Pydantic's complaints in JSON's words, by their type."""

TOKEN_IDS_REMEDY = (
    " must be text: token ids of another tokenizer would give meaningless vectors. Send strings;"
    " in LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False"
    " (ids of this model's own tokenizer need accept_token_ids in the registry)"
)

BOOLEAN_WORDS = {"true": True, "false": False}

Truncation = Literal["default", "end", "start", "none"]
TRUNCATION_WORDS: dict[str, Truncation] = {
    "true": "default",
    "end": "end",
    "start": "start",
    "false": "none",
    "none": "none",
}

CUT_SIDES: dict[Truncation, Literal["left", "right"]] = {"start": "left", "end": "right"}
"""The others cut, if at all, where the model's own tokenizer does."""


def truncation(value: object) -> Truncation:
    """The part to cut off, from a boolean or Cohere's NONE, START and END in any case."""
    word = TRUNCATION_WORDS.get(str(value).lower()) if isinstance(value, bool | str) else None
    if word is None:
        raise PydanticCustomError("truncate", "Input should be true, false, 'NONE', 'START' or 'END'")
    return word


def lower(value: object) -> object:
    """`Left` as `left`; what is no text goes on to be refused."""
    return value.lower() if isinstance(value, str) else value


def boolean(value: object) -> object:
    """`"true"` and `"false"`, as some clients write them; what else is no boolean goes on to be refused."""
    return BOOLEAN_WORDS.get(value.lower(), value) if isinstance(value, str) else value


Boolean = Annotated[bool, Strict(), BeforeValidator(boolean)]


def token_limit(value: object) -> object:
    """vLLM's `truncate_prompt_tokens`: -1 or a count; a text of no tokens means nothing."""
    if type(value) is not int or value < -1 or value == 0:
        raise PydanticCustomError("token_limit", "Input should be -1 or an integer of at least 1")
    return value


Milliseconds = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]


class VectorOptions(Spelled):
    """What every dialect may say about the vectors it wants, apart from the inputs."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True, use_attribute_docstrings=True)

    model: str | None = None
    dimensions: Annotated[int, Strict(), Field(ge=0)] = Field(
        0, validation_alias=AliasChoices("dimensions", "output_dimension")
    )
    """0: the model's own width."""
    normalize: Boolean | None = None
    truncate: Annotated[Truncation, BeforeValidator(truncation)] = "default"
    truncate_prompt_tokens: Annotated[int, BeforeValidator(token_limit)] = -1
    """-1: the model's own limit."""
    truncation_side: Annotated[Literal["left", "right"], BeforeValidator(lower)] | None = Field(
        None, validation_alias=AliasChoices("truncation_side", "truncation_direction")
    )
    prompt_name: str | None = None
    input_type: str | None = None
    """A prompt's name, as Cohere, Voyage and vLLM call it."""
    pool_factor: Annotated[int, Strict(), Field(ge=1, le=3)] = 1
    """Of multi-vectors: about one row for so many."""
    priority: Annotated[int, Strict()] = 0
    """Lower is sooner; above 0 waits in the bulk lane."""
    timeout_ms: Milliseconds | None = None
    """The answer is of no use after so long."""

    @property
    def prompt(self) -> str | None:
        """The prompt that is named; None: the model's default."""
        return self.prompt_name or self.input_type or None

    @property
    def prompt_optional(self) -> bool:
        """Whether that name is one that clients must send to every model, also to those without such a prompt."""
        return False

    @property
    def side(self) -> Literal["left", "right"] | None:
        """The side from which over-long inputs are cut; None: the model's own."""
        return self.truncation_side or CUT_SIDES.get(self.truncate)

    def beside(self, inner: VectorOptions) -> VectorOptions:
        """The options of a body whose object `inner` has options too; where both say something, the body counts."""
        said = self.model_fields_set & VectorOptions.model_fields.keys()
        both = inner.model_copy(update={name: getattr(self, name) for name in said})
        both._written = inner._written | self._written
        return both


class OwnFormOptions(VectorOptions):
    """Options of dialects that write vectors in one form of their own: asking for another is an error."""

    encoding_format: Literal["float"] = "float"
    embed_dtype: Literal["float32"] = "float32"
    endianness: Literal["little"] = "little"
    output_dtype: Literal["float"] = Field("float", validation_alias=AliasChoices("output_dtype", "embedding_type"))
    modality: Literal["text"] = "text"


class EmbeddingRequest(VectorOptions):
    """The body of `/v1/embeddings`, `/embeddings` and `/pooling`."""

    input: Any = None
    """Checked by `inputs_of`, which is faster and clearer than a union of lists."""
    messages: Any = None
    """Chat style, in place of `input`; checked by `conversations`."""
    modality: str = "text"
    """What the strings in `input` are: `text` or `image`."""
    encoding_format: EncodingFormat = "float"
    embed_dtype: EmbedDtype | None = None
    endianness: Endianness = "little"
    output_dtype: OutputDtype = Field("float", validation_alias=AliasChoices("output_dtype", "embedding_type"))


def sources_of(request: EmbeddingRequest, max_inputs: int) -> list[Source]:
    """The request's inputs, from `messages` or `input`. Raises RequestError."""
    if request.messages is not None:
        if request.input is not None:
            raise InvalidRequest("give input or messages, not both", param="messages")
        return conversations(request.messages, max_inputs)
    if request.modality == "image":
        return references(request.input, max_inputs)
    if request.modality != "text":
        raise UnsupportedCapability("modality must be 'text' or 'image'", param="modality")
    if request.input is None:
        raise InvalidRequest("input is required", param="input")
    if isinstance(request.input, list) and any(isinstance(item, dict) for item in request.input):
        return contents(request.input, max_inputs, "input")
    return [*inputs_of(request.input, max_inputs)]


def json_object(body: bytes) -> dict[str, Any]:
    """The body's fields, without those that are null. Raises InvalidJson, InvalidRequest."""
    if not body:
        raise InvalidJson("the body is empty: send a JSON object")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"the body is not valid JSON: {json_fault(body, error)}") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object")
    return {name: value for name, value in fields.items() if value is not None}


def json_fault(body: bytes, error: orjson.JSONDecodeError) -> str:
    """What is wrong with a body, and where. The error's `doc` is the whole body: only its words may leave."""
    try:
        body.decode()
    except UnicodeDecodeError as fault:
        return f"it is not UTF-8 text, from byte {fault.start} on"
    return f"{error.msg}, line {error.lineno} column {error.colno}"


def shed_nulls(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields, those within the object `name` without its nulls, too."""
    inner = fields.get(name)
    if not isinstance(inner, dict):
        return fields
    return {**fields, name: {key: value for key, value in inner.items() if value is not None}}


def validated(schema: type[B], fields: dict[str, Any]) -> B:
    """The fields as a `schema`. Raises the field's kind of InvalidRequest."""
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise invalid_field(error) from None


def invalid_field(error: ValidationError) -> InvalidRequest:
    """The first of pydantic's complaints as one line: field and expectation, not the value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param, *inner = first["loc"]
    place = str(param) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner)
    name = next(part for part in reversed(first["loc"]) if isinstance(part, str))
    phrase = PHRASES.get(first["type"]) or first["msg"].replace("Input should", "must", 1)
    return FIELD_ERRORS.get(name, InvalidRequest)(f"{place} {phrase}", param=str(param))


def inputs_of(value: object, max_inputs: int, param: str = "input") -> list[Input]:
    """The field `param` as a list of texts or of token ids; the empty text is a text. Raises InvalidRequest's kinds."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest(f"{param} must be a string or a list of strings", param=param)
    if value and type(value[0]) is int:
        return [token_ids(value, 0, param)]
    checked_length(value, max_inputs, param)
    return [item if type(item) is str else token_ids(item, index, param) for index, item in enumerate(value)]


def token_ids(item: object, index: int, param: str) -> list[int]:
    """An input that is no text as token ids. Raises InvalidRequest where it is neither."""
    if not isinstance(item, list) or not item or not all(type(token) is int and token >= 0 for token in item):
        raise InvalidRequest(f"{param}[{index}] must be a string", param=param)
    return item


def refuse_token_ids(inputs: Sequence[Source], field: str) -> None:
    """For models that take only text or pictures. Raises TokenIdsNotAccepted, which says what to do."""
    if any(isinstance(item, list) for item in inputs):
        raise TokenIdsNotAccepted(field + TOKEN_IDS_REMEDY, param=field)
