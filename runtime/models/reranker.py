"""Cross-encoders and classifiers: sentence-transformers' CrossEncoder, run on packed batches.

Encoders with a classification head, decoders with a score head, and language models whose next word is the judgement.
Loading, heads and templates are sentence-transformers'; tokenizing pairs, batching and packing are ours, so that each
row is what `CrossEncoder.predict` gives for that pair alone, before the activation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from runtime.devices.base import Device, LayerSwap
from runtime.errors import UnsupportedCapability, UnsupportedModel
from runtime.models.adapters import is_adapter, load_cross_encoder_adapter
from runtime.models.conversations import ConversationTokenizer
from runtime.models.exactness import Probes, choose_layout, probe_texts
from runtime.models.flat import FlatModel, dtype_of, open_library, settled
from runtime.models.heads import NetworkHead, head_of
from runtime.models.limits import max_tokens
from runtime.models.pairs import PairLimit, PairTokenizer
from runtime.models.prompts import Prompts
from runtime.registry import ModelSpec
from runtime.work import Input, Job, Pair, Prepared, Row, Task

PACKABLE_MODULES = frozenset({"Transformer", "LogitScore", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout"})
"""sentence-transformers modules that take a flat row, or what a head made of one."""
PROBE_QUERY = "word3 word1 word4"


class Reranker(FlatModel):
    """One cross-encoder or classifier on one device. Rows are logits `(labels,)`, float32."""

    def __init__(self, spec: ModelSpec, task: Task, folder: Path, device: Device) -> None:
        dtype = dtype_of(spec, device)
        self._reference = _load(spec, folder, device.name, dtype)
        transformer: Any = self._reference[0]
        network = transformer.auto_model
        tokenizer = PairTokenizer(
            transformer.tokenizer,
            max_tokens(network, transformer.max_seq_length, spec.max_length),
            network.get_input_embeddings().weight.shape[0],
        )
        prompts = Prompts(
            {**self._reference.prompts, **spec.prompts}, spec.default_prompt or self._reference.default_prompt_name
        )
        self._transformer = transformer
        super().__init__(device, network, tokenizer, prompts, dtype)
        self._task = task
        self.head = head_of(self._reference)
        if task is Task.RERANK and len(self.head.labels) != 1:
            raise UnsupportedModel(f"it has {len(self.head.labels)} labels; with several it can only classify")
        self._inputs = self._input_tokenizer(tokenizer)
        self._chain = list(self._reference)
        self._split = self._split_network()
        device.settle_weights(self._reference)
        self.hold(self._reference)

    # -- what the load-time check needs ------------------------------------------------------------------------

    def can_pack(self) -> str | None:
        """Why this architecture can't take a flat row; None when it can."""
        name = type(self._network).__name__
        if not getattr(self._network, "_supports_attention_backend", False):
            return f"{name} has no attention interface"
        if self._split is None and self._transformer.transformer_task != "feature-extraction":
            return f"{name} has no backbone apart from its head"
        odd = {type(module).__name__ for module in self._chain} - PACKABLE_MODULES
        return f"modules that need padding: {', '.join(sorted(odd))}" if odd else None

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        """See FlatModel.layer_swaps."""
        return [*([self._split.swaps] if self._split is not None else []), *super().layer_swaps()]

    def probes(self) -> Probes:
        """Pairs for a reranker, texts for a classifier, of lengths that tell layouts apart."""
        texts = probe_texts(self.window_tokens)
        inputs: list[Input] = [Pair(PROBE_QUERY, text) for text in texts] if self._task is Task.RERANK else [*texts]
        job = Job(id="exactness-check", model="", task=self._task, inputs=inputs)
        return Probes(job=job, reference=lambda: self.reference_logits(inputs), logits=True)

    def reference_logits(self, inputs: Sequence[Input]) -> list[Row]:
        """What sentence-transformers computes for each input alone. Only while `use("buckets")` is in force."""
        self._reference.max_seq_length = self._tokenizer.default_limit.max_tokens
        return [self._reference_logit(item) for item in inputs]

    def settle(self, execution_reason: str) -> None:
        """Fix the facts after the load-time check chose the path."""
        self._settle(self._reference, execution_reason, head=self.head)

    # -- the contract ------------------------------------------------------------------------------------------

    def prepare(self, job: Job) -> list[Prepared]:
        """Tokenize each pair or text; see Model.prepare."""
        limit = PairLimit(
            whole=self._limit(job), query_tokens=job.max_query_tokens, document_tokens=job.max_document_tokens
        )
        items = self._inputs.encode_inputs(
            self._readable(job), limit, self._prompts.text(job.prompt_name, job.prompt_optional)
        )
        if self._device.index_errors_are_fatal:
            self._check_ids(items)
        return items

    def close(self) -> None:
        """Let go of every tensor."""
        self.decelerate()
        self.empty()
        self._split = None
        del self._network, self._reference, self._transformer, self._chain, self._inputs

    # -- parts -------------------------------------------------------------------------------------------------

    def _readable(self, job: Job) -> list[str | Pair]:
        inputs = [item for item in job.inputs if isinstance(item, str | Pair)]
        if len(inputs) < len(job.inputs):
            raise UnsupportedCapability("this model reads texts and pairs of texts only", param="input")
        if job.task is Task.RERANK and any(isinstance(item, str) for item in inputs):
            raise UnsupportedCapability("reranking takes pairs of query and document", param="input")
        return inputs

    def _input_tokenizer(self, tokenizer: PairTokenizer) -> PairTokenizer | ConversationTokenizer:
        """sentence-transformers puts everything through the chat template where there is one."""
        if "message" not in self._transformer.modality_config:
            return tokenizer
        conversations = ConversationTokenizer(self._transformer, tokenizer)
        if self._task is Task.RERANK and conversations.pair_problem is not None:
            raise UnsupportedModel(
                f"the chat template can't carry a query and a document: {conversations.pair_problem}"
            )
        return conversations

    def _split_network(self) -> NetworkHead | None:
        """Backbone and head apart, where the score comes from a head of the network's own."""
        prefix = self._network.base_model_prefix
        if self._transformer.transformer_task == "feature-extraction" or not hasattr(self._network, prefix):
            return None
        return NetworkHead(self._network, generates=self._transformer.transformer_task == "text-generation")

    def _vectors(self, features: dict[str, Any], prompt_tokens: int) -> torch.Tensor:
        chain = self._chain
        if self._split is not None and ("cu_seq_lens_q" in features or self._split.reads_last):
            features = {self._transformer.module_output_name: self._split.run(features)}
            chain = chain[1:]
        else:
            features["modality"] = "text"
        for module in chain:
            features = module(features)
        scores: torch.Tensor = features["scores"]
        return scores.float()

    def _reference_logit(self, item: Input) -> Row:
        prompt = self._prompts.text(None)
        if isinstance(item, Pair):
            logits = self._reference.predict(
                [(item.query, item.document)],
                prompt=prompt,
                batch_size=1,
                show_progress_bar=False,
                activation_fn=torch.nn.Identity(),
            )
            return np.asarray(logits, dtype=np.float32).reshape(len(self.head.labels))
        # `predict` takes a list of texts for one pair, so a lone text goes through the steps that `predict` takes.
        with torch.inference_mode():
            features = self._reference.preprocess([item], prompt=prompt)
            features = {
                name: value.to(self._device.name) if isinstance(value, torch.Tensor) else value
                for name, value in features.items()
            }
            scores = self._reference(features)["scores"]
        row: Row = scores[0].float().cpu().numpy()
        return row


def load_reranker(spec: ModelSpec, task: Task, folder: Path, device: Device) -> Reranker:
    """A cross-encoder or classifier in the fastest layout that is exact. Raises UnsupportedModel."""
    if spec.backend != "torch":
        raise UnsupportedModel(f"backend: {spec.backend} runs text embedders only")
    model = Reranker(spec, task, folder, device)
    model.settle(choose_layout(model, spec.execution, model.half, model.probes()))
    return model


def _load(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> CrossEncoder:
    if is_adapter(folder):
        reference = load_cross_encoder_adapter(spec, folder, device, dtype)
    else:
        reference = open_library(CrossEncoder, spec, folder, device, dtype)
    return settled(reference, spec)
