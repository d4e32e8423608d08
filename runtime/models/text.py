"""Text embedders: sentence-transformers' own modules, run on packed batches.

Loading, the module chain and the definition of pooling are sentence-transformers'; batching, packing, cutting and
normalising are ours, so that each vector is what `SentenceTransformer.encode` gives for that text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling

from runtime.devices.base import Device
from runtime.errors import InvalidDimensions, UnsupportedCapability
from runtime.models.adapters import is_adapter, load_embedder_adapter
from runtime.models.flat import FlatModel, dtype_of, open_library, settled
from runtime.models.limits import max_tokens
from runtime.models.prompts import Prompts
from runtime.models.tokenizing import TextTokenizer
from runtime.registry import ModelSpec
from runtime.work import Finish, Job, Pair, Picture, Prepared, Row

PACKABLE_MODULES = frozenset({"Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"})
"""sentence-transformers modules that take a flat row; others see a padded rectangle."""


class TextEmbedder(FlatModel):
    """One text embedder on one device."""

    def __init__(self, spec: ModelSpec, folder: Path, device: Device) -> None:
        dtype = dtype_of(spec, device)
        self._reference = _load(spec, folder, device.name, dtype)
        transformer: Any = self._reference[0]
        network = transformer.auto_model
        tokenizer = TextTokenizer(
            transformer.tokenizer,
            max_tokens(network, transformer.max_seq_length, spec.max_length),
            network.get_input_embeddings().weight.shape[0],
        )
        prompts = Prompts(
            {**self._reference.prompts, **spec.prompts}, spec.default_prompt or self._reference.default_prompt_name
        )
        super().__init__(device, network, tokenizer, prompts, dtype)
        modules = list(self._reference)
        self._normalizes = isinstance(modules[-1], Normalize)
        self._chain = modules[:-1] if self._normalizes else modules
        self._excludes_prompt = any(not getattr(module, "include_prompt", True) for module in modules)
        self._width = int(self._reference.truncate_dim or self._reference.get_embedding_dimension() or 0)
        device.settle_weights(self._reference)
        self.hold(self._reference)

    # -- what the load-time check needs ------------------------------------------------------------------------

    def can_pack(self) -> str | None:
        """Why this architecture can't take a flat row; None when it can."""
        if not getattr(self._network, "_supports_attention_backend", False):
            return f"{type(self._network).__name__} has no attention interface"
        odd = {type(module).__name__ for module in self._reference} - PACKABLE_MODULES
        return f"modules that need padding: {', '.join(sorted(odd))}" if odd else None

    def reference_vectors(self, texts: Sequence[str]) -> list[Row]:
        """What sentence-transformers computes for each text alone, behind the prompt of a request that names none.

        Only while `use("buckets")` is in force.
        """
        self._reference.max_seq_length = self._tokenizer.default_limit.max_tokens
        prompt = self._prompts.text(None)  # not always the library's own: the registry may name another
        return [self._reference.encode(text, prompt=prompt, show_progress_bar=False) for text in texts]

    def settle(self, execution_reason: str) -> None:
        """Fix the facts after the load-time check chose the path."""
        pooling = next((str(each.pooling_mode) for each in self._reference if isinstance(each, Pooling)), None)
        self._settle(self._reference, execution_reason, dimensions=self._width, pooling=pooling)

    # -- the contract ------------------------------------------------------------------------------------------

    def prepare(self, job: Job) -> list[Prepared]:
        """Tokenize each text behind its prompt; see Model.prepare."""
        if any(isinstance(item, Pair | Picture) for item in job.inputs):
            raise UnsupportedCapability("this model embeds texts, neither pairs nor pictures", param="input")
        finish = self._finish(job)
        prompt = self._prompts.text(job.prompt_name, job.prompt_optional)
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

    def close(self) -> None:
        """Let go of every tensor."""
        self.decelerate()
        self.empty()
        del self._network, self._reference, self._chain

    # -- parts -------------------------------------------------------------------------------------------------

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


def _load(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> SentenceTransformer:
    if is_adapter(folder):
        reference = load_embedder_adapter(spec, folder, device, dtype)
    else:
        reference = open_library(SentenceTransformer, spec, folder, device, dtype)
    return settled(reference, spec)
