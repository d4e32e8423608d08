"""A checkpoint of a few kilobytes, whose load makes the libraries take now what the first model would make them take.

Pages of torch's code, buffers of its matrix library, transformers' modules: 34 MiB on CPU, whoever is loaded first.
They belong to what the process holds without any model, which the books start from.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WIDTH = 64
LONGEST_TOKENS = 64
VOCABULARY = ("[PAD]", "[UNK]", "word", *"abcdefghijklmnopqrstuvwxyz0123456789")
MODULES = ({"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"})


def write_checkpoint(folder: Path) -> None:
    """An embedder of texts of one layer. torch's global random state stays as it was. Raises OSError."""
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
        max_position_embeddings=LONGEST_TOKENS,
    )
    with torch.random.fork_rng(devices=[]):
        BertModel(config).save_pretrained(folder)
    tokenizer = Tokenizer(WordPiece({piece: index for index, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", model_max_length=LONGEST_TOKENS
    ).save_pretrained(folder)
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": module["path"],
            "type": f"sentence_transformers.models.{module['type']}",
        }
        for index, module in enumerate(MODULES)
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    pooling = folder / "1_Pooling"
    pooling.mkdir()
    (pooling / "config.json").write_text(
        json.dumps({"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}), encoding="utf-8"
    )
