"""What a checkpoint does, told from the files that saving it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from runtime.models.detection import task_of_files
from runtime.registry import TaskChoice
from runtime.work import Task


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("bert-embedder", Task.EMBED),
        ("qwen3-embedder", Task.EMBED),
        ("xlm-roberta-reranker", Task.RERANK),
        ("modernbert-reranker", Task.RERANK),
        ("qwen3-yes-no-reranker", Task.RERANK),
        ("qwen2-score-reranker", Task.RERANK),
        ("multi-class-classifier", Task.CLASSIFY),
        ("multi-label-classifier", Task.CLASSIFY),
        ("colpali", Task.MULTI_VECTOR),
        ("colqwen2", Task.MULTI_VECTOR),
        ("colmodernvbert", Task.MULTI_VECTOR),
    ],
)
def test_real_folders_say_what_they_do(tiny_model: Callable[[str], Path], name: str, task: Task) -> None:
    assert task_of_files(tiny_model(name)) is task


@pytest.mark.parametrize(
    ("file", "content", "task"),
    [
        ("config.json", {"architectures": ["BertForSequenceClassification"]}, Task.CLASSIFY),
        (
            "config.json",
            {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}},
            Task.RERANK,
        ),
        ("config.json", {"architectures": ["HF_ColBERT"]}, Task.MULTI_VECTOR),
        ("config_sentence_transformers.json", {"model_type": "ColBERT"}, Task.MULTI_VECTOR),
        ("adapter_config.json", {"task_type": "SEQ_CLS"}, Task.RERANK),
        ("adapter_config.json", {"auto_mapping": {"base_model_class": "ColQwen2"}}, Task.MULTI_VECTOR),
        ("config.json", [1], Task.EMBED),
    ],
)
def test_single_files_say_what_they_do(tmp_path: Path, file: str, content: object, task: Task) -> None:
    (tmp_path / file).write_text(json.dumps(content))
    assert task_of_files(tmp_path) is task


def test_the_registry_offers_every_task() -> None:
    assert get_args(TaskChoice) == ("auto", *Task)
