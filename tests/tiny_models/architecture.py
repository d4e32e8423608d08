"""What all tiny models share: their sizes, how a config is made, and weights that look like trained ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

HIDDEN = 64
HEADS = 4
HEAD_WIDTH = HIDDEN // HEADS
# Wider than the usual 0.02, so that different texts get clearly different vectors from two layers.
WEIGHT_DEVIATION = 0.1
# Far below the lengths of the tests' texts, so that local attention shows.
WINDOW_TOKENS = 32
# RoBERTa's kin count positions from the padding id + 1, so 512 tokens need 514 rows.
OFFSET_POSITIONS = 514

ENCODER: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "initializer_range": WEIGHT_DEVIATION,
}
ROBERTA: dict[str, Any] = {**ENCODER, "max_position_embeddings": OFFSET_POSITIONS, "type_vocab_size": 1}
# Four layers, of which ModernBERT makes the first and the last global.
MODERNBERT: dict[str, Any] = {**ENCODER, "num_hidden_layers": 4, "local_attention": WINDOW_TOKENS}
DECODER: dict[str, Any] = {
    **ENCODER,
    "num_key_value_heads": HEADS // 2,
    "head_dim": HEAD_WIDTH,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Architecture:
    """A tokenizer and a config; `shape` goes to the config as it is, over what the tokenizer implies."""

    vocabulary: Callable[[], PreTrainedTokenizerFast]
    config: Callable[..., PreTrainedConfig]
    shape: Mapping[str, Any]

    def configure(self, tokenizer: PreTrainedTokenizerFast, **task: Any) -> PreTrainedConfig:
        """Return the config for `tokenizer`'s vocabulary; `task` holds what the model's head needs."""
        return self.config(**{"vocab_size": len(tokenizer), **special_ids(tokenizer), **self.shape, **task})


def special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Return the config's `*_token_id` entries: the defaults lie far outside a small vocabulary.

    ModernBERT wants all four ids of the frame, whichever two of them the tokenizer has.
    """
    first = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
    last = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "mask_token_id": tokenizer.mask_token_id,
        "bos_token_id": first,
        "cls_token_id": first,
        "eos_token_id": last,
        "sep_token_id": last,
    }
    return {name: token_id for name, token_id in ids.items() if token_id is not None}


def fill_zeros(model: torch.nn.Module) -> None:
    """Draw biases and padding rows at random, as training leaves them; fresh ones are all zero.

    Zeros would hide a forgotten bias, and turn a normalised padding position into 0/0.
    """
    for module in model.modules():
        bias = getattr(module, "bias", None)
        with torch.no_grad():
            if isinstance(bias, torch.nn.Parameter):
                bias.normal_(0, WEIGHT_DEVIATION)
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].normal_(0, WEIGHT_DEVIATION)
