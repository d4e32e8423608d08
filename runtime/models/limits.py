"""What an architecture allows: most tokens, first position, workspace per token. Reads a network, runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

UNBOUNDED_TOKENS = 100_000_000
"""A tokenizer without a limit reports an astronomical one."""
ACTIVATION_WIDTHS_PER_TOKEN = 17
"""Workspace of one token in hidden widths: 11 in a dry run, times 1.5 for what the allocator adds."""


def position_offset(network: torch.nn.Module) -> int:
    """The first position id: RoBERTa-like tables start behind their padding row, all others at 0."""
    for module in network.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), torch.nn.Embedding):
            return padding + 1
    return 0


def max_tokens(network: Any, tokenizer_limit: int | None, wanted: int | None) -> int:
    """The smallest of: sentence-transformers' limit, the tokenizer's, the position table's, and the registry's."""
    limits = [tokenizer_limit, wanted, _config_positions(network), _table_positions(network)]
    known = [int(limit) for limit in limits if limit is not None and 0 < limit <= UNBOUNDED_TOKENS]
    return min(known, default=8192)


def _config_positions(network: Any) -> int | None:
    positions = getattr(network.config, "max_position_embeddings", None)
    # -1 (DeBERTa without a table) and rotary models without a bound mean "no limit here".
    return positions - position_offset(network) if isinstance(positions, int) and positions > 0 else None


def _table_positions(network: torch.nn.Module) -> int | None:
    """Rows of the learned position table, when there is one: config and weights may disagree."""
    for module in network.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding):
            return table.num_embeddings - position_offset(network)
    return None


def text_limit(config: Any, tokenizer: Any, wanted: int | None) -> int:
    """Most tokens of a text to a model that also sees: of its text part's positions, tokenizer and the registry."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    known = [limit for limit in (positions, tokenizer.model_max_length, wanted) if isinstance(limit, int)]
    return min((limit for limit in known if 0 < limit <= UNBOUNDED_TOKENS), default=8192)


def page_activation_bytes_per_token(config: Mapping[str, Any], item_bytes: int) -> int:
    """Prior for a page's workspace: a token of text, and the patches of the picture that are merged into it."""
    text = activation_bytes_per_token(config.get("text_config") or config, item_bytes)
    vision = config.get("vision_config") or {}
    merged = vision.get("spatial_merge_size") or config.get("scale_factor") or config.get("pixel_shuffle_factor") or 1
    width = vision.get("embed_dim") or vision.get("hidden_size") or 1152
    return text + int(merged) ** 2 * ACTIVATION_WIDTHS_PER_TOKEN * int(width) * item_bytes


def activation_bytes_per_token(config: Mapping[str, Any], item_bytes: int) -> int:
    """Prior for a batch's workspace, replaced by measurement where the device can measure.

    `config`: the checkpoint's config.json. Architectures write the width under several names.
    """
    widths = [config.get(name) for name in ("hidden_size", "d_model", "dim", "n_embd")]
    width = next((int(width) for width in widths if isinstance(width, int)), 768)
    inner = config.get("intermediate_size")
    return ACTIVATION_WIDTHS_PER_TOKEN * max(width, inner // 4 if isinstance(inner, int) else 0) * item_bytes
