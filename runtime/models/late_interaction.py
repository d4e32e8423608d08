"""Page-image models: colpali-engine's networks and processors, run on groups of pages of one grid.

A page and a text query are items of the same queue. Items of equal length and equal grid share a forward, so nothing
is ever padded, and each row is what colpali-engine gives for that input alone. Its traps are kept out here: no labels
and no logits over the vocabulary, `token_type_ids` where attention depends on them, no padding rows, our own device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from runtime.devices.base import Device, LayerSwap
from runtime.errors import InvalidDimensions, UnsupportedCapability
from runtime.models.base import Execution, Flight, Model, ModelFacts, Vocabulary
from runtime.models.limits import page_activation_bytes_per_token, text_limit
from runtime.models.multi_vector_exactness import PROBE_SHAPES, Probe, as_picture, choose_layout, probe_page
from runtime.models.multi_vectors import send_multi_vectors
from runtime.models.page_loading import load_page_model
from runtime.models.page_processing import PageProcessor, PreparedPage
from runtime.models.parking import ParkableModel
from runtime.models.prompts import Prompts, is_document
from runtime.models.tokenizing import Limit
from runtime.models.vocabulary import FastVocabulary
from runtime.registry import ModelSpec
from runtime.work import Finish, Input, Job, Picture, Prepared, Row, RowLayout, rough_tokens

PROBE_QUERIES = ("revenue by quarter", "revenue by quarter", "which table lists the parts of the pump and their price")
EXAMPLE_PIXELS = (640, 832)
"""Width and height of the page that a fresh model is timed with."""


class PageEmbedder(ParkableModel):
    """One page-image model on one device."""

    def __init__(self, spec: ModelSpec, folder: Path, device: Device) -> None:
        """Raises UnsupportedModel for a family that isn't known or a cap that it can't keep."""
        self._device = device
        self._dtype = getattr(torch, device.default_dtype if spec.dtype == "auto" else spec.dtype)
        loaded = load_page_model(spec, folder, device.name, self._dtype)
        self._family, self._network, self._library_processor = loaded.family, loaded.network, loaded.processor
        self._rules = loaded.rules
        self._processor = PageProcessor(loaded.family, loaded.processor, loaded.rules)
        self._limit = Limit(max_tokens=text_limit(self._network.config, loaded.processor.tokenizer, spec.max_length))
        self._prompts = Prompts({"query": "", "document": "", **spec.prompts}, spec.default_prompt or "query")
        self._width = int(self._network.dim)
        self.execution: Execution = "equal-length"
        device.settle_weights(self._network)
        self.hold(self._network)

    # -- what the load-time check needs ------------------------------------------------------------------------

    @property
    def half(self) -> bool:
        """Whether arithmetic is in half precision."""
        return bool(self._dtype.itemsize == 2)

    def reference_row(self, item: str | Image.Image) -> Row:
        """What colpali-engine computes for a prompted query or a page alone. `(tokens, dim)`, no padding rows."""
        processor = self._library_processor
        if isinstance(item, str):
            batch = processor.process_queries([f"{self._prompts.text('query')}{item}"])
        else:
            with self._rules.applied(item.width, item.height):
                batch = processor.process_images([item])
        batch = {name: tensor.to(self._device.name) for name, tensor in batch.items() if name != "labels"}
        with torch.inference_mode():
            rows = self._forward(batch)[0]
            mask = batch["attention_mask"][0].bool()
            return np.asarray(rows[mask].float().cpu().numpy())

    def use(self, execution: Execution) -> None:
        """Switch how batches are laid out: `equal-length` or `one-by-one`. Not while a batch is in flight."""
        self.execution = execution

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        """Groups of faster layers; of each group one may be put in place, the fastest first."""
        return [self._device.layer_swaps(self._network)]

    def settle(self, execution_reason: str) -> None:
        """Fix the facts after the load-time check chose the layout."""
        weights = list(self._network.parameters()) + list(self._network.buffers())
        self.facts = ModelFacts(
            dimensions=self._width,
            modalities=("text", "image"),
            max_tokens=self._limit.max_tokens,
            dtype=str(self._dtype).removeprefix("torch."),
            execution=self.execution,
            execution_reason=execution_reason,
            prompts=self._prompts.names,
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            activation_bytes_per_token=page_activation_bytes_per_token(
                self._network.config.to_dict(), self._dtype.itemsize
            ),
        )

    # -- the contract ------------------------------------------------------------------------------------------

    def cost(self, item: Input) -> int:
        """A picture's tokens exactly, a text's about; see Model.cost."""
        if isinstance(item, Picture):
            return self._processor.tokens_of(item)
        return min(rough_tokens(item) + self._processor.query_tokens, self._limit.max_tokens)

    def example(self) -> Input:
        """A page of a usual shape; see Model.example."""
        return as_picture(probe_page(*EXAMPLE_PIXELS))

    def vocabulary(self) -> Vocabulary:
        """See Model.vocabulary."""
        return FastVocabulary(self._processor.tokenizer, self._prompts)

    def prepare(self, job: Job) -> list[Prepared]:
        """Tokenize each text as a query, or as a document where the prompt says so, and cut up each picture."""
        finish = self._finish(job)
        name = self._prompts.name(job.prompt_name, job.prompt_optional)
        prompt, is_query = self._prompts.text(name), not is_document(name)
        limit = self._job_limit(job)
        items: list[Prepared] = []
        for index, item in enumerate(job.inputs):
            if isinstance(item, Picture):
                page = self._processor.picture(item)
            elif isinstance(item, str):
                page = self._processor.text(f"{prompt}{item}", limit, is_query, index)
            else:
                raise UnsupportedCapability("this model embeds texts and pictures only", param="input")
            items.append(replace(page, finish=finish))
        return items

    def layout_of(self, item: Prepared) -> RowLayout:
        """The tokens of a text, the patches of a picture; see Model.layout_of."""
        assert isinstance(item, PreparedPage)
        return self._processor.row_layout(item)

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Run one batch: multi-vectors `(tokens, dim)`, float32."""
        pages = [item for item in items if isinstance(item, PreparedPage)]
        assert len(pages) == len(items)
        pieces: list[tuple[int, torch.Tensor]] = []
        with torch.inference_mode():
            for group in self._groups(pages):
                rows = self._forward(self._features([pages[i] for i in group]))
                pieces += [(item, rows[place]) for place, item in enumerate(group)]
            return send_multi_vectors(self._device, pieces, [item.finish for item in items])

    def close(self) -> None:
        """Let go of every tensor."""
        self.empty()
        del self._network

    # -- parts -------------------------------------------------------------------------------------------------

    def _groups(self, pages: Sequence[PreparedPage]) -> list[list[int]]:
        """Which items share one forward: those of equal length and equal grid."""
        if self.execution == "one-by-one":
            return [[index] for index in range(len(pages))]
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, page in enumerate(pages):
            groups.setdefault(page.layout, []).append(index)
        return list(groups.values())

    def _features(self, pages: Sequence[PreparedPage]) -> dict[str, torch.Tensor]:
        """The group's arrays on the device, stacked, in one copy; pixels travel as the bits of their floats."""
        ids = np.stack([page.token_ids for page in pages])
        arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        for name in pages[0].arrays:
            arrays[name] = np.stack([page.arrays[name] for page in pages])
        pixels = {name for name, array in arrays.items() if array.dtype == np.float32}
        landed = self._device.upload({name: array.view(np.int32) for name, array in arrays.items()})
        return {
            name: tensor.view(torch.float32) if name in pixels else tensor.long() for name, tensor in landed.items()
        }

    def _forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        """Unit rows `(items, tokens, dim)` as colpali-engine's network computes them."""
        options: dict[str, Any] = dict(features)
        if self._family.zero_type_ids:
            options["token_type_ids"] = torch.zeros_like(features["input_ids"])
        if self._family.computes_logits:
            options["logits_to_keep"] = 1
        rows = self._network(**options)
        assert isinstance(rows, torch.Tensor)
        return rows

    def _finish(self, job: Job) -> Finish:
        if job.dimensions is not None and not 1 <= job.dimensions <= self._width:
            raise InvalidDimensions(f"dimensions must be between 1 and {self._width} for this model")
        # The network's rows are unit rows already, up to the rounding of half precision.
        return Finish(dimensions=job.dimensions, normalize=True if job.normalize is None else job.normalize)

    def _job_limit(self, job: Job) -> Limit:
        longest = min(self._limit.max_tokens, job.max_tokens or self._limit.max_tokens)
        return Limit(max_tokens=longest, truncate=job.truncate, side=job.truncation_side or self._limit.side)


def load_page_embedder(spec: ModelSpec, folder: Path, device: Device) -> Model:
    """A PageEmbedder whose batches were found equal to colpali-engine. Raises UnsupportedModel."""
    model = PageEmbedder(spec, folder, device)
    pages = [probe_page(width, height) for width, height in PROBE_SHAPES]
    probes = [
        Probe(inputs=list(map(as_picture, pages)), reference=list(map(model.reference_row, pages))),
        Probe(inputs=PROBE_QUERIES, prompt_name="query", reference=list(map(model.reference_row, PROBE_QUERIES))),
    ]
    model.settle(choose_layout(model, probes, ("equal-length", "one-by-one")))
    return model
