"""Tiny CLIP and SigLIP, as transformers saves them and in sentence-transformers' layout."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from . import vocabularies
from .architecture import HEADS, HIDDEN, WEIGHT_DEVIATION, fill_zeros

PIXELS, PATCH = 64, 16
TEXT_TOKENS = 40


def save_clip(folder: Path) -> None:
    """CLIP: the vector of a text is its end token's."""
    tokenizer = vocabularies.clip_bpe(TEXT_TOKENS)
    config = transformers.CLIPConfig(
        text_config={
            **_tower(),
            "vocab_size": len(tokenizer),
            "max_position_embeddings": TEXT_TOKENS,
            **_ids(tokenizer),
        },
        vision_config=_vision(),
        projection_dim=HIDDEN // 2,
    )
    images = transformers.CLIPImageProcessor(size={"shortest_edge": PIXELS}, crop_size=PIXELS)
    _save(transformers.CLIPModel(config), transformers.CLIPProcessor(images, tokenizer), folder)


def save_siglip(folder: Path) -> None:
    """SigLIP: every text is padded to 24 tokens, and the padding is attended to."""
    tokenizer = vocabularies.siglip_bpe(24)
    config = transformers.SiglipConfig(
        text_config={**_tower(), "vocab_size": len(tokenizer), "max_position_embeddings": 24, **_ids(tokenizer)},
        vision_config=_vision(),
    )
    images = transformers.SiglipImageProcessor(size={"height": PIXELS, "width": PIXELS})
    _save(transformers.SiglipModel(config), transformers.SiglipProcessor(images, tokenizer), folder)


def save_clip_modules(folder: Path) -> None:
    """CLIP as one module of sentence-transformers, not normalised: the layout of `clip-ViT-B-32`."""
    with TemporaryDirectory() as plain:
        save_clip(Path(plain))
        library = SentenceTransformer(modules=[Transformer(plain)], device="cpu")
        library.save_pretrained(str(folder), create_model_card=False)


def _tower() -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "initializer_range": WEIGHT_DEVIATION,
    }


def _vision() -> dict[str, Any]:
    return {**_tower(), "image_size": PIXELS, "patch_size": PATCH}


def _ids(tokenizer: Any) -> dict[str, int]:
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id or 0,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _save(network: Any, processor: Any, folder: Path) -> None:
    fill_zeros(network)
    network.save_pretrained(folder)
    processor.save_pretrained(folder)


IMAGE_TEXT: dict[str, Callable[[Path], None]] = {
    "clip": save_clip,
    "clip-modules": save_clip_modules,
    "siglip": save_siglip,
}
