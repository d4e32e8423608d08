"""One attention function for every architecture: sequences of a flat row attend within themselves only.

Registered with transformers under a name that has no mask function, so that no mask is ever built
(`transformers.AttentionInterface`; a name without a mask function makes mask creation return None). The layout of
the batch reaches the function through a thread-local plan, since a model's forward passes on only what it knows.

Semantics follow transformers' own SDPA path: `is_causal` from the call or the module; a sliding window of w lets
query i see keys j with |i - j| < w; key/value heads are shared by groups of query heads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from transformers import AttentionInterface

from runtime.models.packing import Run

PACKED_ATTENTION = "cotenant_packed"
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where the sequences of the flat row lie. `boundaries`: int32 `(items + 1,)` on the row's device."""

    runs: Sequence[Run]
    boundaries: torch.Tensor
    longest: int
    _bands: dict[tuple[int, int, bool], torch.Tensor] = field(default_factory=dict)

    def band(self, length: int, window: int, causal: bool, device: torch.device) -> torch.Tensor:
        """`(length, length)` bool, True where a query may look; built once a batch, not once a layer."""
        key = (length, window, causal)
        if key not in self._bands:
            at = torch.arange(length, device=device)
            distance = at[:, None] - at[None, :]
            near = distance.abs() < window
            self._bands[key] = near & (distance >= 0) if causal else near
        return self._bands[key]


_current = threading.local()


@contextmanager
def attending(plan: AttentionPlan) -> Iterator[None]:
    """Make `plan` the layout for every attention call of this thread inside the block."""
    _current.plan = plan
    try:
        yield
    finally:
        _current.plan = None


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the flat row. query `(1, heads, tokens, dim)`, key and value with perhaps fewer heads.

    Returns `(1, tokens, heads, dim)`. Raises ValueError where a mask or a score term is asked for that a flat row
    can't honour; the load-time check then sends the model to the bucket path.
    """
    if attention_mask is not None or options.get("softcap") or options.get("s_aux") is not None:
        raise ValueError("packed attention takes no mask, soft cap or attention sink")
    causal = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", False)) if causal is None else bool(causal)
    plan: AttentionPlan = _current.plan
    attend = _varlen if query.is_cuda and query.dtype in _HALF else _by_runs
    out = attend(
        (query, key, value), plan, causal=causal, window=options.get("sliding_window"), scale=options.get("scaling")
    )
    return out, None


QKV: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _by_runs(qkv: QKV, plan: AttentionPlan, *, causal: bool, window: int | None, scale: float | None) -> torch.Tensor:
    """One SDPA call for each run of equal lengths; a run is a contiguous slice, so nothing is gathered."""
    grouped = qkv[0].shape[1] != qkv[1].shape[1]
    outs = []
    for start, count, length in plan.runs:
        q, k, v = (_sequences(t, start, count, length) for t in qkv)
        banded = window is not None and length > window
        mask = plan.band(length, int(window or 0), causal, q.device) if banded else None
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=grouped
        )
        outs.append(out.transpose(1, 2).reshape(1, count * length, q.shape[1], q.shape[3]))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)


def _sequences(flat: torch.Tensor, start: int, count: int, length: int) -> torch.Tensor:
    """View `(1, heads, tokens, dim)` as `(count, heads, length, dim)` for one run."""
    heads, dim = flat.shape[1], flat.shape[3]
    run = flat[0, :, start : start + count * length]
    return run.reshape(heads, count, length, dim).transpose(0, 1)


def _varlen(qkv: QKV, plan: AttentionPlan, *, causal: bool, window: int | None, scale: float | None) -> torch.Tensor:
    """torch's variable-length flash attention (CUDA, half precision): no padding, one kernel."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (t[0].transpose(0, 1) for t in qkv)
    reach = -1 if window is None else window - 1
    out = varlen_attn(
        q,
        k,
        v,
        plan.boundaries,
        plan.boundaries,
        plan.longest,
        plan.longest,
        scale=scale,
        window_size=(reach, 0 if causal else reach),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    assert isinstance(out, torch.Tensor)  # a pair only where return_aux is asked for
    return out.unsqueeze(0)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
