"""What a checkpoint does, told from the files that saving it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from runtime.models.detection import is_image_text_model, is_page_model, task_of_files
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
        ("colbert", Task.MULTI_VECTOR),
        ("colbert-stanford", Task.MULTI_VECTOR),
        ("clip", Task.EMBED),
        ("clip-modules", Task.EMBED),
        ("siglip", Task.EMBED),
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


@pytest.mark.parametrize(
    ("name", "sees_pages", "embeds_pictures"),
    [
        ("colqwen2-5", True, False),
        ("colidefics3", True, False),
        ("colbert", False, False),
        ("bert-embedder", False, False),
        ("clip", False, True),
        ("clip-modules", False, True),
        ("siglip", False, True),
    ],
)
def test_the_family_is_told_from_the_files(
    tiny_model: Callable[[str], Path], name: str, sees_pages: bool, embeds_pictures: bool
) -> None:
    assert is_page_model(tiny_model(name)) is sees_pages
    assert is_image_text_model(tiny_model(name)) is embeds_pictures


def test_an_adapter_without_a_mapping_is_told_by_its_processor(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"auto_mapping": None, "task_type": "FEATURE_EXTRACTION"}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"processor_class": "ColQwen2Processor"}))
    assert task_of_files(tmp_path) is Task.MULTI_VECTOR
    assert is_page_model(tmp_path)


def test_the_registry_offers_every_task_but_the_built_in_one() -> None:
    assert get_args(TaskChoice) == ("auto", *(task for task in Task if task is not Task.MAXSIM))
