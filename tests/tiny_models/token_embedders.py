"""Tiny ColBERT-style models: sentence-transformers' layout, PyLate's and Stanford's, with and without expansion."""

import json
import string
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from . import vocabularies
from .architecture import ENCODER, HIDDEN, MODERNBERT, Architecture, fill_zeros

WIDTH = 32
BERT = Architecture(vocabularies.wordpiece, transformers.BertConfig, ENCODER)
MODERN = Architecture(vocabularies.modernbert_bpe, transformers.ModernBertConfig, MODERNBERT)


def _save_backbone(architecture: Architecture, folder: Path) -> Any:
    tokenizer = architecture.vocabulary()
    network = transformers.AutoModel.from_config(architecture.configure(tokenizer))
    fill_zeros(network)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return network


def _save_encoder(architecture: Architecture, folder: Path, skipped: list[str], **transformer: Any) -> None:
    with TemporaryDirectory() as backbone:
        _save_backbone(architecture, Path(backbone))
        modules = [
            Transformer(backbone, max_seq_length=256, **transformer),
            Dense(
                HIDDEN, WIDTH, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"
            ),
            MultiVectorMask(skiplist_words=skipped),
            Normalize(module_input_name="token_embeddings"),
        ]
        encoder = MultiVectorEncoder(modules=modules, prompts={"query": "[Q] ", "document": "[D] "}, device="cpu")
        encoder.save_pretrained(str(folder), create_model_card=False)


def save_colbert(folder: Path) -> None:
    """ColBERT's classic form: queries of 32 tokens, mask tokens that none attends to, no punctuation in documents."""
    expansion = {"strategy": "fixed", "length": 32, "attend": False}
    _save_encoder(BERT, folder, list(string.punctuation), query_expansion=expansion, document_length=180)


def save_attended_colbert(folder: Path) -> None:
    """ModernBERT whose mask tokens are attended to and which widens queries up to 24 tokens and cuts none."""
    expansion = {"strategy": "min", "length": 24, "attend": True}
    _save_encoder(MODERN, folder, [], query_expansion=expansion)


def save_plain_token_embedder(folder: Path) -> None:
    """No expansion; queries of at most 48 tokens."""
    _save_encoder(BERT, folder, [".", ","], query_length=48, document_length=200)


def save_stanford_colbert(folder: Path) -> None:
    """The layout of `colbert-ir/colbertv2.0`: the projection beside the network's weights, settings in a file."""
    network = _save_backbone(BERT, folder)
    weights = {f"bert.{name}": tensor.contiguous() for name, tensor in network.state_dict().items()}
    weights["linear.weight"] = torch.randn(WIDTH, HIDDEN) * 0.1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    settings = {"query_maxlen": 32, "doc_maxlen": 120, "attend_to_mask_tokens": False, "mask_punctuation": True}
    (folder / "artifact.metadata").write_text(json.dumps(settings))


TOKEN_EMBEDDERS: dict[str, Callable[[Path], None]] = {
    "colbert": save_colbert,
    "colbert-attended": save_attended_colbert,
    "colbert-plain": save_plain_token_embedder,
    "colbert-stanford": save_stanford_colbert,
}
