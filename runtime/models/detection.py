"""What a checkpoint does, read from the JSON files beside its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runtime.work import Task

LIBRARY_TASKS = {
    "SentenceTransformer": Task.EMBED,
    "CrossEncoder": Task.RERANK,
    "MultiVectorEncoder": Task.MULTI_VECTOR,
    "ColBERT": Task.MULTI_VECTOR,
}
"""`model_type` in config_sentence_transformers.json, as sentence-transformers and PyLate write it."""

LATE_INTERACTION = ("ColBERT", "ColPali", "ColQwen", "ColIdefics", "ColModernVBert", "ForRetrieval")
"""Parts of architecture names: colpali-engine's classes, transformers' own, and Stanford's ColBERT."""


def task_of_files(folder: Path) -> Task:
    """The task of the checkpoint in `folder`; EMBED where nothing says otherwise."""
    library = _read(folder / "config_sentence_transformers.json").get("model_type")
    config = _read(folder / "config.json")
    architecture = next(iter(config.get("architectures") or ()), "")
    classifies = architecture.endswith("ForSequenceClassification")
    if library in LIBRARY_TASKS:
        # A language model that judges by its next word has no labels in its config: one score.
        return _of_labels(config) if library == "CrossEncoder" and classifies else LIBRARY_TASKS[library]
    if any(part in architecture for part in LATE_INTERACTION):
        return Task.MULTI_VECTOR
    if (folder / "modules.json").is_file():
        return Task.EMBED
    if classifies:
        return _of_labels(config)
    return _of_adapter(folder)


def _of_labels(config: dict[str, Any]) -> Task:
    """One label ranks, several classify. transformers writes no `id2label` for its default of two."""
    labels = config.get("id2label")
    count = len(labels) if labels else 2
    return Task.RERANK if count == 1 or config.get("num_labels") == 1 else Task.CLASSIFY


def _of_adapter(folder: Path) -> Task:
    """A LoRA adapter says for which class of model it was trained (peft's `auto_mapping` and `task_type`)."""
    adapter = _read(folder / "adapter_config.json")
    base_class = (adapter.get("auto_mapping") or {}).get("base_model_class") or ""
    if any(part in base_class for part in LATE_INTERACTION):
        return Task.MULTI_VECTOR
    return Task.RERANK if adapter.get("task_type") == "SEQ_CLS" else Task.EMBED


def _read(file: Path) -> dict[str, Any]:
    """The file's object; nothing where there is none that can be read."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
