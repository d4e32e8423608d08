"""Bodies of the routes that score: rerank, score, predict and classify, in every dialect's words at once.

Fields and their meanings are those of Cohere, Jina, Voyage, Infinity, TEI and vLLM put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, Strict

from runtime.api.parts import Reference, content_of, place_in
from runtime.api.schemas import CUT_SIDES, Boolean, Milliseconds, Truncation, lower, token_limit, truncation
from runtime.api.spellings import Spelled
from runtime.errors import EmptyInput, InvalidRequest, TooManyDocuments, TooManyInputs, UnsupportedCapability

Count = Annotated[int, Strict(), Field(ge=0)]
"""0 stands for no limit, as vLLM has it."""


Document: TypeAlias = str | Reference
"""A text, or a picture for models that see."""

Blindness: TypeAlias = Callable[[], str] | None
"""Why a picture is refused, in words that are only wanted then; None: pictures may be."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that is to be scored against a query."""

    query: str
    document: Document


class ScoringRequest(Spelled):
    """What the routes that score have in common."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True, use_attribute_docstrings=True)

    model: str | None = None
    raw_scores: Boolean = False
    """Logits in place of scores."""
    use_activation: Boolean = True
    """vLLM's opposite of `raw_scores`."""
    truncate: Annotated[Truncation, BeforeValidator(truncation)] = Field(
        "default", validation_alias=AliasChoices("truncate", "truncation")
    )
    truncate_prompt_tokens: Annotated[int, BeforeValidator(token_limit)] = -1
    """-1: the model's own limit."""
    truncation_side: Annotated[Literal["left", "right"], BeforeValidator(lower)] | None = Field(
        None, validation_alias=AliasChoices("truncation_side", "truncation_direction")
    )
    prompt_name: str | None = Field(None, validation_alias=AliasChoices("prompt_name", "input_type"))
    priority: Annotated[int, Strict()] = 0
    """Lower is sooner; above 0 waits in the bulk lane."""
    timeout_ms: Milliseconds | None = None
    """The answer is of no use after so long."""

    @property
    def raw(self) -> bool:
        """Whether logits are asked for."""
        return self.raw_scores or not self.use_activation

    @property
    def side(self) -> Literal["left", "right"] | None:
        """The side from which over-long inputs are cut; None: the model's own."""
        return self.truncation_side or CUT_SIDES.get(self.truncate)

    @property
    def max_tokens(self) -> int | None:
        """The limit in tokens; None: the model's own."""
        return None if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens


class PairRequest(ScoringRequest):
    """Limits of a pair's two halves, in tokens."""

    max_tokens_per_doc: Count = 0
    max_tokens_per_query: Count = 0


class RerankRequest(PairRequest):
    """The body of every `/rerank`. Texts are checked by `text_of` and `documents_of`, which say where they fail."""

    query: Any
    documents: Any = Field(validation_alias=AliasChoices("documents", "texts"))
    top_n: Count = Field(0, validation_alias=AliasChoices("top_n", "top_k"))
    """0: all of them."""
    return_documents: Boolean = Field(False, validation_alias=AliasChoices("return_documents", "return_text"))


QUERY_NAMES = ("queries", "data_1", "text_1")
DOCUMENT_NAMES = ("documents", "items", "data_2", "text_2")


class ScoreRequest(PairRequest):
    """The body of vLLM's `/score`."""

    queries: Any = Field(validation_alias=AliasChoices(*QUERY_NAMES))
    documents: Any = Field(validation_alias=AliasChoices(*DOCUMENT_NAMES))


class ClassifyRequest(ScoringRequest):
    """The body of Infinity's and vLLM's `/classify`."""

    input: Any


class PredictRequest(ScoringRequest):
    """The body of TEI's `/predict`."""

    inputs: Any


def documents_of(value: object, name: str, max_documents: int, blind: Blindness) -> list[Document]:
    """The documents; a lone one is a list of one. Raises InvalidRequest's kinds before it looks at any.

    `blind`: why they can't be pictures, which then raise UnsupportedCapability.
    """
    items = listed(value, name)
    refuse_documents(items, name, max_documents)
    return all_documents(value, name, blind)


def refuse_documents(items: list[Any], name: str, max_documents: int) -> None:
    """Raises TooManyDocuments, with both numbers."""
    if len(items) > max_documents:
        raise TooManyDocuments(
            f"{name} holds {len(items)} documents, this server takes at most {max_documents} in one request", param=name
        )


@dataclass(frozen=True, slots=True)
class Sides:
    """What the caller calls the two lists of a `/score`."""

    queries: str
    documents: str

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> Sides:
        """The names that stand in the body."""
        return cls(*(next(filter(fields.__contains__, names), names[0]) for names in (QUERY_NAMES, DOCUMENT_NAMES)))


def candidates_of(request: ScoreRequest, sides: Sides, max_documents: int, blind: Blindness) -> list[Candidate]:
    """The pairs of a `/score`: 1:1, one query with each document, or one to one. Raises InvalidRequest's kinds."""
    queries, documents = listed(request.queries, sides.queries), listed(request.documents, sides.documents)
    if len(queries) != len(documents) and len(queries) != 1:
        raise InvalidRequest(
            f"{len(queries)} {sides.queries} and {len(documents)} {sides.documents}: give one of the first, or as many",
            param=sides.queries,
        )
    refuse_documents(documents, sides.documents, max_documents)
    read = all_texts(request.queries, sides.queries)
    if len(read) == 1:
        read *= len(documents)
    halves = zip(read, all_documents(request.documents, sides.documents, blind), strict=True)
    return [Candidate(query, document) for query, document in halves]


def texts_of(value: object, name: str, max_inputs: int) -> list[str]:
    """The texts to classify; a lone one is a list of one. Raises InvalidRequest's kinds."""
    items = listed(value, name)
    refuse_many(items, name, max_inputs)
    return all_texts(value, name)


def listed(value: object, name: str) -> list[Any]:
    """The value, or a list of it alone. Raises EmptyInput."""
    items = value if isinstance(value, list) else [value]
    if not items:
        raise EmptyInput(f"{name} is an empty list", param=name)
    return items


def refuse_many(items: list[Any], name: str, max_inputs: int) -> None:
    """Raises TooManyInputs, with both numbers."""
    if len(items) > max_inputs:
        raise TooManyInputs(
            f"{name} holds {len(items)} texts, this server takes at most {max_inputs} in one request", param=name
        )


def all_texts(value: object, name: str, blind: Blindness = None) -> list[str]:
    """Each item as a text. Raises what `text_of` raises."""
    items = enumerate(listed(value, name))
    return [item if type(item) is str else text_of(item, place_in(value, name, index), blind) for index, item in items]


def all_documents(value: object, name: str, blind: Blindness) -> list[Document]:
    """Each item as a text, or a picture where these may be. Raises what `text_of` and `content_of` raise."""
    if blind is not None:
        return [*all_texts(value, name, blind)]
    return [document_of(item, place_in(value, name, index)) for index, item in enumerate(listed(value, name))]


def document_of(item: object, name: str) -> Document:
    """A text or a picture. `name`: the place in the body. Raises what `content_of` raises."""
    source = content_of(item, name)
    assert isinstance(source, str | Reference)  # only whole inputs may be token ids
    return source


def text_of(value: object, name: str, blind: Blindness = None) -> str:
    """A text from a string, `{"text"}` or `{"content": [parts]}`. Raises InvalidRequest, UnsupportedCapability.

    `name` is the place in the body, such as `documents[3]`; parts are joined by line breaks, as vLLM does. `blind`: why
    it can't be a picture, where another model could see one.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        content = value.get("content")
        if isinstance(text := value.get("text", content), str):
            return text
        if isinstance(content, list) and content:
            return "\n".join(part_text(part, name, blind) for part in content)
        if "image" in value:
            raise not_text(name, blind)
    raise InvalidRequest(f"{name} must be a string, or an object with text or content", param=param_of(name))


def part_text(part: object, name: str, blind: Blindness) -> str:
    """The text of one part of a message's content. Raises InvalidRequest, UnsupportedCapability."""
    if isinstance(part, dict):
        if isinstance(text := part.get("text"), str):
            return text
        if part.get("type", "text") != "text":
            raise not_text(name, blind)
    raise InvalidRequest(f"{name}: each part of content must have a text", param=param_of(name))


def not_text(name: str, blind: Blindness) -> UnsupportedCapability:
    """The refusal of a picture or of anything else that is no text."""
    reason = "this route reads nothing else" if blind is None else blind()
    return UnsupportedCapability(f"{name} must be text: {reason}", param=param_of(name))


def param_of(name: str) -> str:
    """The field that a place is in."""
    return name.partition("[")[0].partition(".")[0]
