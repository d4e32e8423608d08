"""What the process keeps for a model beside its weights, from its files alone.

That is the vocabulary, which three tokenizers share (transformers' and two of ours), and, on CPU, the recorded forward.
Measured: 16 to 18 MiB for all-MiniLM-L6-v2 (30,522 entries, 6 layers) and all that its load leaves; 300 to 330 bytes
an entry for WordPiece and BPE of 30,000 to 150,000 entries, 1,130 for a Unigram of 250,000, which keeps a tree of all
pieces.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ENTRY_BYTES = 430
"""Of one entry of a vocabulary."""
UNIGRAM_ENTRY_BYTES = 1_200
LAYER_BYTES = 800 * 1024
"""Of one layer of a recorded forward."""
USUAL_ENTRIES = 30_000
USUAL_LAYERS = 12
UNIGRAM = re.compile(rb'"type"\s*:\s*"Unigram"')
SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model")
"""What becomes a Unigram where there is no tokenizer.json."""


def predicted_process_bytes(folder: Path) -> int:
    """Bytes beside the weights of the model in `folder`, whose config.json tells the vocabulary's size."""
    config = _config(folder)
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    entries = _number(text, config, "vocab_size") or USUAL_ENTRIES
    layers = _number(text, config, "num_hidden_layers", "n_layers", "num_layers") or USUAL_LAYERS
    return entries * (UNIGRAM_ENTRY_BYTES if _is_unigram(folder) else ENTRY_BYTES) + layers * LAYER_BYTES


def _number(text: dict[str, Any], config: dict[str, Any], *names: str) -> int | None:
    found = [each.get(name) for each in (text, config) for name in names]
    return next((value for value in found if isinstance(value, int)), None)


def _is_unigram(folder: Path) -> bool:
    file = folder / "tokenizer.json"
    if file.is_file():
        return UNIGRAM.search(file.read_bytes()) is not None
    return any((folder / name).is_file() for name in SENTENCEPIECE_FILES)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
