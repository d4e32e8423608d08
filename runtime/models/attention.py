"""One attention function for every architecture: sequences of a flat row attend within themselves only.

Registered with transformers under a name that has no mask function, so that no mask is ever built
(`transformers.AttentionInterface`; a name without a mask function makes mask creation return None). The layout of
the batch reaches the function through a thread-local plan, since a model's forward passes on only what it knows.

Semantics follow transformers' own SDPA path: `is_causal` from the call or the module; a sliding window of w lets
query i see keys j with |i - j| < w; key/value heads are shared by groups of query heads.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

PACKED_ATTENTION = "cotenant_packed"
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Where the sequences of the flat row lie."""

    runs: torch.Tensor
    """int64 `(runs, 3)` on the host: start, sequences and length of each run of equal lengths."""
    boundaries: torch.Tensor
    """int32 `(items + 1,)` on the row's device."""
    longest: int


_current = threading.local()


@contextmanager
def attending(plan: AttentionPlan) -> Iterator[None]:
    """Make `plan` the layout for every attention call of this thread inside the block."""
    _current.plan = plan
    try:
        yield
    finally:
        _current.plan = None


def current_plan() -> AttentionPlan | None:
    """The layout in force in this thread; None for a rectangle."""
    plan: AttentionPlan | None = getattr(_current, "plan", None)
    return plan


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over the flat row. query `(1, heads, tokens, dim)`, key and value with perhaps fewer heads.

    Returns `(1, tokens, heads, dim)`. Without a plan in force the batch is a rectangle with a whole mask of its own,
    which is transformers' SDPA path. Raises ValueError where a mask or a score term is asked for that a flat row
    can't honour; the load-time check then sends the model to the bucket path.
    """
    plan = current_plan()
    if plan is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if attention_mask is not None or options.get("softcap") or options.get("s_aux") is not None:
        raise ValueError("packed attention takes no mask, soft cap or attention sink")
    causal = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", False)) if causal is None else bool(causal)
    attend = _varlen if query.is_cuda and query.dtype in _HALF else _by_runs
    out = attend(
        (query, key, value), plan, causal=causal, window=options.get("sliding_window"), scale=options.get("scaling")
    )
    return out, None


QKV: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _by_runs(qkv: QKV, plan: AttentionPlan, *, causal: bool, window: int | None, scale: float | None) -> torch.Tensor:
    out: torch.Tensor = attend_by_runs(*qkv, plan.runs, scale, causal, window or 0)
    return out


def _attend_by_runs(  # noqa: PLR0913 - TorchScript takes no object of ours
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    runs: torch.Tensor,
    scale: float | None,
    causal: bool,
    window: int,
) -> torch.Tensor:
    """One SDPA call for each run of equal lengths; a run is a contiguous slice, so nothing is gathered.

    `window` 0: none. TorchScript, so that a recorded forward keeps the loop.
    """
    grouped = query.size(1) != key.size(1)
    outs: list[torch.Tensor] = []
    table: list[list[int]] = runs.tolist()
    for run in table:
        start, sequences, length = run[0], run[1], run[2]
        end = start + sequences * length
        q = query[0, :, start:end].reshape(query.size(1), sequences, length, query.size(3)).transpose(0, 1)
        k = key[0, :, start:end].reshape(key.size(1), sequences, length, key.size(3)).transpose(0, 1)
        v = value[0, :, start:end].reshape(value.size(1), sequences, length, value.size(3)).transpose(0, 1)
        if window > 0 and length > window:
            at = torch.arange(length, device=query.device)
            distance = at.unsqueeze(1) - at.unsqueeze(0)
            near = distance.abs() < window
            if causal:
                near = near & (distance >= 0)
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=near, scale=scale, enable_gqa=grouped)
        else:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
        outs.append(out.transpose(1, 2).reshape(1, sequences * length, query.size(1), value.size(3)))
    return torch.cat(outs, dim=1)


with warnings.catch_warnings():
    # torch announces other recorders; see recording.py for why this one.
    warnings.simplefilter("ignore")
    attend_by_runs = torch.jit.script(_attend_by_runs)


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
