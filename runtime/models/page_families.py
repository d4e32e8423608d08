"""The page-image models of colpali-engine: which classes a checkpoint needs, and what is special about each.

One line a family. A checkpoint names its family in `config.json` (the architecture), an adapter in its processor's
files or its own `auto_mapping`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colpali_engine import models as colpali_engine

from runtime.errors import UnsupportedModel
from runtime.models.visual_tokens import FixedRules, PatchRules, TileRules, VisualRules

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFamily:
    """How one family is loaded and fed."""

    network: Any
    """colpali-engine's class of the network."""
    processor: Any
    rules: Callable[[Any, int | None], VisualRules]
    """From a processor and the cap on visual tokens to the rules."""
    zero_type_ids: bool = False
    """Wants `token_type_ids` of zeros: without them its attention depends on who is padded beside whom."""
    computes_logits: bool = False
    """Computes logits of its whole vocabulary for every token unless told to keep those of one."""
    marks_images: bool = False
    """Wants `mm_token_type_ids`: 1 where a token stands for a piece of the picture."""


FAMILIES = {
    "ColPali": PageFamily(
        network=colpali_engine.ColPali,
        processor=colpali_engine.ColPaliProcessor,
        rules=FixedRules,
        zero_type_ids=True,
        computes_logits=True,
    ),
    "ColQwen2": PageFamily(
        network=colpali_engine.ColQwen2,
        processor=colpali_engine.ColQwen2Processor,
        rules=PatchRules,
        marks_images=True,
    ),
    "ColQwen2_5": PageFamily(
        network=colpali_engine.ColQwen2_5,
        processor=colpali_engine.ColQwen2_5_Processor,
        rules=PatchRules,
        marks_images=True,
    ),
    "ColIdefics3": PageFamily(
        network=colpali_engine.ColIdefics3,
        processor=colpali_engine.ColIdefics3Processor,
        rules=TileRules,
    ),
    "ColModernVBert": PageFamily(
        network=colpali_engine.ColModernVBert,
        processor=colpali_engine.ColModernVBertProcessor,
        rules=TileRules,
    ),
}


def family_of(*folders: Path) -> PageFamily:
    """The family that the files name; an adapter's folder comes before its base's. Raises UnsupportedModel."""
    for folder in folders:
        for name in _names(folder):
            if name in FAMILIES:
                return FAMILIES[name]
    raise UnsupportedModel(f"no page-image model known here; known are: {', '.join(FAMILIES)}")


def _names(folder: Path) -> list[str]:
    """What the folder's files may call their family, the surest first."""
    adapter = _read(folder / "adapter_config.json")
    names = [str((adapter.get("auto_mapping") or {}).get("base_model_class"))]
    names += [str(name) for name in _read(folder / "config.json").get("architectures") or ()]
    by_processor = {family.processor.__name__: name for name, family in FAMILIES.items()}
    classes = [str(_read(folder / file).get("processor_class")) for file in PROCESSOR_FILES]
    return names + [by_processor[name] for name in classes if name in by_processor]


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
