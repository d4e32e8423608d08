"""A model's packed forward recorded once as a TorchScript graph and replayed in C++, for the CPU.

In eager mode a forward of a small encoder goes through Python some 250 times and each time takes the GIL again; beside
another lane and the event loop that costs more than the arithmetic of a short query. A recorded forward takes the GIL
once. Recording follows one example, so whatever Python decided from the example's shape would be frozen: the load-time
check replays batches of other shapes and drops a recording that gives other vectors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from runtime.models.attention import AttentionPlan

Features = dict[str, torch.Tensor]
Forward = Callable[[Features, AttentionPlan], torch.Tensor]


class RecordedForward:
    """Replays what `forward` did; thread-safe, any number of tokens and sequences."""

    def __init__(self, forward: Forward, features: Mapping[str, torch.Tensor], plan: AttentionPlan) -> None:
        """Record `forward` on an example. Raises what torch raises where that can't be done."""
        self._names = tuple(features)

        def flat(runs: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
            traced = dict(zip(self._names, tensors, strict=True))
            return forward(traced, AttentionPlan(runs, traced["cu_seq_lens_q"], plan.longest))

        with torch.no_grad(), warnings.catch_warnings():
            # One warning for each shape that Python looks at (the load-time check is our answer to them), and one that
            # torch develops other recorders: those compile for seconds to minutes and again for new shapes.
            warnings.simplefilter("ignore")
            example = (plan.runs, *(features[name] for name in self._names))
            with _unit_of_its_own():
                self._graph = torch.jit.trace(flat, example, check_trace=False, strict=False)

    def run(self, features: Mapping[str, torch.Tensor], plan: AttentionPlan) -> torch.Tensor:
        """Vectors `(items, dim)` of one flat row."""
        vectors: torch.Tensor = self._graph(plan.runs, *(features[name] for name in self._names))
        return vectors


@contextmanager
def _unit_of_its_own() -> Iterator[None]:
    """Record into a table that ends with the recording: TorchScript's own keeps every graph for ever, 7 MB each."""
    state = torch.jit._state
    shared = state._python_cu
    state._python_cu = torch._C.CompilationUnit()
    try:
        yield
    finally:
        state._python_cu = shared
