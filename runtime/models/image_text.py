"""One vector for a text or a picture in one space: CLIP and SigLIP.

In sentence-transformers' layout its modules run as they are; a plain checkpoint runs through transformers' own
`get_text_features` and `get_image_features`, and its vectors are made unit vectors, as their users do. Items of equal
shape share a forward, so nothing is padded but what the family itself pads (SigLIP, always to its full length).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from runtime.devices.base import Device, LayerSwap
from runtime.errors import InvalidDimensions, UnsupportedCapability
from runtime.models.base import Execution, Flight, Model, ModelFacts, Vocabulary
from runtime.models.exactness import probe_texts
from runtime.models.finishing import send_vectors
from runtime.models.image_text_towers import Towers, load_towers
from runtime.models.limits import page_activation_bytes_per_token
from runtime.models.multi_vector_exactness import PROBE_SHAPES, Probe, as_picture, choose_layout, probe_page
from runtime.models.parking import ParkableModel
from runtime.models.prompts import Prompts
from runtime.models.tokenizing import Limit, TextTokenizer
from runtime.models.vocabulary import FastVocabulary
from runtime.pictures import decode
from runtime.registry import ModelSpec
from runtime.work import Finish, Input, Job, Picture, Prepared, Row, Task, rough_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPicture(Prepared):
    """A picture as pixels; its token ids are all zero and only count patches."""

    pixels: NDArray[np.float32] = field(repr=False)
    """`(channels, height, width)`"""


class ImageTextEmbedder(ParkableModel):
    """One model for texts and pictures on one device."""

    def __init__(self, spec: ModelSpec, folder: Path, device: Device) -> None:
        self._device = device
        self._dtype = getattr(torch, device.default_dtype if spec.dtype == "auto" else spec.dtype)
        self._towers: Towers = load_towers(spec, folder, device.name, self._dtype)
        self._prompts = Prompts(
            {**self._towers.prompts, **spec.prompts}, spec.default_prompt or self._towers.default_prompt
        )
        self._width = 0
        self.execution: Execution = "equal-length"
        device.settle_weights(self._towers.network)
        self.hold(self._towers.network)

    # -- what the load-time check needs ------------------------------------------------------------------------

    @property
    def half(self) -> bool:
        """Whether arithmetic is in half precision."""
        return bool(self._dtype.itemsize == 2)

    def use(self, execution: Execution) -> None:
        """Switch how batches are laid out: `equal-length` or `one-by-one`. Not while a batch is in flight."""
        self.execution = execution

    def reference_row(self, item: str | Image.Image) -> Row:
        """What the reference library computes for an input alone, a text behind its usual prompt."""
        row = self._towers.reference(item, self._prompts.text(None))
        self._width = len(row)
        return row

    def layer_swaps(self) -> Sequence[Sequence[LayerSwap]]:
        """Groups of faster layers; of each group one may be put in place, the fastest first."""
        return [self._device.layer_swaps(self._towers.network)]

    def settle(self, execution_reason: str) -> None:
        """Fix the facts after the load-time check chose the layout."""
        weights = list(self._towers.network.parameters()) + list(self._towers.network.buffers())
        self.facts = ModelFacts(
            dimensions=self._width,
            modalities=("text", "image"),
            max_tokens=self._towers.tokenizer.default_limit.max_tokens,
            dtype=str(self._dtype).removeprefix("torch."),
            execution=self.execution,
            execution_reason=execution_reason,
            prompts=self._prompts.names,
            weight_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
            activation_bytes_per_token=page_activation_bytes_per_token(
                self._towers.network.config.to_dict(), self._dtype.itemsize
            ),
        )

    # -- the contract ------------------------------------------------------------------------------------------

    def cost(self, item: Input) -> int:
        """A picture's patches; about a text's tokens. See Model.cost."""
        if isinstance(item, Picture):
            return self._towers.patches
        return self._towers.padded_tokens or min(rough_tokens(item), self.facts.max_tokens)

    def vocabulary(self) -> Vocabulary:
        """See Model.vocabulary."""
        if isinstance(self._towers.tokenizer, TextTokenizer):
            return FastVocabulary(self._towers.tokenizer.uncut, self._prompts)
        return super().vocabulary()

    def prepare(self, job: Job) -> list[Prepared]:
        """Tokenize each text behind its prompt and scale each picture; see Model.prepare."""
        finish = self._finish(job)
        prompt = self._prompts.text(job.prompt_name, job.prompt_optional)
        places = [index for index, item in enumerate(job.inputs) if isinstance(item, str)]
        texts = [f"{prompt}{job.inputs[index]}" for index in places]
        encoded = iter(self._towers.tokenizer.encode(texts, self._limit(job), places))
        items: list[Prepared] = []
        for item in job.inputs:
            if isinstance(item, Picture):
                items.append(self._picture(item))
            elif isinstance(item, str):
                items.append(self._padded(next(encoded)))
            else:
                raise UnsupportedCapability("this model embeds texts and pictures only", param="input")
        return [replace(item, finish=finish) for item in items]

    def launch(self, items: Sequence[Prepared]) -> Flight:
        """Run one batch: vectors `(dim,)`, float32."""
        groups = self._groups(items)
        with torch.inference_mode():
            vectors = torch.cat([self._vectors([items[i] for i in group]) for group in groups])
            order = [index for group in groups for index in group]
            return send_vectors(self._device, vectors, order, [item.finish for item in items])

    def close(self) -> None:
        """Let go of every tensor."""
        self.empty()
        del self._towers

    # -- parts -------------------------------------------------------------------------------------------------

    def _picture(self, picture: Picture) -> Prepared:
        made = self._towers.image_processor(images=[decode(picture)], return_tensors="pt")
        return PreparedPicture(
            token_ids=np.zeros(self._towers.patches, dtype=np.int32),
            pixels=made["pixel_values"][0].numpy().astype(np.float32, copy=False),
        )

    def _padded(self, item: Prepared) -> Prepared:
        """SigLIP was trained on texts padded to its full length, padding attended to."""
        missing = self._towers.padded_tokens - item.tokens
        if missing <= 0:
            return item
        padding = np.full(missing, self._towers.tokenizer.pad_id, dtype=np.int32)
        return replace(item, token_ids=np.append(item.token_ids, padding))

    def _groups(self, items: Sequence[Prepared]) -> list[list[int]]:
        """Texts of equal length, and pictures, share a forward."""
        if self.execution == "one-by-one":
            return [[index] for index in range(len(items))]
        groups: dict[object, list[int]] = {}
        for index, item in enumerate(items):
            key = item.pixels.shape if isinstance(item, PreparedPicture) else item.tokens
            groups.setdefault(key, []).append(index)
        return list(groups.values())

    def _vectors(self, group: Sequence[Prepared]) -> torch.Tensor:
        pictures = [item.pixels for item in group if isinstance(item, PreparedPicture)]
        if pictures:
            bits = self._device.upload({"pixels": np.stack(pictures).view(np.int32)})["pixels"]
            return self._towers.embed({"pixel_values": bits.view(torch.float32).to(self._dtype)}, "image")
        ids = np.stack([item.token_ids for item in group])
        arrays = {"input_ids": ids}
        if self._towers.masks_text:
            arrays["attention_mask"] = np.ones_like(ids)
        features = {name: tensor.long() for name, tensor in self._device.upload(arrays).items()}
        return self._towers.embed(features, "text")

    def _finish(self, job: Job) -> Finish:
        if job.dimensions is not None and not 1 <= job.dimensions <= self._width:
            raise InvalidDimensions(f"dimensions must be between 1 and {self._width} for this model")
        normalize = (self._towers.normalizes or job.dimensions is not None) if job.normalize is None else job.normalize
        return Finish(dimensions=job.dimensions, normalize=normalize)

    def _limit(self, job: Job) -> Limit:
        default = self._towers.tokenizer.default_limit
        longest = min(default.max_tokens, job.max_tokens or default.max_tokens)
        return Limit(max_tokens=longest, truncate=job.truncate, side=job.truncation_side or default.side)


def load_image_text_embedder(spec: ModelSpec, folder: Path, device: Device) -> Model:
    """An ImageTextEmbedder whose batches were found equal to the reference. Raises UnsupportedModel."""
    model = ImageTextEmbedder(spec, folder, device)
    pages = [probe_page(width, height) for width, height in PROBE_SHAPES]
    texts = probe_texts(None)
    row: Callable[[str | Image.Image], Row] = model.reference_row
    inputs: list[Input] = [*map(as_picture, pages), *texts]
    probe = Probe(inputs=inputs, reference=[*map(row, pages), *map(row, texts)])
    model.settle(choose_layout(model, [probe], ("equal-length", "one-by-one"), Task.EMBED))
    return model
