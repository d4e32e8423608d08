"""Tiny embedders that load well and then fail: what no other model may suffer from."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from .architecture import ENCODER
from .embedders import ENCODERS, save_embedder

# What each claims, and what its position table has.
CLAIMED_TOKENS = 512
POSITIONS = 64
POISON = "<poison>"
NAN_WORD = "statement"


def save_broken_forward(folder: Path) -> None:
    """Write a BERT embedder that claims 512 tokens and raises in forward past 64: it has no more positions.

    A runtime that looks at the positions, too, cuts every text at 64 and serves it well.
    """
    shape = {**ENCODER, "max_position_embeddings": POSITIONS}
    save_embedder(replace(ENCODERS["bert-embedder"], shape=shape), folder)
    _set_key(folder / "sentence_bert_config.json", "max_seq_length", CLAIMED_TOKENS)
    _set_key(folder / "tokenizer_config.json", "model_max_length", CLAIMED_TOKENS)


def save_poisoned_vocabulary(folder: Path) -> None:
    """Write a BERT embedder that raises in forward on texts with `POISON`, and on no others.

    Its tokenizer knows one token more than its table has rows, as when someone adds tokens and trains no
    more. On CUDA such an id fails an assertion in the kernel, and then the whole process has lost the device.
    """
    save_embedder(ENCODERS["bert-embedder"], folder)
    tokenizer = ENCODERS["bert-embedder"].vocabulary()
    tokenizer.add_tokens(AddedToken(POISON, normalized=False))
    tokenizer.save_pretrained(folder)


def save_nan_weights(folder: Path) -> None:
    """Write a BERT embedder with one NaN among its weights, whose vectors are NaN throughout."""
    save_embedder(ENCODERS["bert-embedder"], folder)
    path = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    weights["encoder.layer.0.output.dense.bias"][0] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})


def save_nan_word(folder: Path) -> None:
    """Write a BERT embedder whose vectors are NaN for texts with `NAN_WORD`, and for no others."""
    save_embedder(ENCODERS["bert-embedder"], folder)
    tokenizer = ENCODERS["bert-embedder"].vocabulary()
    path = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
    weights["embeddings.word_embeddings.weight"][tokenizer.convert_tokens_to_ids(NAN_WORD)] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})


def _set_key(path: Path, key: str, value: int) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, key: value}, indent=1), encoding="utf-8")


BAD_NEIGHBOURS = {
    "broken-forward": save_broken_forward,
    "poisoned-vocabulary": save_poisoned_vocabulary,
    "nan-weights": save_nan_weights,
    "nan-word": save_nan_word,
}
