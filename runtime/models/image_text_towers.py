"""The two towers of CLIP and SigLIP, from sentence-transformers' layout or from a plain transformers checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from torch.nn import functional
from transformers import AutoModel, AutoProcessor, PreTrainedTokenizerFast

from runtime.errors import InputTooLong
from runtime.models.limits import text_limit
from runtime.models.tokenizing import WINDOW_CHARS_PER_TOKEN, Limit, TextTokenizer
from runtime.registry import ModelSpec
from runtime.work import Prepared, Row

Features: TypeAlias = dict[str, torch.Tensor]
Side: TypeAlias = Literal["text", "image"]


class Tokenizing(Protocol):
    """What turns texts into ids."""

    default_limit: Limit
    pad_id: int

    def encode(self, texts: Sequence[str], limit: Limit, places: Sequence[int] | None = None) -> list[Prepared]:
        """See TextTokenizer.encode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Towers:
    """A loaded model."""

    network: Any
    """Holds every weight."""
    image_processor: Any
    tokenizer: Tokenizing
    padded_tokens: int
    """Every text is padded to so many tokens; 0: none is padded."""
    masks_text: bool
    """The text tower takes an attention mask."""
    patches: int
    """What a picture costs in tokens."""
    normalizes: bool
    """Vectors end as unit vectors; `embed` leaves that to be done."""
    prompts: Mapping[str, str | None]
    default_prompt: str | None
    embed: Callable[[Features, Side], torch.Tensor]
    """Vectors `(items, dim)` of texts or of pictures."""
    reference: Callable[[str | Image.Image, str], Row]
    """The library's own vector of one input; a text stands behind the prompt that comes second."""


class LockedTokenizer:
    """A tokenizer that is Python all through (SigLIP's), for one thread at a time."""

    def __init__(self, slow: Any, max_tokens: int) -> None:
        self._slow = slow
        self._lock = threading.Lock()
        self.default_limit = Limit(max_tokens=max_tokens)
        self.pad_id = int(slow.pad_token_id or 0)

    def encode(self, texts: Sequence[str], limit: Limit, places: Sequence[int] | None = None) -> list[Prepared]:
        """See TextTokenizer.encode; an over-long text loses its end, whatever side is asked for."""
        places = range(len(texts)) if places is None else places
        return [self._encode(text, limit, index) for index, text in zip(places, texts, strict=True)]

    def _encode(self, text: str, limit: Limit, index: int) -> Prepared:
        window = text[: 4 * limit.max_tokens * WINDOW_CHARS_PER_TOKEN]
        with self._lock:
            ids = self._slow(window)["input_ids"]
            cut = self._slow(window, truncation=True, max_length=limit.max_tokens)["input_ids"]
        if len(ids) > limit.max_tokens and not limit.truncate:
            raise InputTooLong(f"{{input}} has more tokens than the limit of {limit.max_tokens}", index=index)
        return Prepared(token_ids=np.array(cut, dtype=np.int32), truncated=len(ids) > limit.max_tokens)


def load_towers(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> Towers:
    """The checkpoint in `folder`, of either layout."""
    load = _from_sentence_transformers if (folder / "modules.json").is_file() else _from_transformers
    return load(spec, folder, device, dtype)


def _from_transformers(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> Towers:
    network = AutoModel.from_pretrained(str(folder), dtype=dtype, local_files_only=True)
    network.to(device).eval().requires_grad_(False)
    processor = AutoProcessor.from_pretrained(str(folder), local_files_only=True)
    limit = text_limit(network.config.text_config, processor.tokenizer, spec.max_length)
    pads = network.config.model_type.startswith("siglip")

    def embed(features: Features, side: Side) -> torch.Tensor:
        output = network.get_text_features(**features) if side == "text" else network.get_image_features(**features)
        vectors = getattr(output, "pooler_output", output)
        assert isinstance(vectors, torch.Tensor)
        return vectors

    def reference(item: str | Image.Image, prompt: str) -> Row:
        if isinstance(item, str):
            padding = "max_length" if pads else False
            text = f"{prompt}{item}"
            made = processor(text=[text], padding=padding, truncation=True, max_length=limit, return_tensors="pt")
        else:
            made = processor(images=[item], return_tensors="pt")
            made["pixel_values"] = made["pixel_values"].to(dtype)
        with torch.inference_mode():
            vectors = embed({name: tensor.to(device) for name, tensor in made.items()}, _side(item))
            return np.asarray(functional.normalize(vectors.float(), dim=-1)[0].cpu().numpy())

    return Towers(
        network=network,
        image_processor=processor.image_processor,
        tokenizer=_tokenizer(processor.tokenizer, network, limit),
        padded_tokens=limit if pads else 0,
        masks_text="attention_mask" in processor.tokenizer.model_input_names,
        patches=_patches(network.config),
        normalizes=True,
        prompts={},
        default_prompt=None,
        embed=embed,
        reference=reference,
    )


def _from_sentence_transformers(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> Towers:
    library = SentenceTransformer(str(folder), device=device, local_files_only=True, model_kwargs={"dtype": dtype})
    library.eval().requires_grad_(False)
    modules: list[Any] = list(library)
    first = modules[0]
    normalizes = isinstance(modules[-1], Normalize)
    chain = modules[:-1] if normalizes else modules
    limit = text_limit(first.auto_model.config.text_config, first.tokenizer, spec.max_length)
    first.max_seq_length = limit

    def embed(features: Features, side: Side) -> torch.Tensor:
        output: dict[str, Any] = {**features, "modality": side}
        for module in chain:
            output = module(output)
        vectors = output["sentence_embedding"]
        assert isinstance(vectors, torch.Tensor)
        return vectors

    def reference(item: str | Image.Image, prompt: str) -> Row:
        own = prompt if isinstance(item, str) else ""
        return np.asarray(library.encode(item, prompt=own, show_progress_bar=False))

    return Towers(
        network=first.auto_model if len(modules) == 1 else _whole(library, first.auto_model),
        image_processor=first.processor.image_processor,
        tokenizer=_tokenizer(first.tokenizer, first.auto_model, limit),
        padded_tokens=limit if _pads(first) else 0,
        masks_text="attention_mask" in first.tokenizer.model_input_names,
        patches=_patches(first.auto_model.config),
        normalizes=normalizes,
        prompts=library.prompts,
        default_prompt=library.default_prompt_name,
        embed=embed,
        reference=reference,
    )


def _whole(library: SentenceTransformer, network: Any) -> Any:
    """All modules as one, with the configuration of the first."""
    library.config = network.config
    return library


def _pads(first: Any) -> bool:
    """Whether the layout's own settings pad each text to the full length."""
    settings = getattr(first, "processing_kwargs", None) or {}
    return (settings.get("text") or {}).get("padding") == "max_length"


def _tokenizer(tokenizer: Any, network: Any, limit: int) -> Tokenizing:
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        return TextTokenizer(tokenizer, limit, int(network.config.text_config.vocab_size))
    return LockedTokenizer(tokenizer, limit)


def _patches(config: Any) -> int:
    vision = config.vision_config
    return int(vision.image_size // vision.patch_size) ** 2


def _side(item: str | Image.Image) -> Side:
    return "text" if isinstance(item, str) else "image"
