"""LoRA adapters (peft's format), merged into their base when they are loaded: one network, no cost a request.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models": the merged weight is W + (alpha / r) B A.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.transformer import TransformerTask
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import import_from_string

from runtime.errors import UnsupportedModel
from runtime.models.weights import adapter_base, is_adapter
from runtime.registry import ModelSpec

__all__ = ["is_adapter", "load_cross_encoder_adapter", "load_embedder_adapter"]

Options = dict[str, Any]


def load_cross_encoder_adapter(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> CrossEncoder:
    """The base with the adapter of `folder` merged in, as a cross-encoder.

    Its head is the adapter's own (peft keeps it beside the matrices for the task SEQ_CLS), with one label unless the
    folder's config.json names more. Raises SourceNotFound for a base that is not there, UnsupportedModel for an adapter
    of another kind, and what peft raises for weights that don't fit.
    """
    task = _read(folder / "adapter_config.json").get("task_type")
    if task != "SEQ_CLS":
        raise UnsupportedModel(f"an adapter of type {task} makes no cross-encoder; SEQ_CLS does")
    own = _read(folder / "config.json")
    labels = {name: own[name] for name in ("id2label", "label2id", "problem_type") if own.get(name)}
    transformer = _merged(spec, folder, "sequence-classification", dtype, labels or {"num_labels": 1})
    settings = _read(folder / "config_sentence_transformers.json")
    activation = settings.get("activation_fn") or ""
    reference: CrossEncoder = CrossEncoder(
        modules=[transformer],
        device=device,
        prompts=settings.get("prompts"),
        default_prompt_name=settings.get("default_prompt_name"),
        activation_fn=import_from_string(activation)() if activation.startswith("torch.") else None,
        local_files_only=True,
    )
    return reference


def load_embedder_adapter(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> SentenceTransformer:
    """The base with the adapter of `folder` merged in, as an embedder.

    Pooling and what follows it come from the adapter's folder where it has a modules.json, else from the base's.
    Raises as load_cross_encoder_adapter does.
    """
    if _read(folder / "adapter_config.json").get("task_type") == "SEQ_CLS":
        raise UnsupportedModel("an adapter of type SEQ_CLS makes a cross-encoder; its task is rerank or classify")
    transformer = _merged(spec, folder, "feature-extraction", dtype, {})
    layout = folder if (folder / "modules.json").is_file() else adapter_base(spec, folder)
    entries = json.loads((layout / "modules.json").read_bytes()) if (layout / "modules.json").is_file() else []
    modules: list[torch.nn.Module] = [transformer]
    for entry in entries[1:]:
        if not entry["type"].startswith("sentence_transformers."):
            raise UnsupportedModel("modules.json names a module of another package")
        kind: Any = import_from_string(entry["type"])
        modules.append(kind.load(str(layout), subfolder=entry["path"], local_files_only=True))
    if not entries:
        modules.append(_mean_pooling(transformer))
    settings = _read(layout / "config_sentence_transformers.json")
    return SentenceTransformer(
        modules=modules,
        device=device,
        prompts=settings.get("prompts"),
        default_prompt_name=settings.get("default_prompt_name"),
        local_files_only=True,
    )


def _merged(spec: ModelSpec, folder: Path, task: TransformerTask, dtype: torch.dtype, config: Options) -> Transformer:
    """sentence-transformers' module around the merged network, with the tokenizer of the adapter or of its base."""
    base = adapter_base(spec, folder)
    layouts = [folder] if task == "sequence-classification" else [folder, base]
    stored = next((found for layout in layouts if (found := _read(layout / "sentence_bert_config.json"))), {})
    code = {"trust_remote_code": spec.trust_remote_code, "local_files_only": True}
    with _unreported():
        transformer: Transformer = Transformer(
            str(base),
            transformer_task=task,
            model_kwargs={"dtype": dtype, **code},
            processor_kwargs=dict(code),
            config_kwargs={**config, **code},
            tokenizer_name_or_path=str(folder) if (folder / "tokenizer_config.json").is_file() else None,
            max_seq_length=stored.get("max_seq_length"),
            do_lower_case=stored.get("do_lower_case", False),
            processing_kwargs=stored.get("processing_kwargs"),
        )
    transformer.model = _with_adapter(transformer.model, folder)
    return transformer


def _with_adapter(network: Any, folder: Path) -> Any:
    """The network with the adapter's matrices merged in. Raises UnsupportedModel where some find no layer."""
    with warnings.catch_warnings(), _unreported():
        # peft 0.20 asks the network by a name that transformers is about to drop.
        warnings.simplefilter("ignore", FutureWarning)
        # It only warns of layers that got no matrices, and the base would be served for the adapter.
        warnings.filterwarnings("error", "Found missing adapter keys", UserWarning)
        try:
            return PeftModel.from_pretrained(network, str(folder)).merge_and_unload()
        except UserWarning:
            raise UnsupportedModel("the adapter is for other layers than its base has: they got no matrices") from None


@contextmanager
def _unreported() -> Iterator[None]:
    """Keep transformers from reporting a head without weights, which the adapter brings, and layers on one device."""
    reports = [logging.getLogger(f"transformers.{name}") for name in ("modeling_utils", "distributed.tensor_parallel")]
    levels = [report.level for report in reports]
    for report in reports:
        report.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for report, level in zip(reports, levels, strict=True):
            report.setLevel(level)


def _mean_pooling(transformer: Transformer) -> Pooling:
    """What sentence-transformers itself puts behind a network that comes without a layout."""
    pooling: Pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    return pooling


def _read(file: Path) -> Options:
    """The file's object; nothing where there is no such file."""
    content: Options = json.loads(file.read_bytes()) if file.is_file() else {}
    return content
