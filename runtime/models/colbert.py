"""ColBERT-style text multi-vectors: sentence-transformers' MultiVectorEncoder, run on packed batches.

Loading (its own layout, PyLate's and Stanford's), query expansion and skip lists are sentence-transformers'
definitions; batching and the choice of rows are ours. A query may be widened with mask tokens that count as rows
although, mostly, no token attends to them: such queries run as rectangles of equal length, all else as one flat row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from transformers import PreTrainedModel

from runtime.devices.base import Device, LayerSwap
from runtime.errors import InvalidDimensions, UnsupportedCapability, UnsupportedModel
from runtime.models.attention import PACKED_ATTENTION, attending
from runtime.models.base import Execution, Flight, Model, ModelFacts, Vocabulary
from runtime.models.exactness import probe_texts
from runtime.models.flat import open_library, settled, upload_row
from runtime.models.limits import activation_bytes_per_token, position_offset
from runtime.models.multi_vector_exactness import Probe, choose_layout
from runtime.models.multi_vectors import send_multi_vectors
from runtime.models.packing import pack
from runtime.models.parking import ParkableModel
from runtime.models.prompts import Prompts, is_query
from runtime.models.token_rows import PreparedTokens, side_of
from runtime.models.tokenizing import Limit
from runtime.models.vocabulary import FastVocabulary
from runtime.registry import ModelSpec
from runtime.work import Finish, Job, Prepared, Row

KNOWN_MODULES = frozenset({"Transformer", "Dense", "LayerNorm", "Normalize", "Dropout", "MultiVectorMask"})


class TokenEmbedder(ParkableModel):
    """One ColBERT-style model on one device."""

    def __init__(self, spec: ModelSpec, folder: Path, device: Device) -> None:
        """Raises UnsupportedModel for modules that can't be batched as here."""
        self._device = device
        self._dtype = getattr(torch, device.default_dtype if spec.dtype == "auto" else spec.dtype)
        self._reference = _load(spec, folder, device.name, self._dtype)
        transformer: Any = self._reference[0]
        self._network: PreTrainedModel = transformer.auto_model
        modules = [module for module in self._reference if not isinstance(module, MultiVectorMask)]
        self._normalizes = isinstance(modules[-1], Normalize)
        self._chain = modules[:-1] if self._normalizes else modules
        self._sides = {query: side_of(self._reference, query, spec.max_length) for query in (True, False)}
        self._prompts = Prompts(
            {"query": "", "document": "", **self._reference.prompts, **spec.prompts}, spec.default_prompt or "document"
        )
        self._offset = position_offset(self._network)
        self._padded_attention = self._network.config._attn_implementation
        self._width = int(self._reference.get_embedding_dimension() or 0)
        self.execution: Execution = "equal-length"
        device.settle_weights(self._reference)
        self.hold(self._reference)

    # -- what the load-time check needs ------------------------------------------------------------------------

    @property
    def half(self) -> bool:
        """Whether arithmetic is in half precision."""
        return bool(self._dtype.itemsize == 2)

    @property
    def layouts(self) -> tuple[Execution, ...]:
        """Those that the architecture allows, the fastest first."""
        if getattr(self._network, "_supports_attention_backend", False):
            return ("packed", "equal-length")
        return ("equal-length",)

    def use(self, execution: Execution) -> None:
        """Switch how batches are laid out. Not while a batch is in flight."""
        packed = execution == "packed"
        if packed != (self.execution == "packed"):
            self._network.set_attn_implementation(PACKED_ATTENTION if packed else self._padded_attention)
        self.execution = execution

    def reference_rows(self, texts: Sequence[str], query: bool) -> list[Row]:
        """What sentence-transformers computes for each text alone. Only while `use("equal-length")` is in force."""
        encode = self._reference.encode_query if query else self._reference.encode_document
        prompt = self._prompts.text("query" if query else "document")  # the registry's where it has one
        return [encode(text, prompt=prompt, convert_to_numpy=True, show_progress_bar=False) for text in texts]

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        """Groups of faster layers; of each group one may be put in place, the fastest first."""
        return [self._device.layer_swaps(self._network)]

    def settle(self, execution_reason: str) -> None:
        """Fix the facts after the load-time check chose the layout."""
        weights = list(self._reference.parameters()) + list(self._reference.buffers())
        self.facts = ModelFacts(
            dimensions=self._width,
            max_tokens=self._sides[False].tokenizer.default_limit.max_tokens,
            dtype=str(self._dtype).removeprefix("torch."),
            execution=self.execution,
            execution_reason=execution_reason,
            prompts=self._prompts.names,
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            activation_bytes_per_token=activation_bytes_per_token(self._network.config.to_dict(), self._dtype.itemsize),
        )

    # -- the contract ------------------------------------------------------------------------------------------

    def vocabulary(self) -> Vocabulary:
        """See Model.vocabulary."""
        return FastVocabulary(self._sides[False].tokenizer.uncut, self._prompts)

    def prepare(self, job: Job) -> list[Prepared]:
        """Tokenize each text as a document, or as a query where the prompt says so; see Model.prepare."""
        texts = [item for item in job.inputs if isinstance(item, str)]
        if len(texts) != len(job.inputs):
            raise UnsupportedCapability("this model embeds texts only", param="input")
        if job.dimensions is not None and not 1 <= job.dimensions <= self._width:
            raise InvalidDimensions(f"dimensions must be between 1 and {self._width} for this model")
        name = self._prompts.name(job.prompt_name, job.prompt_optional)
        prompt, side = self._prompts.text(name), self._sides[is_query(name)]
        default = side.tokenizer.default_limit
        longest = min(default.max_tokens, job.max_tokens or default.max_tokens)
        limit = Limit(max_tokens=longest, truncate=job.truncate, side=job.truncation_side or default.side)
        normalize = (self._normalizes or job.dimensions is not None) if job.normalize is None else job.normalize
        finish = Finish(dimensions=job.dimensions, normalize=normalize)
        return [_finished(item, finish) for item in side.encode([f"{prompt}{text}" for text in texts], limit)]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Run one batch: multi-vectors `(rows, dim)`, float32."""
        tokens = [item for item in items if isinstance(item, PreparedTokens)]
        assert len(tokens) == len(items)
        with torch.inference_mode():
            pieces = [piece for group in self._groups(tokens) for piece in self._rows(tokens, group)]
            return send_multi_vectors(self._device, pieces, [item.finish for item in items])

    def close(self) -> None:
        """Let go of every tensor."""
        self.empty()
        del self._network, self._reference, self._chain

    # -- parts -------------------------------------------------------------------------------------------------

    def _groups(self, items: Sequence[PreparedTokens]) -> list[list[int]]:
        """One flat row of what attends to itself wholly, and rectangles of equal length; or such rectangles only."""
        groups: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            flat = self.execution == "packed" and item.attended == item.tokens
            groups.setdefault(0 if flat else item.tokens, []).append(index)
        return list(groups.values())

    def _rows(self, items: Sequence[PreparedTokens], group: list[int]) -> list[tuple[int, torch.Tensor]]:
        """The kept rows of each item of one group, with its index in the batch."""
        some = [items[i] for i in group]
        if self.execution == "packed" and some[0].attended == some[0].tokens:
            flat, order = self._flat_row(some)
        else:
            flat, order = self._rectangle(some), list(range(len(some)))
        kept = np.flatnonzero(np.concatenate([some[i].kept for i in order])).astype(np.int32)
        rows = flat if len(kept) == len(flat) else flat.index_select(0, self._device.upload({"kept": kept})["kept"])
        counts = [int(some[i].kept.sum()) for i in order]
        return [(group[i], piece) for i, piece in zip(order, torch.split(rows, counts), strict=True)]

    def _flat_row(self, items: Sequence[PreparedTokens]) -> tuple[torch.Tensor, list[int]]:
        """Rows `(tokens, dim)` of a batch without padding, and the order in which the items stand."""
        row = pack(items, self._offset, self._has_type_ids)
        features, plan = upload_row(self._device, row)
        with attending(plan):
            return self._embed(features)[0], row.order.tolist()

    def _rectangle(self, items: Sequence[PreparedTokens]) -> torch.Tensor:
        """Rows `(items * tokens, dim)` of items of one length."""
        ids = np.stack([item.token_ids for item in items])
        lengths = np.array([[item.attended] for item in items])
        arrays = {"input_ids": ids, "attention_mask": (np.arange(ids.shape[1]) < lengths).astype(np.int32)}
        if self._has_type_ids:
            arrays["token_type_ids"] = np.stack(
                [np.zeros(item.tokens, dtype=np.int32) if item.type_ids is None else item.type_ids for item in items]
            )
        features = self._device.upload(arrays)
        if self.execution == "packed":
            # Only a mask that is whole already reaches an attention function without a mask function.
            features["attention_mask"] = features["attention_mask"].bool()[:, None, None, :]
        return self._embed(features).flatten(0, 1)

    def _embed(self, features: dict[str, Any]) -> torch.Tensor:
        features["modality"] = "text"
        for module in self._chain:
            features = module(features)
        rows = features["token_embeddings"]
        assert isinstance(rows, torch.Tensor)
        return rows

    @property
    def _has_type_ids(self) -> bool:
        return self._sides[False].tokenizer.has_type_ids


def _finished(item: PreparedTokens, finish: Finish) -> Prepared:
    return PreparedTokens(
        token_ids=item.token_ids,
        type_ids=item.type_ids,
        truncated=item.truncated,
        attended=item.attended,
        kept=item.kept,
        finish=finish,
    )


def _load(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> MultiVectorEncoder:
    reference = open_library(MultiVectorEncoder, spec, folder, device, dtype)
    if getattr(reference[0], "transformer_task", None) == "retrieval":
        raise UnsupportedModel(
            "page-image models are served from colpali-engine's checkpoints, not from transformers' own"
        )
    odd = {type(module).__name__ for module in reference} - KNOWN_MODULES
    if odd:
        raise UnsupportedModel(f"modules not known here: {', '.join(sorted(odd))}")
    return settled(reference, spec)


def load_token_embedder(spec: ModelSpec, folder: Path, device: Device) -> Model:
    """A TokenEmbedder whose batches were found equal to sentence-transformers. Raises UnsupportedModel."""
    model = TokenEmbedder(spec, folder, device)
    texts = probe_texts(None)
    probes = [
        Probe(inputs=texts, prompt_name=side, reference=model.reference_rows(texts, side == "query"))
        for side in ("query", "document")
    ]
    model.settle(choose_layout(model, probes, model.layouts))
    return model
