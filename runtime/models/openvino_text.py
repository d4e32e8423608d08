"""Text embedders whose transformer OpenVINO runs on the CPU. Everything around it is TextEmbedder's.

Only sentence-transformers' first module is replaced: pooling and what follows it run in torch on OpenVINO's token
embeddings, in padded buckets. Whether OpenVINO is used at all, the trial at load decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime.devices.base import Device
from runtime.devices.cpu import CpuDevice
from runtime.errors import UnsupportedModel
from runtime.models.base import Execution, Model
from runtime.models.exactness import choose_execution
from runtime.models.openvino_network import CompiledTransformer, convert, import_openvino, quantize_weights
from runtime.models.text import TextEmbedder
from runtime.models.trial import OPENVINO, Demands, try_exact, try_quantized
from runtime.registry import ModelSpec
from runtime.work import Job, Prepared, Row


class OpenVinoEmbedder(TextEmbedder):
    """A TextEmbedder with one more layout, `openvino-buckets`, once `compile` was called."""

    def __init__(self, spec: ModelSpec, folder: Path, device: CpuDevice) -> None:
        super().__init__(spec, folder, device)
        self._cpu = device
        self._quantized = spec.quantize == "int8"
        self._torch_chain: Sequence[Any] = self._chain
        self._compiled: CompiledTransformer | None = None
        self._references: dict[tuple[str, ...], list[Row]] = {}
        # Before the check puts faster layers in place: OpenVINO knows only torch's own.
        self._converted = _converted(self._torch_chain[0], self._tokenizer.has_type_ids)

    def reference_vectors(self, texts: Sequence[str]) -> list[Row]:
        """See TextEmbedder.reference_vectors. Kept, since faster layers may take the reference's place."""
        if tuple(texts) not in self._references:
            self._references[tuple(texts)] = super().reference_vectors(texts)
        return self._references[tuple(texts)]

    def compile(self, activation_group: int | None = None) -> None:
        """Convert and compile the transformer; in 8 bits with groups of so many activations to a scale. Seconds.

        Raises what torch and OpenVINO raise for what they can't convert.
        """
        self.use("buckets")
        if isinstance(self._converted, Exception):
            raise self._converted
        network = self._converted.clone()
        if activation_group is not None and quantize_weights(network) == 0:
            raise UnsupportedModel("it has no matrices to quantize")
        self._compiled = CompiledTransformer(network, self._cpu, activation_group or 0)

    def use(self, execution: Execution) -> None:
        """Switch how batches are laid out, and who runs the transformer. Not while a batch is in flight."""
        if execution != OPENVINO:
            super().use(execution)
            self._chain = list(self._torch_chain)
            return
        assert self._compiled is not None
        super().use("buckets")
        self._chain = [self._compiled, *self._torch_chain[1:]]
        self.execution = OPENVINO

    def settle(self, execution_reason: str) -> None:
        """Fix the facts, and let go of the weights of whoever won't run."""
        super().settle(execution_reason)
        self._converted = None
        self._references = {}
        if self.execution != OPENVINO or self._compiled is None:
            self._compiled = None
            return
        self.decelerate()
        self._torch_chain[0].to("meta")  # its config is still asked for
        self.facts = replace(
            self.facts,
            backend="openvino",
            dtype="int8" if self._quantized else self.facts.dtype,
            weight_bytes=self._compiled.weight_bytes,
        )

    def prepare(self, job: Job) -> list[Prepared]:
        """See TextEmbedder.prepare. OpenVINO would take a token beyond the table for some other; it is refused here."""
        items = super().prepare(job)
        if self.execution == OPENVINO:
            self._check_ids(items)
        return items

    def park(self) -> bool:
        """OpenVINO keeps its own weights, which can't be taken from it."""
        return self.execution != OPENVINO and super().park()

    def close(self) -> None:
        """Let go of every tensor."""
        super().close()
        self._compiled = None
        self._torch_chain = ()


def _converted(transformer: Any, with_type_ids: bool) -> Any:
    """The network for OpenVINO, or the exception that says why there is none."""
    try:
        return convert(transformer, with_type_ids)
    except Exception as error:
        return error


def load_openvino_embedder(spec: ModelSpec, folder: Path, device: Device, demands: Demands | None = None) -> Model:
    """A text embedder on OpenVINO if that keeps what `demands` asks for; else in fp32 on torch.

    Raises UnsupportedModel without the package, on another device, and where int8 fails its trial.
    """
    if not isinstance(device, CpuDevice):
        raise UnsupportedModel(f"backend: openvino runs on the CPU, and this process uses {device.name}")
    import_openvino()
    model = OpenVinoEmbedder(spec, folder, device)
    reason = choose_execution(model, spec.execution, model.window_tokens, model.half)
    demands = demands or Demands()
    if spec.quantize == "int8":
        reason = try_quantized(model, device, demands)
    else:
        reason = try_exact(model, device, demands, reason)
    model.settle(reason)
    return model
