"""Texts as tokens and tokens as texts, in the dialects of TEI, vLLM and Cohere. No device is asked.

`/tokenize` is TEI's where the body has `inputs`, vLLM's where it has `prompt` or `messages`, Cohere's where it has
`text`. Shapes as text-embeddings-inference 1.9, vLLM's server and cohere-py 7.3 have them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from runtime.api.addressing import meant
from runtime.api.catalogue import status_of
from runtime.api.edge import Edge
from runtime.api.exchange import Exchange
from runtime.api.inference import Handler, deadline_of, infer, off_loop, read_json
from runtime.api.parts import Reference, conversation
from runtime.api.problems import Dialect
from runtime.api.record import TOKENIZE, Record
from runtime.api.schemas import Boolean, Milliseconds, json_object, validated
from runtime.api.scoring_schemas import texts_of
from runtime.api.tensors import render
from runtime.errors import EmptyInput, InvalidRequest, TooManyInputs, UnsupportedCapability
from runtime.models.base import Tokenized, Vocabulary

Fields = dict[str, Any]

MAX_CHARACTERS: Final = 500_000
"""Of all texts of one request: a fifth of a second of one thread, and an answer of some megabytes."""
MAX_IDS: Final = 500_000
ANSWER_BYTES_PER_TOKEN: Final = 60


class TokensRequest(BaseModel):
    """What all bodies here have in common."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    model: str | None = None
    """Which model's tokenizer."""
    timeout_ms: Milliseconds | None = None
    """The answer is of no use after so long."""


class TokenizeRequest(TokensRequest):
    """The body of every `/tokenize`; one of `inputs`, `prompt`, `messages` and `text` is needed."""

    inputs: Any = None
    prompt: Any = None
    messages: Any = None
    text: Any = None
    add_special_tokens: Boolean | None = None
    """Whether the tokens that the model's tokenizer puts around a text are there. Cohere's clients: no; others: yes."""
    prompt_name: str | None = None
    """Which of the model's prompts to put before each text."""
    return_token_strs: Boolean = False
    """vLLM: whether the vocabulary's own spelling of each token is there."""


class DecodeRequest(TokensRequest):
    """The body of TEI's `/decode`."""

    ids: Any
    skip_special_tokens: Boolean = True
    """Whether special tokens are left out of the texts."""


class DetokenizeRequest(TokensRequest):
    """The body of vLLM's `/detokenize` and Cohere's `/v1/detokenize`."""

    tokens: Any


@dataclass(frozen=True, slots=True)
class TokenForm:
    """One dialect's way with tokens."""

    dialect: Dialect
    texts: Callable[[TokenizeRequest, int], Sequence[str]]
    """The request's texts, at most so many. Raises InvalidRequest's kinds."""
    answer: Callable[[TokenizeRequest, Sequence[Tokenized], int | None], Any]
    """Request, tokens of each text, the model's limit in tokens."""
    adds_specials: bool = True
    """Where the request doesn't say."""
    fields: Sequence[str] = ("inputs",)

    def field(self, request: TokenizeRequest) -> str:
        """Where the texts stand, of the fields in which they may."""
        return next((name for name in self.fields if getattr(request, name) is not None), self.fields[0])


# -- answers ------------------------------------------------------------------------------------------------------


def tei_tokens(request: TokenizeRequest, read: Sequence[Tokenized], max_tokens: int | None) -> Any:
    """Each text's tokens; places are bytes of the UTF-8 text, prompt included."""
    return [tei_tokens_of(text) for text in read]


def tei_tokens_of(read: Tokenized) -> list[dict[str, Any]]:
    """One text's tokens: what stands there, or the name of a special token, which stands nowhere."""
    before = byte_places(read.text)
    rows = zip(read.ids, read.pieces, read.special, read.spans, strict=True)
    return [
        {"id": token, "text": piece, "special": True, "start": None, "stop": None}
        if special
        else {
            "id": token,
            "text": read.text[first:end],
            "special": False,
            "start": before[first],
            "stop": before[end],
        }
        for token, piece, special, (first, end) in rows
    ]


def byte_places(text: str) -> Sequence[int]:
    """For each place between characters, how many bytes of UTF-8 stand before it."""
    if text.isascii():
        return range(len(text) + 1)
    places = [0]
    for character in text:
        places.append(places[-1] + len(character.encode()))
    return places


def vllm_tokens(request: TokenizeRequest, read: Sequence[Tokenized], max_tokens: int | None) -> Any:
    """vLLM's `TokenizeResponse`."""
    (text,) = read
    return {
        "count": len(text.ids),
        "max_model_len": max_tokens,
        "tokens": text.ids,
        "token_strs": text.pieces if request.return_token_strs else None,
    }


def cohere_tokens(request: TokenizeRequest, read: Sequence[Tokenized], max_tokens: int | None) -> Any:
    """Cohere's `TokenizeResponse`."""
    (text,) = read
    return {"tokens": text.ids, "token_strings": text.pieces, "meta": {"api_version": {"version": "1"}}}


# -- bodies -------------------------------------------------------------------------------------------------------


def tei_texts(request: TokenizeRequest, max_inputs: int) -> Sequence[str]:
    """`inputs`: a text or a list of them."""
    if request.inputs is None:
        raise InvalidRequest("give inputs, prompt, messages or text", param="inputs")
    return texts_of(request.inputs, "inputs", max_inputs)


def vllm_texts(request: TokenizeRequest, max_inputs: int) -> Sequence[str]:
    """`prompt`, or one conversation as the routes for vectors read it."""
    if request.prompt is not None:
        return only_text(request.prompt, "prompt")
    if not isinstance(request.messages, list):
        raise InvalidRequest("messages must be a list", param="messages")
    source = conversation(request.messages, "messages")
    if isinstance(source, Reference):
        raise UnsupportedCapability("messages must be text: a picture has no tokens here", param="messages")
    return only_text(source, "messages")


def only_text(value: object, param: str) -> Sequence[str]:
    """The value as a list of one text. Raises InvalidRequest."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string", param=param)
    return [value]


TEI = TokenForm(Dialect.TEI, tei_texts, tei_tokens)
VLLM = TokenForm(Dialect.VLLM, vllm_texts, vllm_tokens, fields=("prompt", "messages"))
COHERE = TokenForm(Dialect.COHERE, lambda request, _: only_text(request.text, "text"), cohere_tokens, False, ("text",))


def form_of(fields: Fields, default: TokenForm) -> TokenForm:
    """Whose body this is; `default` where it can't be told."""
    if "inputs" in fields:
        return TEI
    if "prompt" in fields or "messages" in fields:
        return VLLM
    return COHERE if "text" in fields else default


async def tokenized(edge: Edge, exchange: Exchange, record: Record, default: TokenForm) -> bytes:
    """The answer's JSON in the body's dialect. Raises CotenantError."""
    body = await read_json(edge, exchange)
    fields = await off_loop(len(body), json_object, body)
    form = form_of(fields, default)
    record.surface = form.dialect
    request = validated(TokenizeRequest, fields)
    spec = meant(edge, exchange, request.model, None)
    record.model = spec.name
    texts = form.texts(request, edge.limits.max_inputs)
    record.inputs, record.characters = len(texts), sum(map(len, texts))
    if record.characters > MAX_CHARACTERS:
        held = f"{form.field(request)} holds {record.characters} characters"
        raise TooManyInputs(f"{held}, this route takes {MAX_CHARACTERS} in one request", param=form.field(request))
    specials = form.adds_specials if request.add_special_tokens is None else request.add_special_tokens

    def read(vocabulary: Vocabulary) -> list[Tokenized]:
        return [
            vocabulary.tokenize(text, add_special_tokens=specials, prompt_name=request.prompt_name) for text in texts
        ]

    deadline_s = deadline_of(exchange, request.timeout_ms)
    found = await exchange.while_connected(edge.engine.consult(spec.id, read, deadline_s))
    record.tokens = sum(len(text.ids) for text in found)
    max_tokens = status_of(edge, spec.id).max_tokens
    size_bytes = record.tokens * ANSWER_BYTES_PER_TOKEN
    return await off_loop(size_bytes, lambda: render(form.answer(request, found, max_tokens)))


# -- and back -----------------------------------------------------------------------------------------------------


async def decoded(edge: Edge, exchange: Exchange, record: Record) -> bytes:
    """`POST /decode`: a list of texts. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request = validated(DecodeRequest, await off_loop(len(body), json_object, body))
    nested = isinstance(request.ids, list) and bool(request.ids) and isinstance(request.ids[0], list)
    lists = request.ids if nested else [request.ids]
    if len(lists) > edge.limits.max_inputs:
        raise TooManyInputs(f"ids holds {len(lists)} lists, at most {edge.limits.max_inputs} are taken", param="ids")
    return render(await texts_from(edge, exchange, record, request, checked_ids(lists, "ids"), "ids"))


async def detokenized(edge: Edge, exchange: Exchange, record: Record, answer: Callable[[str], dict[str, Any]]) -> bytes:
    """The text of `tokens`, as the dialect calls it. Raises CotenantError."""
    body = await read_json(edge, exchange)
    request = validated(DetokenizeRequest, await off_loop(len(body), json_object, body))
    (text,) = await texts_from(edge, exchange, record, request, checked_ids([request.tokens], "tokens"), "tokens")
    return render(answer(text))


def checked_ids(lists: Sequence[Any], param: str) -> Sequence[Sequence[int]]:
    """Lists of ids, not too many in all. Raises InvalidRequest's kinds."""
    if not all(isinstance(ids, list) and all(type(token) is int for token in ids) for ids in lists):
        raise InvalidRequest(f"{param} must be a list of token ids, which are integers", param=param)
    count = sum(map(len, lists))
    if not count:
        raise EmptyInput(f"{param} is an empty list", param=param)
    if count > MAX_IDS:
        raise TooManyInputs(f"{param} holds {count} ids, this route takes {MAX_IDS} in one request", param=param)
    return lists


async def texts_from(
    edge: Edge,
    exchange: Exchange,
    record: Record,
    request: DecodeRequest | DetokenizeRequest,
    lists: Sequence[Sequence[int]],
    param: str,
) -> list[str]:
    """The texts that the lists of ids stand for. Raises CotenantError; `param`: what the body calls the ids."""
    spec = meant(edge, exchange, request.model, None)
    record.model = spec.name
    record.inputs, record.tokens = len(lists), sum(map(len, lists))
    skips = isinstance(request, DecodeRequest) and request.skip_special_tokens

    def read(vocabulary: Vocabulary) -> list[str]:
        return [vocabulary.detokenize(ids, skip_special_tokens=skips) for ids in lists]

    deadline_s = deadline_of(exchange, request.timeout_ms)
    try:
        return await exchange.while_connected(edge.engine.consult(spec.id, read, deadline_s))
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=param) from None


# -- routes -------------------------------------------------------------------------------------------------------


def route(dialect: Dialect, handler: Handler) -> Callable[[Edge, Exchange], Awaitable[None]]:
    """A route by its handler; `dialect` is that of what can't be read."""

    async def answer(edge: Edge, exchange: Exchange) -> None:
        await infer(edge, exchange, dialect, TOKENIZE, handler)

    return answer


ROUTES: Final = {
    "/tokenize": route(Dialect.TEI, partial(tokenized, default=TEI)),
    "/v1/tokenize": route(Dialect.COHERE, partial(tokenized, default=COHERE)),
    "/decode": route(Dialect.TEI, decoded),
    "/detokenize": route(Dialect.VLLM, partial(detokenized, answer=lambda text: {"prompt": text})),
    "/v1/detokenize": route(
        Dialect.COHERE,
        partial(detokenized, answer=lambda text: {"text": text, "meta": {"api_version": {"version": "1"}}}),
    ),
}
