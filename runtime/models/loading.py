"""From a spec and a folder to a running model: one line a family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from runtime.devices.base import Device
from runtime.errors import UnsupportedModel
from runtime.models.base import Model
from runtime.models.detection import is_image_text_model, is_page_model
from runtime.models.exactness import choose_execution
from runtime.models.openvino_text import load_openvino_embedder
from runtime.models.reranker import load_reranker
from runtime.models.text import TextEmbedder
from runtime.registry import ModelSpec
from runtime.work import Task

# Progress has its own place (the command line); bars of a library would break the log's lines.
disable_progress_bar()

Load = Callable[[ModelSpec, Task, Path, Device], Model]


def load_model(spec: ModelSpec, task: Task, folder: Path, device: Device) -> Model:
    """Load `spec` from `folder` onto `device` and settle its layout. Blocks for seconds.

    Raises UnsupportedModel, or whatever the loading library raises for broken files.
    """
    family = FAMILIES.get(task)
    if family is None:
        raise UnsupportedModel(f"no family here does {task}")
    return family(spec, task, folder, device)


def _load_text_embedder(spec: ModelSpec, task: Task, folder: Path, device: Device) -> Model:
    if spec.backend == "openvino":
        return load_openvino_embedder(spec, folder, device)
    if is_image_text_model(folder):
        from runtime.models.image_text import load_image_text_embedder

        return load_image_text_embedder(spec, folder, device)
    model = TextEmbedder(spec, folder, device)
    model.settle(choose_execution(model, spec.execution, model.window_tokens, model.half))
    return model


def _load_multi_vector(spec: ModelSpec, task: Task, folder: Path, device: Device) -> Model:
    # Each imports its library here: colpali-engine takes seconds, which servers of texts need not pay.
    if is_page_model(folder):
        from runtime.models.late_interaction import load_page_embedder

        return load_page_embedder(spec, folder, device)
    from runtime.models.colbert import load_token_embedder

    return load_token_embedder(spec, folder, device)


FAMILIES: dict[Task, Load] = {
    Task.EMBED: _load_text_embedder,
    Task.MULTI_VECTOR: _load_multi_vector,
    Task.RERANK: load_reranker,
    Task.CLASSIFY: load_reranker,
}
