"""A checkpoint's files: where they are, and how many bytes its weights take once loaded.

The safetensors header alone tells the size (8 bytes of length, then JSON:
https://github.com/huggingface/safetensors#format), so admission can decide before anything is loaded.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.errors import SourceNotFound, UnsupportedModel
from runtime.models.limits import activation_bytes_per_token
from runtime.registry import ModelSpec
from runtime.sources import resolve_source

DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
TORCH_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
NEVER_LOADED = ("*.onnx", "onnx/*", "openvino/*", "*.h5", "*.msgpack", "*.ot", "*.gguf", "coreml/*", "*.tflite")
"""Files of other runtimes, which often outweigh the checkpoint itself."""
NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "rng_state")
"""Pickles that training leaves beside a checkpoint."""
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt")
HEAD = "lm_head.weight"
DRY_MARGIN = 1.5
"""Over a dry run: for what the allocator adds."""
UNKNOWN_LIMIT = 8192
"""Tokens of one input to a model whose config names no limit."""
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_MAX_HEADER_BYTES = 100 * 2**20


ADAPTER_FILE = "adapter_config.json"
"""What peft writes beside an adapter's weights."""


def predicted_weight_bytes(folder: Path, dtype: str) -> int:
    """Bytes of all weights under `folder` when loaded as `dtype`, each tensor once. Nothing but headers is read.

    Raises SourceNotFound when there are no weights at all, or none that can be read; UnsupportedModel for GGUF.
    """
    places = _weight_folders(folder)
    sizes = [size for place in places for size in _loaded_sizes(place, dtype)]
    if sizes:
        return sum(sizes)
    if any(True for _ in folder.rglob("*.gguf")):
        raise UnsupportedModel(f"{folder.name} holds GGUF files, which are another runtime's; safetensors are needed")
    raise SourceNotFound(f"no weights (*.safetensors, *.bin) under {folder.name}")


def _weight_folders(folder: Path) -> list[Path]:
    """Where a model's modules have their weights; modules.json names them, and without it every folder may."""
    modules = _read_json(folder / "modules.json")
    if isinstance(modules, list):
        paths = [module.get("path", "") for module in modules if isinstance(module, dict)]
        return sorted({folder, *(folder / path for path in paths if isinstance(path, str))})
    return sorted(
        {folder, *(file.parent for pattern in ("*.safetensors", "*.bin", "*.pt") for file in folder.rglob(pattern))}
    )


def _loaded_sizes(folder: Path, dtype: str) -> Iterator[int]:
    """Of one folder, as transformers chooses: safetensors before pickles, one whole file before shards."""
    files = _safetensors(folder)
    if files:
        yield from _tensor_sizes(files, dtype, bool(_config(folder).get("tie_word_embeddings")))
        return
    pickles = _pickles(folder)
    stored = TORCH_BYTES.get(str(_config(folder).get("torch_dtype") or _config(folder).get("dtype")), 4)
    for file in pickles:
        yield file.stat().st_size * TORCH_BYTES.get(dtype, 4) // stored


def _safetensors(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    whole, index = folder / "model.safetensors", _shards(folder / "model.safetensors.index.json")
    extra = [file for file in files if file.name.startswith("adapter")]
    if whole in files:
        return [whole, *extra]
    if index:
        return [*(folder / name for name in index), *extra]
    # Mistral's consolidated copy holds the same weights under other names.
    shards = [file for file in files if not file.name.startswith("consolidated")]
    return shards or files


def _pickles(folder: Path) -> list[Path]:
    whole, index = folder / "pytorch_model.bin", _shards(folder / "pytorch_model.bin.index.json")
    if whole.is_file():
        return [whole]
    if index:
        return [folder / name for name in index if (folder / name).is_file()]
    files = [file for pattern in ("*.bin", "*.pt") for file in sorted(folder.glob(pattern))]
    return [file for file in files if not file.name.startswith(NOT_WEIGHTS)]


def _shards(index: Path) -> list[str]:
    """The files that an index names; none where there is no index."""
    content = _read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    return sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []


def _tensor_sizes(files: list[Path], dtype: str, ties_head: bool) -> Iterator[int]:
    """A tensor that several shards hold counts once, and so does an output layer that shares the input's table."""
    seen: set[str] = set()
    for file in files:
        for name, entry in _header_entries(file):
            if name not in seen and not (ties_head and name.endswith(HEAD)):
                seen.add(name)
                yield _loaded_bytes(entry, dtype)


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None


def _config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; nothing where there is none that can be read."""
    config = _read_json(folder / "config.json")
    return config if isinstance(config, dict) else {}


def _header_entries(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        header = _header(file)
    except OSError as error:
        raise SourceNotFound(f"{file.name}, which the index names, is not there") from error
    except (struct.error, ValueError) as error:
        raise SourceNotFound(f"{file.name} is not a safetensors file, or not a whole one") from error
    return ((name, entry) for name, entry in header.items() if name != "__metadata__")


def _header(file: Path) -> dict[str, Any]:
    """Raises struct.error or ValueError where there is none."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _MAX_HEADER_BYTES:
            raise ValueError("the header can't be that long")
        header: dict[str, Any] = json.loads(stream.read(length))
    return header


def _loaded_bytes(entry: dict[str, Any], dtype: str) -> int:
    stored = str(entry["dtype"])
    size = TORCH_BYTES.get(dtype, 4) if stored in _FLOATS else DTYPE_BYTES.get(stored, 4)
    return int(math.prod(entry["shape"])) * size


def linear_shapes(folder: Path) -> Iterator[tuple[int, int]]:
    """Shapes of the weights that belong to Linear layers, as far as headers tell: matrices but for tables."""
    for place in _weight_folders(folder):
        for file in _safetensors(place):
            for name, entry in _header_entries(file):
                shape = entry["shape"]
                if len(shape) == 2 and str(entry["dtype"]) in _FLOATS and "embed" not in name:
                    yield shape[0], shape[1]


def activation_prior_bytes(folder: Path, dtype: str, longest_tokens: int) -> int:
    """Predicted workspace of one token, from the config alone: by its width, or by a dry run where that says more.

    `longest_tokens`: of one input, where the model itself allows no fewer.
    """
    # Whoever only looks at files, such as `cotenant download`, does without transformers.
    from runtime.models.dry_run import dry_bytes_per_token

    item_bytes = TORCH_BYTES.get(dtype, 4)
    dry = dry_bytes_per_token(folder, min(longest_tokens, _longest_input(folder))) or 0
    return max(activation_bytes_per_token(_config(folder), item_bytes), int(dry * DRY_MARGIN) * item_bytes // 4)


def _longest_input(folder: Path) -> int:
    """Most tokens of one input, as far as JSON says."""
    sentence = _read_json(folder / "sentence_bert_config.json")
    limits = [
        _config(folder).get("max_position_embeddings"),
        sentence.get("max_seq_length") if isinstance(sentence, dict) else None,
    ]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=UNKNOWN_LIMIT)


def find_files(spec: ModelSpec) -> Path:
    """The folder with the model's files, fetched from the hub when the source is a hub id. May take minutes.

    Raises SourceNotFound.
    """
    return _on_this_machine(spec, ignore=list(NEVER_LOADED))


def find_description(spec: ModelSpec) -> Path:
    """The folder with at least the JSON files of a model, which say what it is. Raises SourceNotFound."""
    return _on_this_machine(spec, allow=["*.json"])


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds a LoRA adapter, whose base's weights are elsewhere."""
    return (folder / ADAPTER_FILE).is_file()


def adapter_base(spec: ModelSpec, folder: Path) -> Path:
    """The folder of the base of the adapter in `folder`: inside it, or wherever a source can point to.

    A base on the hub is fetched, at the adapter's own pin. Raises SourceNotFound.
    """
    try:
        config = json.loads((folder / ADAPTER_FILE).read_bytes())
        name = config["base_model_name_or_path"] or ""
    except (ValueError, KeyError) as error:
        raise SourceNotFound(f"its {ADAPTER_FILE} names no base model") from error
    if name and (folder / name).is_dir():
        return (folder / name).absolute()
    return find_files(ModelSpec(id=spec.id, source=name, revision=config.get("revision")))


def folders_of_weights(spec: ModelSpec, folder: Path) -> tuple[Path, ...]:
    """Where the weights are that loading `folder` takes; the last one's config tells the network's shape."""
    return (folder, adapter_base(spec, folder)) if is_adapter(folder) else (folder,)


def _on_this_machine(spec: ModelSpec, allow: list[str] | None = None, ignore: list[str] | None = None) -> Path:
    source = resolve_source(spec)
    if isinstance(source, Path):
        return source
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, revision=spec.revision, allow_patterns=allow, ignore_patterns=ignore))
    except OSError as error:  # the hub's own errors are of this kind
        raise SourceNotFound(why_not_fetched(source, spec.revision, error)) from error


def why_not_fetched(source: str, revision: str | None, error: OSError) -> str:
    """What is wrong with a model of the hub, and what helps."""
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, LocalEntryNotFoundError):
        what = f"{source} at {revision}" if revision else source
        offline = "HF_HUB_OFFLINE keeps it from being fetched: run `cotenant download` without it"
        return (
            f"{what} is not on this machine, and {offline if constants.HF_HUB_OFFLINE else 'the hub is out of reach'}"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"the hub has no revision {revision} of {source}"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no model {source}, or shows it only to whoever may see it (HF_TOKEN)"
    return f"{source} can't be fetched from the hub ({type(error).__name__})"
