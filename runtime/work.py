"""The nouns of a request's life: Job, Item, Batch, Result, Lane, Task, Timings.

A Job is what the edge asks for; preparation turns each of its inputs into an Item; the executor forms a Batch of
Items (of one model, perhaps of many Jobs); the rows that come back make up the Job's Result. Knows numpy only.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = NDArray[Any]
"""What a model gives for one input, float32: `(dim,)` for an embedding, `(tokens, dim)` for a multi-vector,
`(labels,)` logits for a pair or a text that is classified."""


class Lane(enum.StrEnum):
    """Who waits behind whom: a person waits online, an index is built in bulk."""

    ONLINE = "online"
    BULK = "bulk"


class Task(enum.StrEnum):
    """What a model can do for a Job."""

    EMBED = "embed"
    """One vector for a text, or for a picture where the model sees."""
    MULTI_VECTOR = "multi_vector"
    """One vector a token or a patch (late interaction: ColBERT, ColPali)."""
    RERANK = "rerank"
    """One relevance logit for a pair of query and document."""
    CLASSIFY = "classify"
    """One logit a label, for a text or a pair."""
    MAXSIM = "maxsim"
    """One late-interaction score for two multi-vectors."""


ABILITIES: Mapping[Task, frozenset[Task]] = {
    Task.EMBED: frozenset({Task.EMBED}),
    Task.MULTI_VECTOR: frozenset({Task.MULTI_VECTOR}),
    Task.RERANK: frozenset({Task.RERANK, Task.CLASSIFY}),
    Task.CLASSIFY: frozenset({Task.CLASSIFY}),
    Task.MAXSIM: frozenset({Task.MAXSIM}),
}
"""What a model whose task is the key can do. A reranker is a classifier with one label."""

MAXSIM_ID = "cotenant/maxsim"
"""The id of what computes MaxSim: built in, without weights, in no list of models."""

MAXSIM_ROWS = 16_384
"""Most rows of one multi-vector that is compared."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A query and a document that a model reads together."""

    query: str
    document: str


@dataclass(frozen=True, slots=True)
class Picture:
    """An encoded image whose header was checked; not decoded yet."""

    data: bytes = field(repr=False)
    width: int
    """Pixels, as the header says."""
    height: int


@dataclass(frozen=True, slots=True, eq=False)
class MatrixPair:
    """Two multi-vectors of one width that are to be compared, float32."""

    query: NDArray[np.float32] = field(repr=False)
    """`(query rows, width)`; pairs of one query share the array."""
    document: NDArray[np.float32] = field(repr=False)
    """`(document rows, width)`"""


Input: TypeAlias = str | Sequence[int] | Pair | Picture | MatrixPair
"""A text; token ids of the model's own vocabulary, special tokens already in their places; a pair; a picture; two
multi-vectors."""

CHARS_PER_TOKEN = 4
PIXELS_PER_TOKEN = 28 * 28
"""A visual token of the Qwen family; others see coarser."""


def characters(item: Input) -> int:
    """How long an input is before it is tokenized; a token id counts as one character, what is no text has none."""
    if isinstance(item, Pair):
        return len(item.query) + len(item.document)
    return 0 if isinstance(item, Picture | MatrixPair) else len(item)


def rough_tokens(item: Input) -> int:
    """About what an input will cost, for counting work that is not prepared yet."""
    if isinstance(item, Picture):
        return item.width * item.height // PIXELS_PER_TOKEN + 2
    if isinstance(item, MatrixPair):
        return len(item.document)
    if not isinstance(item, str | Pair):
        return len(item)
    return characters(item) // CHARS_PER_TOKEN + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request, parsed and validated, with its defaults resolved. Immutable."""

    id: str
    model: str
    """The registry id of the model, already resolved by the router."""
    task: Task
    inputs: Sequence[Input]
    lane: Lane = Lane.ONLINE
    may_go_bulk: bool = False
    """Nobody named a lane: where the work is too long to be waited for, it runs in bulk."""
    dimensions: int | None = None
    """Cut every vector to its first `dimensions` numbers, then normalise. None: the model's own width."""
    normalize: bool | None = None
    """True or False override the model's own normalisation; None keeps what the model does."""
    prompt_name: str | None = None
    """One of the model's prompts; None: the model's default prompt (mostly none)."""
    prompt_optional: bool = False
    """Whether a model without a prompt of that name uses its default prompt; else it refuses the job."""
    truncate: bool = True
    """Cut over-long inputs at the model's limit; False refuses them."""
    truncation_side: str | None = None
    """`right` cuts off the end of an over-long input, `left` its beginning; None: as the model's tokenizer does."""
    max_tokens: int | None = None
    """A smaller limit than the model's own, special tokens included."""
    max_query_tokens: int | None = None
    """Cut each pair's query to so many tokens first, special tokens not counted."""
    max_document_tokens: int | None = None
    """Cut each pair's document to so many tokens first, special tokens not counted."""
    tenant: str = "default"
    deadline_s: float | None = None
    """When an answer is of no more use, on the engine's clock; None: never."""
    wants_layouts: bool = False
    """Whether the Result says what the rows of each multi-vector stand for."""

    @property
    def line(self) -> tuple[str, Lane, str]:
        """Among whom it waits its turn: its model's jobs in its lane of its tenant."""
        return self.model, self.lane, self.tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How rows end on the device: cut to `dimensions`, then divided by their length if `normalize`."""

    dimensions: int | None = None
    normalize: bool = False


Activation: TypeAlias = Literal["identity", "sigmoid", "softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a model's logits mean."""

    labels: tuple[str, ...]
    """One name a logit, in order."""
    activation: Activation
    """The model's own way from logits to scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One input ready for the device: token ids and what they cost."""

    token_ids: NDArray[np.int32]
    """`(tokens,)`, special tokens included."""
    type_ids: NDArray[np.int32] | None = None
    """`(tokens,)` segment ids where the model has them and they aren't all zero."""
    prompt_tokens: int = 0
    """Leading tokens that pooling must leave out (models with `include_prompt: false`)."""
    finish: Finish = Finish()
    truncated: bool = False

    @property
    def tokens(self) -> int:
        """Cost in tokens."""
        return int(self.token_ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """What the rows of a multi-vector stand for."""

    tokens: tuple[str, ...] = ()
    """Of a text: the token of each row, as it is read."""
    grid: tuple[int, int] = (0, 0)
    """Of a picture: rows and columns of the patches it was cut into."""
    patches: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, dtype=np.intp), repr=False)
    """Of a picture: which row is each patch's, from the top left, line by line. `(rows * columns,)`"""


@dataclass(slots=True, kw_only=True)
class Timings:
    """Where one Job's milliseconds went; stages that many batches shared are the longest of them."""

    prepare_ms: float = 0.0
    queue_ms: float = 0.0
    device_ms: float = 0.0
    deliver_ms: float = 0.0
    total_ms: float = 0.0
    device_share_ms: float = 0.0
    """Device time charged to the Job: each batch's milliseconds times the Job's share of its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A Job's rows in the order of its inputs, with what they cost."""

    model: str
    rows: Sequence[Row]
    tokens: int
    truncated_inputs: int
    timings: Timings
    lane: Lane = Lane.ONLINE
    """In which it ran."""
    head: Head | None = None
    """What the logits in `rows` mean; None where rows are vectors."""
    layouts: Sequence[RowLayout] = ()
    """One an input, where the Job wants them."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """What the policy may know of one queue lane: sums and no entries; the same object until those change. Seconds."""

    model: str
    lane: Lane
    items: int
    tokens: int
    first_tokens: int
    """Cost of the item at the front: the least that can be taken."""
    due_s: float
    """When the oldest entry should be answered, on the engine's clock."""
    budget_tokens: int
    """The largest batch that memory and the model's settings allow."""
    small: bool = False
    """These are the lane's small inputs; its large ones are another Waiting."""
    queued_s: float = 0.0
    """Since when the oldest entry waits."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The policy's answer: whose turn it is and how much of the queue to take."""

    model: str
    lane: Lane
    max_tokens: int
    small: bool = False
