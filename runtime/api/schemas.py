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

from runtime.errors import (
    EmptyInput,
    InvalidDimensions,
    InvalidEncoding,
    InvalidJson,
    InvalidRequest,
    TokenIdsNotAccepted,
    TooManyInputs,
    UnsupportedCapability,
)
from runtime.work import Input

B = TypeVar("B", bound=BaseModel)

FIELD_ERRORS: dict[str, type[InvalidRequest]] = {
    "dimensions": InvalidDimensions,
    "output_dimension": InvalidDimensions,
    "encoding_format": InvalidEncoding,
    "embed_dtype": InvalidEncoding,
}

TOKEN_IDS_REMEDY = (
    "input must be text: token ids of another tokenizer would give meaningless vectors. Send strings;"
    " in LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False"
    " (ids of this model's own tokenizer need accept_token_ids in the registry)"
)

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


def token_limit(value: object) -> object:
    """vLLM's `truncate_prompt_tokens`: -1 or a count; a text of no tokens means nothing."""
    if type(value) is not int or value < -1 or value == 0:
        raise PydanticCustomError("token_limit", "Input should be -1 or an integer of at least 1")
    return value


class EmbeddingRequest(BaseModel):
    """The body of `/v1/embeddings` and `/embeddings`."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True)

    input: Any
    """Checked by `inputs_of`, which is faster and clearer than a union of lists."""
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    embed_dtype: Literal["float32", "float16"] | None = None
    dimensions: Annotated[int, Strict(), Field(ge=0)] = Field(
        0, validation_alias=AliasChoices("dimensions", "output_dimension")
    )
    """0: the model's own width."""
    modality: str = "text"
    normalize: bool | None = None
    truncate: Annotated[Truncation, BeforeValidator(truncation)] = "default"
    truncate_prompt_tokens: Annotated[int, BeforeValidator(token_limit)] = -1
    """-1: the model's own limit."""
    truncation_side: Annotated[Literal["left", "right"], BeforeValidator(lower)] | None = Field(
        None, validation_alias=AliasChoices("truncation_side", "truncation_direction")
    )
    prompt_name: str | None = None
    input_type: str | None = None
    """A prompt's name, as Cohere, Voyage and vLLM call it."""
    priority: Annotated[int, Strict()] = 0
    """Lower is sooner; above 0 waits in the bulk lane."""
    timeout_ms: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = None
    """The answer is of no use after so long."""

    @property
    def side(self) -> Literal["left", "right"] | None:
        """The side from which over-long inputs are cut; None: the model's own."""
        return self.truncation_side or CUT_SIDES.get(self.truncate)


def parse_embedding(body: bytes, max_inputs: int) -> tuple[EmbeddingRequest, list[Input]]:
    """The request and its inputs. Raises RequestError."""
    request = validated(EmbeddingRequest, json_object(body))
    if request.modality != "text":
        raise UnsupportedCapability("modality must be 'text': this route embeds text", param="modality")
    return request, inputs_of(request.input, max_inputs)


def json_object(body: bytes) -> dict[str, Any]:
    """The body's fields, without those that are null. Raises InvalidJson, InvalidRequest."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # Its text holds a reason and a place, its `doc` the whole body: only the text may leave.
        place = f"line {error.lineno} column {error.colno}"
        raise InvalidJson(f"the body is not valid JSON: {error.msg}, {place}") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object")
    return {name: value for name, value in fields.items() if value is not None}


def validated(schema: type[B], fields: dict[str, Any]) -> B:
    """The fields as a `schema`. Raises the field's kind of InvalidRequest."""
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise invalid_field(error) from None


def invalid_field(error: ValidationError) -> InvalidRequest:
    """The first of pydantic's complaints as one line: field and expectation, not the value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = str(first["loc"][0])
    if first["type"] == "missing":
        return InvalidRequest(f"{param} is required", param=param)
    message = first["msg"].replace("Input", param, 1)
    return FIELD_ERRORS.get(param, InvalidRequest)(message, param=param)


def inputs_of(value: object, max_inputs: int) -> list[Input]:
    """`input` as a list of texts or of token ids; the empty text is a text. Raises InvalidRequest's kinds."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest("input must be a string or a list of strings", param="input")
    if not value:
        raise EmptyInput("input is an empty list")
    if type(value[0]) is int:
        return [token_ids(value, 0)]
    if len(value) > max_inputs:
        raise TooManyInputs(f"input holds {len(value)} texts, this server takes at most {max_inputs} in one request")
    return [item if type(item) is str else token_ids(item, index) for index, item in enumerate(value)]


def token_ids(item: object, index: int) -> list[int]:
    """An input that is no text as token ids. Raises InvalidRequest where it is neither."""
    if not isinstance(item, list) or not item or not all(type(token) is int and token >= 0 for token in item):
        raise InvalidRequest(f"input[{index}] must be a string", param="input")
    return item


def refuse_token_ids(inputs: Sequence[Input]) -> None:
    """For models that take only text. Raises TokenIdsNotAccepted, which says what to do."""
    if not all(isinstance(item, str) for item in inputs):
        raise TokenIdsNotAccepted(TOKEN_IDS_REMEDY)
