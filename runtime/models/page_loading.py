"""Loads a page-image checkpoint with colpali-engine: a whole model, or a LoRA adapter over its base."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from runtime.errors import SourceNotFound
from runtime.models.page_families import PageFamily, family_of
from runtime.models.visual_tokens import VisualRules
from runtime.models.weights import find_files
from runtime.registry import ModelSpec

ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPageModel:
    """A network on its device and the processor that feeds it."""

    family: PageFamily
    network: Any
    processor: Any
    rules: VisualRules


def load_page_model(spec: ModelSpec, folder: Path, device: str, dtype: torch.dtype) -> LoadedPageModel:
    """The checkpoint in `folder`. Raises UnsupportedModel, or SourceNotFound for an adapter without its base."""
    is_adapter = (folder / ADAPTER_FILE).is_file() and not (folder / "config.json").is_file()
    base = adapter_base(spec, folder) if is_adapter else folder
    family = family_of(folder, base)
    has_processor = any((folder / name).is_file() for name in ("processor_config.json", "preprocessor_config.json"))
    processor = family.processor.from_pretrained(str(folder if has_processor else base), local_files_only=True)
    with _beside_its_base(folder, base) if is_adapter else _as_it_is(folder) as place:
        network = family.network.from_pretrained(str(place), dtype=dtype, local_files_only=True)
    _merge_adapter(network)
    if family.computes_logits:
        # Its logits are never asked for, and colpali-engine leaves their weights without values.
        network.model.lm_head = torch.nn.Identity()
    for config in (network.config, network.config.get_text_config()):
        config.use_cache = False  # of keys and values, which nothing here reads again
    network.to(device).eval().requires_grad_(False)
    rules = family.rules(processor, spec.max_num_visual_tokens)
    return LoadedPageModel(family=family, network=network, processor=processor, rules=rules)


def adapter_base(spec: ModelSpec, folder: Path) -> Path:
    """The folder of the model that the adapter in `folder` was trained on.

    Adapters often name a path of the machine that trained them: then a folder of the same name beside the adapter is
    taken. Raises SourceNotFound.
    """
    named = str(json.loads((folder / ADAPTER_FILE).read_bytes()).get("base_model_name_or_path") or "")
    if not named:
        raise SourceNotFound(f"its {ADAPTER_FILE} names no base model")
    for place in (Path(named), folder / named, folder.parent / Path(named).name):
        if place.is_dir():
            return place.absolute()
    return find_files(ModelSpec(id=named))


@contextmanager
def _as_it_is(folder: Path) -> Iterator[Path]:
    yield folder


@contextmanager
def _beside_its_base(folder: Path, base: Path) -> Iterator[Path]:
    """The adapter with the base's real path in its settings, which is all that the library goes by."""
    with tempfile.TemporaryDirectory(prefix="cotenant-adapter-") as made:
        for file in folder.iterdir():
            if file.name != ADAPTER_FILE:
                Path(made, file.name).symlink_to(file.absolute())
        settings = json.loads((folder / ADAPTER_FILE).read_bytes())
        settings["base_model_name_or_path"] = str(base)
        Path(made, ADAPTER_FILE).write_text(json.dumps(settings))
        yield Path(made)


def _merge_adapter(network: torch.nn.Module) -> None:
    """Add the adapter's weights to the base's, so that a forward costs what the base's does."""
    for module in list(network.modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
