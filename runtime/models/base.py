"""The contract between the engine and a model family. Knows no torch, no queue and no HTTP.

A family gives `prepare` (host work, any thread), `launch` and `land` (device work, lane threads only). The engine may
call `launch` for batch n+1 before it lands batch n, and from several lanes at once: a model keeps no per-batch state.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from runtime.errors import UnsupportedCapability
from runtime.registry import ModelBackend
from runtime.work import Head, Input, Job, Prepared, Row, RowLayout, rough_tokens

Execution: TypeAlias = Literal["packed", "buckets", "equal-length", "one-by-one", "openvino-buckets"]
"""packed: one flat row, no padding; buckets: length-sorted groups padded by at most 10 %; equal-length: groups of
one length each, no padding and no sharing of a row; one-by-one: a forward for each item; openvino-buckets: buckets
run by OpenVINO."""


EXAMPLE_TEXT = "a sentence of ten words that warms the model up"

Modality: TypeAlias = Literal["text", "image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a loaded model and never changes while it is loaded."""

    dimensions: int | None
    """Width of a full vector; None where the model gives logits."""
    head: Head | None = None
    """What the logits mean; None where the model gives vectors."""
    modalities: tuple[Modality, ...] = ("text",)
    max_tokens: int
    """Most tokens of one input, special tokens included."""
    dtype: str
    """Weights and arithmetic; int8: 8-bit weights."""
    backend: ModelBackend = "torch"
    execution: Execution
    execution_reason: str
    prompts: tuple[str, ...]
    pooling: str | None = None
    """How tokens become a vector, as sentence-transformers calls it (`mean`, `cls`); None where it isn't so simple."""
    weight_bytes: int
    graph_bytes: int = 0
    """Held by captured graphs, beside the weights."""
    activation_bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """A text as a model's own tokenizer reads it, uncut. One entry a token in each list."""

    text: str
    """With the prompt before it."""
    ids: list[int]
    pieces: list[str]
    """As the vocabulary writes them (`##ing`, `Ġthe`)."""
    special: list[bool]
    """Put there by the tokenizer, not by the text."""
    spans: list[tuple[int, int]]
    """Characters of `text`, from and up to."""


class Vocabulary(abc.ABC):
    """A model's tokenizer, asked for its own sake. Host work, in any thread."""

    @abc.abstractmethod
    def tokenize(self, text: str, *, add_special_tokens: bool = True, prompt_name: str | None = None) -> Tokenized:
        """The text's tokens, all of them, behind the named prompt. Raises UnknownPrompt."""

    @abc.abstractmethod
    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text that these ids stand for. Raises InvalidRequest for ids that the vocabulary lacks."""


class Flight(abc.ABC):
    """A launched batch whose rows are not on the host yet."""

    padding_tokens: int = 0
    """Positions that are computed for nothing, beside the batch's own tokens."""

    @abc.abstractmethod
    def land(self) -> list[Row]:
        """Wait for the device and give the rows, float32, in the order of the launched items. Blocks."""


class Model(abc.ABC):
    """A loaded model on its device."""

    facts: ModelFacts

    def cost(self, item: Input) -> int:
        """About the tokens of an input that is not prepared yet; exact for pictures. On the event loop: no decoding.

        Raises InvalidRequest for a picture of a shape that the model can't see.
        """
        return min(rough_tokens(item), self.facts.max_tokens)

    def example(self) -> Input:
        """A usual input, which a fresh model is warmed up and timed with."""
        return EXAMPLE_TEXT

    def layout_of(self, item: Prepared) -> RowLayout:
        """What the rows of a prepared input stand for. Raises UnsupportedCapability where they stand for no place."""
        raise UnsupportedCapability("this model's rows stand for no token and no patch")

    def vocabulary(self) -> Vocabulary:
        """The model's tokenizer. Raises UnsupportedCapability where it can't be asked."""
        raise UnsupportedCapability("this model's tokenizer can't be asked for tokens")

    @abc.abstractmethod
    def prepare(self, job: Job) -> list[Prepared]:
        """Turn each input of `job` into tokens, in order. Thread-safe; never touches the device.

        Raises InputTooLong (truncation refused), UnknownPrompt, InvalidDimensions, UnsupportedCapability for a kind
        of input that the model can't read.
        """

    @abc.abstractmethod
    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Start one batch on the device. May return before the device is done; on CPU it is done."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give all device memory back, whoever still refers to a tensor. Called once, when no batch is in flight."""

    def park(self) -> bool:
        """Take the weights out of device memory and keep the rest, so that `unpark` is one copy.

        Called when no batch is in flight, from the loader thread. False: this model can't, and nothing has changed.
        """
        return False

    def unpark(self) -> None:
        """Bring the weights back. Only after `park` said True."""
        raise RuntimeError("this model never parked")
