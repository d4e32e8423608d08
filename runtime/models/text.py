"""Text embedders: sentence-transformers' own modules, run on packed batches.

Loading, the module chain and the definition of pooling are sentence-transformers'; batching, packing, cutting and
normalising are ours, so that each vector is what `SentenceTransformer.encode` gives for that text alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from runtime.devices.base import Device
from runtime.devices.cuda import CudaDevice
from runtime.errors import ForwardFailed, InvalidDimensions, UnsupportedCapability, UnsupportedModel
from runtime.models.attention import PACKED_ATTENTION, AttentionPlan, attending
from runtime.models.base import Execution, Flight, ModelFacts
from runtime.models.finishing import send_vectors
from runtime.models.graphs import RowGraphs, RowShape
from runtime.models.limits import activation_bytes_per_token, max_tokens, position_offset
from runtime.models.packing import BUCKET_WASTE, Packed, buckets, pack, pad
from runtime.models.parking import ParkableModel
from runtime.models.prompts import Prompts
from runtime.models.recording import RecordedForward
from runtime.models.tokenizing import Limit, TextTokenizer
from runtime.registry import ModelSpec
from runtime.work import Finish, Job, Pair, Picture, Prepared, Row

log = logging.getLogger(__name__)

PACKABLE_MODULES = frozenset({"Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"})
"""sentence-transformers modules that take a flat row; others see a padded rectangle."""


class TextEmbedder(ParkableModel):
    """One text embedder on one device."""

    def __init__(self, spec: ModelSpec, folder: Path, device: Device) -> None:
        self._device = device
        self._dtype = getattr(torch, device.default_dtype if spec.dtype == "auto" else spec.dtype)
        self._reference = _load(spec, folder, device.name, self._dtype)
        transformer: Any = self._reference[0]
        self._network: PreTrainedModel = transformer.auto_model
        self._tokenizer = TextTokenizer(
            transformer.tokenizer,
            max_tokens(self._network, transformer.max_seq_length, spec.max_length),
            self._network.get_input_embeddings().weight.shape[0],
        )
        self._prompts = Prompts(
            {**self._reference.prompts, **spec.prompts}, spec.default_prompt or self._reference.default_prompt_name
        )
        modules = list(self._reference)
        self._normalizes = isinstance(modules[-1], Normalize)
        self._chain = modules[:-1] if self._normalizes else modules
        self._offset = position_offset(self._network)
        self._excludes_prompt = any(not getattr(module, "include_prompt", True) for module in modules)
        self._packed = False
        self._graphs: RowGraphs | None = None
        self._recorded: RecordedForward | None = None
        self._waste = BUCKET_WASTE
        self._width = int(self._reference.truncate_dim or self._reference.get_embedding_dimension() or 0)
        self._padded_attention = self._network.config._attn_implementation
        self.execution: Execution = "buckets"
        device.settle_weights(self._reference)
        self.hold(self._reference)

    # -- what the load-time check needs ------------------------------------------------------------------------

    def can_pack(self) -> str | None:
        """Why this architecture can't take a flat row; None when it can."""
        if not getattr(self._network, "_supports_attention_backend", False):
            return f"{type(self._network).__name__} has no attention interface"
        odd = {type(module).__name__ for module in self._reference} - PACKABLE_MODULES
        return f"modules that need padding: {', '.join(sorted(odd))}" if odd else None

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

    def reference_vectors(self, texts: Sequence[str]) -> list[Row]:
        """What sentence-transformers itself computes for each text alone. Only while `use("buckets")` is in force."""
        self._reference.max_seq_length = self._tokenizer.default_limit.max_tokens
        return [self._reference.encode(text, show_progress_bar=False) for text in texts]

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
                self._recorded = RecordedForward(self._vectors_of_row, *self._upload(row))
                return "recorded forward"
        except Exception as error:
            log.warning("the forward could not be recorded: %s", type(error).__name__)
        return None

    def decelerate(self) -> None:
        """Run every batch eagerly."""
        self._graphs = None
        self._recorded = None

    def settle(self, execution_reason: str) -> None:
        """Fix the facts after the load-time check chose the path."""
        weights = [*self._reference.parameters(), *self._reference.buffers()]
        self.facts = ModelFacts(
            dimensions=self._width,
            max_tokens=self._tokenizer.default_limit.max_tokens,
            dtype=str(self._dtype).removeprefix("torch."),
            execution=self.execution,
            execution_reason=execution_reason,
            prompts=self._prompts.names,
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            graph_bytes=self._graphs.held_bytes if self._graphs else 0,
            activation_bytes_per_token=activation_bytes_per_token(self._network.config.to_dict(), self._dtype.itemsize),
        )

    # -- the contract ------------------------------------------------------------------------------------------

    def prepare(self, job: Job) -> list[Prepared]:
        """Tokenize each text behind its prompt; see Model.prepare."""
        if any(isinstance(item, Pair | Picture) for item in job.inputs):
            raise UnsupportedCapability("this model embeds texts, neither pairs nor pictures", param="input")
        finish = self._finish(job)
        prompt = self._prompts.text(job.prompt_name)
        limit = self._limit(job)
        excluded = self._tokenizer.prompt_tokens(prompt) if prompt and self._excludes_prompt else 0
        places = [index for index, item in enumerate(job.inputs) if isinstance(item, str)]
        texts = [f"{prompt}{job.inputs[index]}" for index in places]
        encoded = iter(self._tokenizer.encode(texts, limit, places))
        items = [
            self._tokenizer.take(item, limit, index)
            if isinstance(item, Sequence) and not isinstance(item, str)
            else next(encoded)
            for index, item in enumerate(job.inputs)
        ]
        if self._device.index_errors_are_fatal:
            self._check_ids(items)
        return [
            replace(item, finish=finish, prompt_tokens=excluded if isinstance(given, str) else 0)
            for item, given in zip(items, job.inputs, strict=True)
        ]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Run one batch: vectors `(dim,)`, float32."""
        forward = self._forward_packed if self._packed else self._forward_padded
        groups = self._groups(items)
        with torch.inference_mode():
            pieces = [forward([items[i] for i in group]) for group in groups]
            order = [group[i] for group, (_, inner) in zip(groups, pieces, strict=True) for i in inner]
            vectors = pieces[0][0] if len(pieces) == 1 else torch.cat([vectors for vectors, _ in pieces])
            return send_vectors(self._device, vectors, order, [item.finish for item in items])

    def close(self) -> None:
        """Let go of every tensor."""
        self.decelerate()
        self.empty()
        del self._network, self._reference, self._chain

    def on_parked(self) -> None:
        """Graphs hold the weights' addresses."""
        self._graphs = None

    def on_return(self) -> None:
        """Capture them again."""
        if self.facts.graph_bytes:
            self.accelerate(())

    # -- parts -------------------------------------------------------------------------------------------------

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

    def _forward_packed(self, items: Sequence[Prepared]) -> tuple[torch.Tensor, list[int]]:
        """Vectors `(items, dim)` of one flat row, and which item each vector is of."""
        row = pack(items, self._offset, self._tokenizer.has_type_ids)
        if self._graphs is not None and not items[0].prompt_tokens:
            replayed = self._graphs.run(row)
            if replayed is not None:
                return replayed, row.order.tolist()
        features, plan = self._upload(row)
        if self._recorded is not None and not items[0].prompt_tokens:
            return self._recorded.run(features, plan), row.order.tolist()
        return self._vectors_of_row(features, plan, items[0].prompt_tokens), row.order.tolist()

    def _upload(self, row: Packed) -> tuple[dict[str, Any], AttentionPlan]:
        """The row's arrays on the device, as sentence-transformers' modules and our attention want them."""
        arrays = {
            "input_ids": row.input_ids[None],
            "position_ids": row.position_ids[None],
            "seq_idx": row.sequence_ids[None],
            "cu_seq_lens_q": row.boundaries,
        }
        if row.type_ids is not None:
            arrays["token_type_ids"] = row.type_ids[None]
        features = self._device.upload(arrays)
        return features, AttentionPlan(torch.tensor(row.runs), features["cu_seq_lens_q"], row.runs[0].length)

    def _row_shape(self) -> RowShape:
        return RowShape(
            with_type_ids=self._tokenizer.has_type_ids,
            position_offset=self._offset,
            max_tokens=self._tokenizer.default_limit.max_tokens,
        )

    def _forward_padded(self, items: Sequence[Prepared]) -> tuple[torch.Tensor, list[int]]:
        """Vectors `(items, dim)` of one padded rectangle, in the given order."""
        block = pad(items, self._tokenizer.pad_id, self._tokenizer.has_type_ids)
        arrays = {"input_ids": block.input_ids, "attention_mask": block.attention_mask}
        if block.type_ids is not None:
            arrays["token_type_ids"] = block.type_ids
        return self._vectors(self._device.upload(arrays), items[0].prompt_tokens), list(range(len(items)))

    def _vectors_of_row(self, features: dict[str, Any], plan: AttentionPlan, prompt_tokens: int = 0) -> torch.Tensor:
        with attending(plan):
            return self._vectors(features, prompt_tokens)

    def _vectors(self, features: dict[str, object], prompt_tokens: int) -> torch.Tensor:
        features["modality"] = "text"
        if prompt_tokens:
            features["prompt_length"] = prompt_tokens
        for module in self._chain:
            features = module(features)
        vectors = features["sentence_embedding"]
        assert isinstance(vectors, torch.Tensor)
        cut = self._reference.truncate_dim
        return vectors if cut is None else vectors[:, :cut]

    def _finish(self, job: Job) -> Finish:
        if job.dimensions is not None and not 1 <= job.dimensions <= self._width:
            raise InvalidDimensions(f"dimensions must be between 1 and {self._width} for this model")
        normalize = (self._normalizes or job.dimensions is not None) if job.normalize is None else job.normalize
        return Finish(dimensions=job.dimensions, normalize=normalize)

    def _check_ids(self, items: Sequence[Prepared]) -> None:
        """Keep ids that the embedding table lacks off the device; a tokenizer may know more tokens than the model."""
        rows = self._tokenizer.embeddings
        for index, item in enumerate(items):
            if item.tokens and int(item.token_ids.max()) >= rows:
                raise ForwardFailed(f"input {index} holds a token that the model has no embedding for")

    def _limit(self, job: Job) -> Limit:
        default = self._tokenizer.default_limit
        longest = min(default.max_tokens, job.max_tokens or default.max_tokens)
        return Limit(max_tokens=longest, truncate=job.truncate, side=job.truncation_side or default.side)


def _load(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> SentenceTransformer:
    reference = SentenceTransformer(
        str(folder),
        device=device,
        trust_remote_code=spec.trust_remote_code,
        local_files_only=True,
        model_kwargs={"dtype": dtype},
    )
    transformer: Any = reference[0]
    if not isinstance(getattr(transformer, "tokenizer", None), PreTrainedTokenizerFast):
        raise UnsupportedModel(f"{spec.id}: {type(transformer).__name__} has no fast tokenizer")
    reference.eval().requires_grad_(False)
    return reference
