"""The last layer of a BERT-like encoder, run for the first tokens only where nothing else is read of its output.

Attention mixes all tokens of a sequence; what follows it in a layer (projection, feed-forward, norms) treats each token
for itself. A head that reads the first token of each sequence needs no more of the last layer than that: of a reranker
with 6 layers, an eighth of all products is saved.
"""

from __future__ import annotations

import torch
from torch.utils.hooks import RemovableHandle

from runtime.devices.base import LayerSwap
from runtime.models.attention import AttentionPlan, current_plan


class FirstTokensOnly(LayerSwap):
    """Puts a gate before what follows the last layer's attention. Flat rows only; rectangles pass whole."""

    name = "last layer for first tokens only"

    def __init__(self, after_attention: torch.nn.Module) -> None:
        """`after_attention`: the last layer's module that takes attention's output and the layer's input."""
        self._after_attention = after_attention
        self._gate: RemovableHandle | None = None

    @property
    def applied(self) -> bool:
        """Whether a flat row's last states are those of first tokens, `(1, items, hidden)`."""
        return self._gate is not None

    def apply(self) -> None:
        """See LayerSwap."""
        self._gate = self._after_attention.register_forward_pre_hook(_first_tokens_of_all)

    def undo(self) -> None:
        """See LayerSwap."""
        if self._gate is not None:
            self._gate.remove()
        self._gate = None


def first_tokens(boundaries: torch.Tensor, tokens: int) -> torch.Tensor:
    """Places of the first tokens, `(items,)`, int64.

    Boundaries may repeat at the end of the row (unused slots of a captured graph); their places mean nothing.
    """
    return boundaries[:-1].long().clamp(max=tokens - 1)


def module_after_attention(backbone: torch.nn.Module) -> torch.nn.Module | None:
    """Of the last layer, in the structure that BERT, RoBERTa, XLM-RoBERTa, ELECTRA and their like share."""
    layers = getattr(getattr(backbone, "encoder", None), "layer", None)
    if not isinstance(layers, torch.nn.ModuleList) or not len(layers) or hasattr(layers[-1], "crossattention"):
        return None
    module = getattr(getattr(layers[-1], "attention", None), "output", None)
    return module if isinstance(module, torch.nn.Module) else None


def _first_tokens_of_all(module: torch.nn.Module, states: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
    plan: AttentionPlan | None = current_plan()
    if plan is None:
        return None
    places = first_tokens(plan.boundaries, states[0].shape[1])
    return tuple(each.index_select(1, places) for each in states)
