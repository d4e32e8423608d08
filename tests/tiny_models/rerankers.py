"""Tiny cross-encoders and classifiers, as `CrossEncoder` loads them: encoders, decoders, one label and several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import PreTrainedTokenizerFast

from . import vocabularies
from .architecture import DECODER, ENCODER, MODERNBERT, ROBERTA, WINDOW_TOKENS, Architecture, fill_zeros

QWEN_TEMPLATE = (
    "<|im_start|>system\nJudge whether the document answers the query: yes or no.<|im_end|>\n<|im_start|>user\n"
    "<Instruct>: {{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first }}\n"
    "<Query>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "<Document>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Of the form that Qwen3-Reranker's has: an instruction, both texts, and an opened answer."""


@dataclass(frozen=True)
class Classifier(Architecture):
    """A sequence classifier; one label of transformers' default name unless `labels` says otherwise."""

    labels: Sequence[str] = ("LABEL_0",)
    problem: str | None = None
    template: str | None = None
    generates: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)


def save_reranker(recipe: Classifier, folder: Path) -> None:
    """Write the model to `folder`, from torch's present seed."""
    tokenizer = recipe.vocabulary()
    tokenizer.chat_template = recipe.template
    if recipe.generates:
        _save_language_model(recipe, tokenizer, folder)
        return
    labels: dict[str, Any] = {"id2label": dict(enumerate(recipe.labels)), "problem_type": recipe.problem}
    model = transformers.AutoModelForSequenceClassification.from_config(recipe.configure(tokenizer, **labels))
    fill_zeros(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _save_language_model(recipe: Classifier, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """As sentence-transformers stores rerankers that answer with a word."""
    model = transformers.AutoModelForCausalLM.from_config(recipe.configure(tokenizer))
    fill_zeros(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = Transformer(str(folder), transformer_task="text-generation")
    score = LogitScore(true_token_id=_first_id(tokenizer, "yes"), false_token_id=_first_id(tokenizer, "no"))
    reranker = CrossEncoder(
        modules=[transformer, score],
        prompts=dict(recipe.prompts),
        default_prompt_name=next(iter(recipe.prompts), None),
        device="cpu",
    )
    reranker.save_pretrained(str(folder), create_model_card=False)


def _first_id(tokenizer: PreTrainedTokenizerFast, word: str) -> int:
    return int(tokenizer(word, add_special_tokens=False).input_ids[0])


DEBERTA: dict[str, Any] = {
    **ENCODER,
    "relative_attention": True,
    "position_buckets": 32,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "type_vocab_size": 0,
}

RERANKERS = {
    "bert-reranker": Classifier(vocabularies.wordpiece, transformers.BertConfig, ENCODER),
    "xlm-roberta-reranker": Classifier(vocabularies.unigram, transformers.XLMRobertaConfig, ROBERTA),
    "modernbert-reranker": Classifier(
        vocabularies.modernbert_bpe,
        transformers.ModernBertConfig,
        {**MODERNBERT, "classifier_pooling": "mean"},
    ),
    "modernbert-cls-reranker": Classifier(
        vocabularies.modernbert_bpe,
        transformers.ModernBertConfig,
        {**MODERNBERT, "classifier_pooling": "cls"},
    ),
    "deberta-v2-reranker": Classifier(vocabularies.wordpiece, transformers.DebertaV2Config, DEBERTA),
    "albert-reranker": Classifier(
        vocabularies.unigram, transformers.AlbertConfig, {**ENCODER, "embedding_size": ENCODER["hidden_size"] // 2}
    ),
    "qwen3-yes-no-reranker": Classifier(
        lambda: vocabularies.qwen_bpe(append_end=False),
        transformers.Qwen3Config,
        DECODER,
        template=QWEN_TEMPLATE,
        generates=True,
        prompts={"search": "Given a question, find the passages that answer it", "code": "Find the code"},
    ),
    "qwen2-score-reranker": Classifier(
        lambda: vocabularies.qwen_bpe(append_end=True), transformers.Qwen2Config, DECODER
    ),
    "mistral-score-reranker": Classifier(
        lambda: vocabularies.gemma_bpe(framed=True),
        transformers.MistralConfig,
        {**DECODER, "sliding_window": WINDOW_TOKENS},
    ),
}

CLASSIFIERS = {
    "multi-class-classifier": Classifier(
        vocabularies.wordpiece,
        transformers.BertConfig,
        ENCODER,
        labels=("entailment", "neutral", "contradiction"),
        problem="single_label_classification",
    ),
    "multi-label-classifier": Classifier(
        vocabularies.roberta_bpe,
        transformers.RobertaConfig,
        ROBERTA,
        labels=("joy", "anger", "fear", "surprise"),
        problem="multi_label_classification",
    ),
}
