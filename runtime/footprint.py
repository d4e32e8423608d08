"""What a model takes of its device's memory: weights, graphs, what the process keeps for it, a batch's workspace."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_BUDGET_PART = 8
"""A batch budget may shrink to this part before anybody is evicted: smaller batches would waste the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes a model holds or may need on its device."""

    weight_bytes: int = 0
    graph_bytes: int = 0
    """Captured graphs and their inputs, beside the weights."""
    host_bytes: int = 0
    """What the process keeps for it beside the weights, its tokenizers above all, and keeps while it is offloaded. 0
    where the device's memory isn't the process's own."""
    activation_bytes: int = 0
    """The largest batch's workspace in one lane."""
    fixed_bytes: int = 0
    """The part of that workspace which every batch needs, however small."""
    budget_tokens: int = 0
    """Tokens of that largest batch, which may be made smaller; 0: it can't."""
    measured: bool = False
    """False: predicted from the checkpoint's headers; True: read after loading."""

    @property
    def resident_bytes(self) -> int:
        """Held whether a batch runs or not."""
        return self.weight_bytes + self.graph_bytes + self.host_bytes

    @property
    def least_tokens(self) -> int:
        """The smallest batch budget that still makes sense."""
        return max(self.budget_tokens // LEAST_BUDGET_PART, 1) if self.budget_tokens else 0

    @property
    def least_activation_bytes(self) -> int:
        """Workspace of the smallest batch budget."""
        return self.activation_of(self.least_tokens) if self.budget_tokens else self.activation_bytes

    def activation_of(self, tokens: int) -> int:
        """Workspace of a batch of `tokens`, by the line through the largest batch. Only with a budget."""
        return self.fixed_bytes + -(-(self.activation_bytes - self.fixed_bytes) * tokens // self.budget_tokens)

    def tokens_within(self, workspace_bytes: int) -> int:
        """The largest budget whose workspace fits; at least the smallest, at most the wanted one."""
        if workspace_bytes >= self.activation_bytes or self.activation_bytes <= self.fixed_bytes:
            return self.budget_tokens
        share = (workspace_bytes - self.fixed_bytes) * self.budget_tokens // (self.activation_bytes - self.fixed_bytes)
        return max(share, self.least_tokens)
