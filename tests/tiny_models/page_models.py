"""Tiny page-image models, one per family of colpali-engine, small enough for tests on a CPU."""

from pathlib import Path
from typing import Any

import transformers
from colpali_engine import models as late_interaction
from transformers import PreTrainedTokenizerFast, SiglipImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

from . import vocabularies
from .architecture import (
    DECODER,
    HEAD_WIDTH,
    HIDDEN,
    MODERNBERT,
    WEIGHT_DEVIATION,
    fill_zeros,
    special_ids,
)

PALIGEMMA_PIXELS, PALIGEMMA_PATCH = 112, 14
QWEN_PATCH, QWEN_MERGE, QWEN_MAX_TOKENS = 14, 2, 64
TILE_PIXELS, TILE_PATCH, TILE_SHRINK, TILES_PER_SIDE = 64, 8, 4, 4
TILE_TOKENS = (TILE_PIXELS // TILE_PATCH // TILE_SHRINK) ** 2
VISION_WIDTH = 32


def save_colpali(folder: Path) -> None:
    """Write ColPali (SigLIP and Gemma): every page becomes 64 image tokens."""
    tokens = (PALIGEMMA_PIXELS // PALIGEMMA_PATCH) ** 2
    # The processor reads `image_seq_length` from the image processor and from nowhere else.
    image_processor = SiglipImageProcessor(
        size={"height": PALIGEMMA_PIXELS, "width": PALIGEMMA_PIXELS}, image_seq_length=tokens
    )
    processor = late_interaction.ColPaliProcessor(image_processor, vocabularies.gemma_bpe(framed=False))
    # Only now: the processor has added its 1,152 location and segment tokens.
    vocabulary_size = len(processor.tokenizer)
    config = transformers.PaliGemmaConfig(
        vision_config=_siglip(PALIGEMMA_PIXELS, PALIGEMMA_PATCH),
        text_config=_text("gemma", processor.tokenizer, DECODER),
        image_token_index=processor.image_token_id,
        vocab_size=vocabulary_size,
        projection_dim=HIDDEN,
        hidden_size=HIDDEN,
    )
    _save(late_interaction.ColPali(config), processor, folder)


def save_colqwen2(folder: Path) -> None:
    """Write ColQwen2: up to 64 image tokens, as many as the page's shape asks for."""
    processor = _qwen_processor(late_interaction.ColQwen2Processor)
    vision = _qwen_vision(embed_dim=VISION_WIDTH, hidden_size=HIDDEN, mlp_ratio=2)
    config = transformers.Qwen2VLConfig(vision_config=vision, **_qwen_text(processor.tokenizer))
    _save(late_interaction.ColQwen2(config), processor, folder)


def save_colqwen2_5(folder: Path) -> None:
    """Write ColQwen2.5: like ColQwen2, with windows of 112 pixels in the vision tower's first layer."""
    processor = _qwen_processor(late_interaction.ColQwen2_5_Processor)
    vision = _qwen_vision(
        hidden_size=VISION_WIDTH,
        out_hidden_size=HIDDEN,
        intermediate_size=2 * VISION_WIDTH,
        window_size=8 * QWEN_PATCH,
        fullatt_block_indexes=[1],
    )
    config = transformers.Qwen2_5_VLConfig(vision_config=vision, **_qwen_text(processor.tokenizer))
    _save(late_interaction.ColQwen2_5(config), processor, folder)


def save_colidefics3(folder: Path) -> None:
    """Write ColIdefics3 (ColSmol: SigLIP tiles and Llama): 4 tokens for each tile and for the page."""
    processor = _tile_processor(late_interaction.ColIdefics3Processor, "<|im_start|>")
    vision = _siglip(TILE_PIXELS, TILE_PATCH)
    for unknown in ("model_type", "vision_use_head"):
        del vision[unknown]
    config = transformers.Idefics3Config(
        vision_config=vision,
        text_config=_text("llama", processor.tokenizer, DECODER),
        scale_factor=TILE_SHRINK,
        image_token_id=processor.image_token_id,
    )
    _save(late_interaction.ColIdefics3(config), processor, folder)


def save_colmodernvbert(folder: Path) -> None:
    """Write ColModernVBert (SigLIP tiles and ModernBERT): the tiles of ColIdefics3."""
    processor = _tile_processor(late_interaction.ColModernVBertProcessor, "<|begin_of_text|>")
    config = transformers.ModernVBertConfig(
        vision_config=_siglip(TILE_PIXELS, TILE_PATCH),
        text_config=_text("modernbert", processor.tokenizer, MODERNBERT),
        pixel_shuffle_factor=TILE_SHRINK,
        image_token_id=processor.image_token_id,
    )
    _save(late_interaction.ColModernVBert(config), processor, folder)


def _save(model: Any, processor: Any, folder: Path) -> None:
    fill_zeros(model)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def _siglip(pixels: int, patch: int) -> dict[str, Any]:
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": VISION_WIDTH,
        "intermediate_size": 2 * VISION_WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": pixels,
        "patch_size": patch,
        "vision_use_head": False,
        "initializer_range": WEIGHT_DEVIATION,
    }


def _text(model_type: str, tokenizer: PreTrainedTokenizerFast, shape: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": model_type, "vocab_size": len(tokenizer), **special_ids(tokenizer), **shape}


def _qwen_processor(processor: Any) -> Any:
    pixels_per_token = (QWEN_PATCH * QWEN_MERGE) ** 2
    shape: dict[str, Any] = {
        "patch_size": QWEN_PATCH,
        "temporal_patch_size": 2,
        "merge_size": QWEN_MERGE,
        # Not edges, whatever their names say: numbers of pixels.
        "size": {
            "shortest_edge": 4 * pixels_per_token,
            "longest_edge": QWEN_MAX_TOKENS * pixels_per_token,
        },
    }
    tokenizer = vocabularies.qwen_bpe(append_end=False)
    return processor(Qwen2VLImageProcessor(**shape), tokenizer, Qwen2VLVideoProcessor(**shape))


def _qwen_vision(**family: Any) -> dict[str, Any]:
    return {
        "depth": 2,
        "num_heads": 2,
        "patch_size": QWEN_PATCH,
        "spatial_merge_size": QWEN_MERGE,
        "temporal_patch_size": 2,
        **family,
    }


def _qwen_text(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    token_id = tokenizer.convert_tokens_to_ids
    # The sections of the rotary embedding (time, height, width) must sum to half a head's width.
    sections = [HEAD_WIDTH // 2 - 6, 3, 3]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
    shape = {name: size for name, size in DECODER.items() if name != "head_dim"}
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    return {
        "text_config": {"vocab_size": len(tokenizer), "rope_parameters": rope, **ids, **shape},
        "image_token_id": token_id("<|image_pad|>"),
        "video_token_id": token_id("<|video_pad|>"),
        "vision_start_token_id": token_id("<|vision_start|>"),
        "vision_end_token_id": token_id("<|vision_end|>"),
    }


def _tile_processor(processor: Any, start: str) -> Any:
    image_processor = transformers.Idefics3ImageProcessor(
        size={"longest_edge": TILES_PER_SIDE * TILE_PIXELS}, max_image_size={"longest_edge": TILE_PIXELS}
    )
    tokenizer = vocabularies.idefics_bpe(start)
    return processor(image_processor=image_processor, tokenizer=tokenizer, image_seq_len=TILE_TOKENS)


PAGE_MODELS = {
    "colpali": save_colpali,
    "colqwen2": save_colqwen2,
    "colqwen2-5": save_colqwen2_5,
    "colidefics3": save_colidefics3,
    "colmodernvbert": save_colmodernvbert,
}
