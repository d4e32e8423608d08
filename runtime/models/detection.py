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

PAGE_MODELS = ("ColPali", "ColQwen", "ColIdefics", "ColModernVBert")
"""Parts of the names of colpali-engine's classes: of networks and of processors."""
LATE_INTERACTION = ("ColBERT", *PAGE_MODELS, "ForRetrieval")
"""Parts of architecture names: colpali-engine's classes, transformers' own, and Stanford's ColBERT."""
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
IMAGE_TEXT = frozenset({"clip", "siglip"})
"""`model_type` in config.json of what embeds texts and pictures in one space."""


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


def is_page_model(folder: Path) -> bool:
    """Whether the checkpoint, or the model that an adapter belongs to, is one of colpali-engine's."""
    return any(part in name for name in _class_names(folder) for part in PAGE_MODELS) and not any(
        name.endswith("ForRetrieval") for name in _class_names(folder)
    )


def is_image_text_model(folder: Path) -> bool:
    """Whether the checkpoint has a tower for texts and one for pictures, as CLIP has."""
    places = [folder, *sorted(folder.glob("0_*"))]
    return any(_read(place / "config.json").get("model_type") in IMAGE_TEXT for place in places)


def _class_names(folder: Path) -> list[str]:
    """Classes that the files name: the network's, that of an adapter's base, the processor's."""
    adapter = _read(folder / "adapter_config.json")
    names = [(adapter.get("auto_mapping") or {}).get("base_model_class")]
    names += _read(folder / "config.json").get("architectures") or ()
    names += [_read(folder / file).get("processor_class") for file in PROCESSOR_FILES]
    return [name for name in names if isinstance(name, str)]


def _of_labels(config: dict[str, Any]) -> Task:
    """One label ranks, several classify. transformers writes no `id2label` for its default of two."""
    labels = config.get("id2label")
    count = len(labels) if labels else 2
    return Task.RERANK if count == 1 or config.get("num_labels") == 1 else Task.CLASSIFY


def _of_adapter(folder: Path) -> Task:
    """A LoRA adapter says for which class of model it was trained (peft's `auto_mapping` and `task_type`)."""
    adapter = _read(folder / "adapter_config.json")
    if any(part in name for name in _class_names(folder) for part in LATE_INTERACTION):
        return Task.MULTI_VECTOR
    return Task.RERANK if adapter.get("task_type") == "SEQ_CLS" else Task.EMBED


def _read(file: Path) -> dict[str, Any]:
    """The file's object; nothing where there is none that can be read."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
