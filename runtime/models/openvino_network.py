"""A transformer compiled by OpenVINO for the CPU: conversion, 8-bit weights, one request for each lane.

OpenVINO is an extra and imported late. By itself it sends usage data to its makers; here it does not.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.utils import logging as transformers_logging

from runtime.devices.cpu import CpuDevice
from runtime.errors import UnsupportedModel

WEIGHT_GROUP = 128
"""Inputs of a matrix that share one scale. Of whole rows, all-MiniLM-L6-v2 loses 0.005 of recall@10."""
_EXAMPLE_SHAPE = (2, 11)
"""Of the batch that conversion runs once; unlike any width, so that no constant passes for a size."""

Features: TypeAlias = dict[str, Any]


def import_openvino() -> Any:
    """The package. Raises UnsupportedModel where the extra is not installed."""
    # OpenVINO imports its reporter if it can. This empty stand-in has no Telemetry, so it reports nothing.
    sys.modules.setdefault("openvino_telemetry", ModuleType("openvino_telemetry"))
    try:
        import openvino
    except ImportError as error:
        raise UnsupportedModel(
            "backend: openvino needs a package that is not installed: pip install 'cotenant[openvino]'"
        ) from error
    return openvino


class _TokenEmbeddings(torch.nn.Module):
    """sentence-transformers' first module with tensors for arguments, as conversion wants it."""

    def __init__(self, transformer: torch.nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        features: Features = {"input_ids": input_ids, "attention_mask": attention_mask, "modality": "text"}
        if token_type_ids is not None:
            features["token_type_ids"] = token_type_ids
        embeddings = self.transformer(features)["token_embeddings"]
        assert isinstance(embeddings, torch.Tensor)
        return embeddings


def convert(transformer: torch.nn.Module, with_type_ids: bool) -> Any:
    """The module as an `openvino.Model` of any batch and length. It shares the module's weights. Takes seconds.

    Raises what torch's tracing or OpenVINO raise for what they can't convert.
    """
    openvino = import_openvino()
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if with_type_ids else [])]
    example = {name: torch.ones(_EXAMPLE_SHAPE, dtype=torch.int32) for name in names}
    example["attention_mask"][1, 7:] = 0  # or conversion would see a mask that masks nothing, and leave it out
    with _quietly(), torch.no_grad():
        return openvino.convert_model(_TokenEmbeddings(transformer), example_input=example)


@contextmanager
def _quietly() -> Iterator[None]:
    """Conversion looks at every attribute, deprecated ones too, and traces; neither is news to the operator."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def quantize_weights(model: Any) -> int:
    """Store the matrices of `model` in 8 bits, in place; how many there were.

    Symmetric, one scale for each row's group of WEIGHT_GROUP inputs (or the row): w ≈ scale × q, q from -127 to 127.
    Where the processor has 8-bit arithmetic, OpenVINO rounds the activations to 8 bits too and multiplies in them.
    """
    opset = import_openvino().opset13
    done: dict[str, Any] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or not node.get_attributes()["transpose_b"]:
            continue
        weight = node.input_value(1).get_node()
        if weight.get_type_name() != "Constant" or len(weight.shape) != 2:
            continue
        name = weight.get_friendly_name()
        if name not in done:  # layers may share their weights
            done[name] = _dequantized(opset, weight.data)
        node.input(1).replace_source_output(done[name].output(0))
    return len(done)


def _dequantized(opset: Any, weight: NDArray[np.float32]) -> Any:
    """A subgraph that gives back `(outputs, inputs)` from 8 bits; OpenVINO fuses it into the product."""
    outputs, inputs = weight.shape
    group = WEIGHT_GROUP if inputs % WEIGHT_GROUP == 0 else inputs
    grouped = np.ascontiguousarray(weight, dtype=np.float32).reshape(outputs, inputs // group, group)
    scale = np.abs(grouped).max(axis=2, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1.0
    with np.errstate(invalid="ignore"):  # broken weights are found by their vectors
        rounded = np.rint(grouped / scale).astype(np.int8)
    if group == inputs:
        return opset.multiply(opset.convert(opset.constant(rounded[:, 0]), "f32"), opset.constant(scale[:, 0]))
    restored = opset.multiply(opset.convert(opset.constant(rounded), "f32"), opset.constant(scale))
    return opset.reshape(restored, opset.constant(np.array(weight.shape, dtype=np.int64)), special_zero=False)


class CompiledTransformer(torch.nn.Module):
    """Stands where sentence-transformers' Transformer module stood: token ids in, token embeddings out.

    Any thread may call it. A compiled network runs no more batches at once than it has streams, one a core at most,
    and more callers wait. So there are two: one with a stream of one thread for each lane, and one with a single
    stream of all cores for a lone batch, which also takes the spare lane's batches while the lanes are busy. With
    several streams OpenVINO computes in threads of its own, with a single one in the caller's.
    """

    def __init__(self, model: Any, device: CpuDevice, activation_group: int) -> None:
        """Compile `model` for the lanes of `device`.

        With 8-bit weights, so many numbers of an activation share one scale, found anew for each batch; 0: none does.
        """
        super().__init__()
        self._inputs = [port.get_any_name() for port in model.inputs]
        lanes = device.concurrency.lanes
        streams = min(lanes, device.cores)
        # Threads inherit the niceness of the one that makes them: these must give way as lanes do.
        with ThreadPoolExecutor(1, initializer=device.enter_lane, initargs=(False,)) as lane:
            self._narrow = lane.submit(_compile, model, streams, streams, activation_group).result()
        self._idle_narrow = [self._narrow.create_infer_request() for _ in range(lanes)]
        self._idle_wide = [_compile(model, 1, device.cores, activation_group).create_infer_request()]
        self.weight_bytes = _weight_bytes(model)

    def forward(self, features: Features) -> Features:
        """Set `token_embeddings`, `(items, tokens, width)` float32, from the tensors of int32 in `features`."""
        arrays = {name: features[name].numpy() for name in self._inputs}
        alone = torch.get_num_threads() > 1  # as the device set it for this batch
        wide, narrow = self._idle_wide, self._idle_narrow
        idle, request = self._take((wide, narrow) if alone else (narrow, wide))
        try:
            found = request.infer(arrays, share_inputs=True, share_outputs=False)
            features["token_embeddings"] = torch.from_numpy(found[0])
        finally:
            idle.append(request)
        return features

    def _take(self, pools: Sequence[list[Any]]) -> tuple[list[Any], Any]:
        """An idle request and the list to put it back into, from the first pool that has one."""
        for pool in pools:
            try:
                return pool, pool.pop()  # one step under the GIL
            except IndexError:
                continue
        return self._idle_narrow, self._narrow.create_infer_request()


def _weight_bytes(model: Any) -> int:
    """Bytes of the two networks: each packs the matrices for itself, tables are shared."""
    total = 0
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant":
            readers = {reader.get_node().get_type_name() for reader in node.output(0).get_target_inputs()}
            total += node.get_byte_size() * (1 if "Gather" in readers else 2)
    return total


def _compile(model: Any, streams: int, threads: int, activation_group: int) -> Any:
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",  # else it takes bf16 where the processor has units for it
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # the lanes of other models use the same cores
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": activation_group,
    }
    return import_openvino().Core().compile_model(model, "CPU", settings)
