"""What models of every family do alike: batches as a flat row or in buckets, recorded forwards, one launch.

A family adds what it loads, how it prepares an input, and what its network gives for a batch's features.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from sentence_transformers.base.model import BaseModel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from runtime.devices.base import Device, LayerSwap
from runtime.devices.cuda import CudaDevice
from runtime.errors import ForwardFailed, UnsupportedModel
from runtime.models.attention import PACKED_ATTENTION, AttentionPlan, attending
from runtime.models.base import Execution, Flight, ModelFacts, Vocabulary
from runtime.models.finishing import send_vectors
from runtime.models.graphs import RowGraphs, RowShape, row_tokens
from runtime.models.limits import activation_bytes_per_token, position_offset
from runtime.models.packing import BUCKET_WASTE, Packed, buckets, pack, pad
from runtime.models.parking import ParkableModel
from runtime.models.prompts import Prompts
from runtime.models.recording import RecordedForward
from runtime.models.tokenizing import Limit, TextTokenizer
from runtime.models.vocabulary import FastVocabulary
from runtime.registry import ModelSpec
from runtime.work import Head, Job, Prepared

log = logging.getLogger(__name__)

L = TypeVar("L", bound=BaseModel)


def dtype_of(spec: ModelSpec, device: Device) -> torch.dtype:
    """The weights' type: as the registry says, else as the device likes it."""
    dtype: torch.dtype = getattr(torch, device.default_dtype if spec.dtype == "auto" else spec.dtype)
    return dtype


def open_library(library: type[L], spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> L:
    """sentence-transformers' own model of the files in `folder`, on the device; nothing is fetched."""
    return library(
        str(folder),
        device=device,
        trust_remote_code=spec.trust_remote_code,
        local_files_only=True,
        model_kwargs={"dtype": dtype},
    )


def settled(reference: L, spec: ModelSpec) -> L:
    """The library's model, for inference only. Raises UnsupportedModel where its tokenizer can't be read by us."""
    transformer: Any = reference[0]
    if not isinstance(getattr(transformer, "tokenizer", None), PreTrainedTokenizerFast):
        raise UnsupportedModel(f"{type(transformer).__name__} has no fast tokenizer")
    reference.eval().requires_grad_(False)
    return reference


def upload_row(device: Device, row: Packed) -> tuple[dict[str, Any], AttentionPlan]:
    """The row's arrays on the device, as sentence-transformers' modules and our attention want them."""
    arrays = {
        "input_ids": row.input_ids[None],
        "position_ids": row.position_ids[None],
        "seq_idx": row.sequence_ids[None],
        "cu_seq_lens_q": row.boundaries,
    }
    if row.type_ids is not None:
        arrays["token_type_ids"] = row.type_ids[None]
    features = device.upload(arrays)
    return features, AttentionPlan(torch.tensor(row.runs), features["cu_seq_lens_q"], row.runs[0].length)


class Piece(NamedTuple):
    """What one forward gave of a part of a batch."""

    vectors: torch.Tensor
    """`(items, dim)`"""
    order: list[int]
    """Which item of the part each vector is of."""
    padding_tokens: int = 0


class FlatModel(ParkableModel):
    """One network on one device, run on flat rows where it allows that."""

    def __init__(
        self,
        device: Device,
        network: PreTrainedModel,
        tokenizer: TextTokenizer,
        prompts: Prompts,
        dtype: torch.dtype,
    ) -> None:
        """`network`: on the device already, loaded as `dtype`."""
        self._device = device
        self._network = network
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._dtype = dtype
        self._offset = position_offset(network)
        self._packed = False
        self._graphs: RowGraphs | None = None
        self._recorded: RecordedForward | None = None
        self._waste = BUCKET_WASTE
        self._padded_attention = network.config._attn_implementation
        self.execution: Execution = "buckets"

    @abc.abstractmethod
    def _vectors(self, features: dict[str, Any], prompt_tokens: int) -> torch.Tensor:
        """Vectors or logits `(items, width)` of a flat row (it has `cu_seq_lens_q`) or of a padded rectangle."""

    def use(self, execution: Execution) -> None:
        """Switch how batches are laid out. Not while a batch is in flight."""
        packed = execution == "packed"
        if packed != self._packed:
            self._network.set_attn_implementation(PACKED_ATTENTION if packed else self._padded_attention)
        self._packed = packed
        self._waste = 1.0 if execution == "equal-length" else BUCKET_WASTE
        self.execution = execution

    @property
    def window_tokens(self) -> int | None:
        """The attention window of local layers, when the architecture has one."""
        config = self._network.config
        window = getattr(config, "sliding_window", None) or getattr(config, "local_attention", None)
        return window if isinstance(window, int) else None

    @property
    def half(self) -> bool:
        """Whether the arithmetic is half precision."""
        return bool(self._dtype.itemsize == 2)

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        """Groups of faster layers; of each group one may be put in place, the fastest first."""
        return [self._device.layer_swaps(self._network)]

    def accelerate(self, example: Sequence[Prepared]) -> str | None:
        """Record the packed forward, so that replaying it needs little Python; what was recorded, None if nothing was.

        On CUDA in half precision as graphs of fixed sizes, on CPU as one graph of any size.
        """
        try:
            if isinstance(self._device, CudaDevice) and self.half:
                with torch.inference_mode():
                    self._graphs = RowGraphs(self._device, self._vectors_of_row, self._row_shape())
                return "CUDA graphs"
            if self._device.name == "cpu":
                row = pack(example, self._offset, self._tokenizer.has_type_ids)
                self._recorded = RecordedForward(self._vectors_of_row, *upload_row(self._device, row))
                return "recorded forward"
        except Exception as error:
            log.warning("the forward could not be recorded: %s", type(error).__name__)
        return None

    def decelerate(self) -> None:
        """Run every batch eagerly."""
        self._graphs = None
        self._recorded = None

    def on_parked(self) -> None:
        """Graphs hold the weights' addresses."""
        self._graphs = None

    def on_return(self) -> None:
        """Capture them again."""
        if self.facts.graph_bytes:
            self.accelerate(())

    def vocabulary(self) -> Vocabulary:
        """See Model.vocabulary."""
        return FastVocabulary(self._tokenizer.uncut, self._prompts)

    def _settle(
        self,
        library: torch.nn.Module,
        execution_reason: str,
        dimensions: int | None = None,
        head: Head | None = None,
        pooling: str | None = None,
    ) -> None:
        """Fix the facts. `library`: the whole of the loaded model, with every weight that it holds."""
        weights = [*library.parameters(), *library.buffers()]
        self.facts = ModelFacts(
            dimensions=dimensions,
            head=head,
            max_tokens=self._tokenizer.default_limit.max_tokens,
            dtype=str(self._dtype).removeprefix("torch."),
            execution=self.execution,
            execution_reason=execution_reason,
            prompts=self._prompts.names,
            pooling=pooling,
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            graph_bytes=self._graphs.held_bytes if self._graphs else 0,
            activation_bytes_per_token=activation_bytes_per_token(self._network.config.to_dict(), self._dtype.itemsize),
        )

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Run one batch: vectors `(dim,)`, float32."""
        forward = self._forward_packed if self._packed else self._forward_padded
        groups = self._groups(items)
        with torch.inference_mode():
            pieces = [forward([items[i] for i in group]) for group in groups]
            order = [group[i] for group, piece in zip(groups, pieces, strict=True) for i in piece.order]
            vectors = pieces[0].vectors if len(pieces) == 1 else torch.cat([piece.vectors for piece in pieces])
            flight = send_vectors(self._device, vectors, order, [item.finish for item in items])
            flight.padding_tokens = sum(piece.padding_tokens for piece in pieces)
            return flight

    def _groups(self, items: Sequence[Prepared]) -> list[list[int]]:
        """Which items share one forward: pooling leaves out one prompt length at a time, and buckets pad little."""
        groups: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            groups.setdefault(item.prompt_tokens, []).append(index)
        if self._packed:
            return list(groups.values())
        return [
            [group[i] for i in bucket]
            for group in groups.values()
            for bucket in buckets([items[i] for i in group], self._waste)
        ]

    def _forward_packed(self, items: Sequence[Prepared]) -> Piece:
        """One flat row."""
        row = pack(items, self._offset, self._tokenizer.has_type_ids)
        if self._graphs is not None and not items[0].prompt_tokens:
            replayed = self._graphs.run(row)
            if replayed is not None:
                used = row.input_ids.size
                return Piece(replayed, row.order.tolist(), (row_tokens(used) or used) - used)
        features, plan = upload_row(self._device, row)
        if self._recorded is not None and not items[0].prompt_tokens:
            return Piece(self._recorded.run(features, plan), row.order.tolist())
        return Piece(self._vectors_of_row(features, plan, items[0].prompt_tokens), row.order.tolist())

    def _row_shape(self) -> RowShape:
        return RowShape(
            with_type_ids=self._tokenizer.has_type_ids,
            position_offset=self._offset,
            max_tokens=self._tokenizer.default_limit.max_tokens,
        )

    def _forward_padded(self, items: Sequence[Prepared]) -> Piece:
        """One padded rectangle, in the given order."""
        block = pad(items, self._tokenizer.pad_id, self._tokenizer.has_type_ids)
        arrays = {"input_ids": block.input_ids, "attention_mask": block.attention_mask}
        if block.type_ids is not None:
            arrays["token_type_ids"] = block.type_ids
        vectors = self._vectors(self._device.upload(arrays), items[0].prompt_tokens)
        padding = block.input_ids.size - sum(item.tokens for item in items)
        return Piece(vectors, list(range(len(items))), padding)

    def _vectors_of_row(self, features: dict[str, Any], plan: AttentionPlan, prompt_tokens: int = 0) -> torch.Tensor:
        with attending(plan):
            return self._vectors(features, prompt_tokens)

    def _check_ids(self, items: Sequence[Prepared]) -> None:
        """Keep ids that the embedding table lacks off the device; a tokenizer may know more tokens than the model."""
        rows = self._tokenizer.embeddings
        for index, item in enumerate(items):
            if item.tokens and int(item.token_ids.max()) >= rows:
                raise ForwardFailed("{input} holds a token that the model has no embedding for", index=index)

    def _limit(self, job: Job) -> Limit:
        default = self._tokenizer.default_limit
        longest = min(default.max_tokens, job.max_tokens or default.max_tokens)
        return Limit(max_tokens=longest, truncate=job.truncate, side=job.truncation_side or default.side)
