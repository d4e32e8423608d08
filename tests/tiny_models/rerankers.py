"""Tiny cross-encoders: sequence classifiers with one score, as `CrossEncoder` loads them."""

from pathlib import Path

import transformers

from . import vocabularies
from .architecture import ENCODER, MODERNBERT, ROBERTA, Architecture, fill_zeros


def save_reranker(architecture: Architecture, folder: Path) -> None:
    """Write the reranker to `folder`, from torch's present seed."""
    tokenizer = architecture.vocabulary()
    config = architecture.configure(tokenizer, num_labels=1)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    fill_zeros(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


RERANKERS = {
    "bert-reranker": Architecture(vocabularies.wordpiece, transformers.BertConfig, ENCODER),
    "xlm-roberta-reranker": Architecture(vocabularies.unigram, transformers.XLMRobertaConfig, ROBERTA),
    "modernbert-reranker": Architecture(
        vocabularies.modernbert_bpe,
        transformers.ModernBertConfig,
        {**MODERNBERT, "classifier_pooling": "mean"},
    ),
}
