"""Tiny text embedders in sentence-transformers' layout: one per architecture, with varied endings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sentence_transformer.modules.pooling import PoolingMode
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from . import vocabularies
from .architecture import (
    DECODER,
    ENCODER,
    HEAD_WIDTH,
    HEADS,
    HIDDEN,
    MODERNBERT,
    OFFSET_POSITIONS,
    ROBERTA,
    WEIGHT_DEVIATION,
    WINDOW_TOKENS,
    Architecture,
    fill_zeros,
)


@dataclass(frozen=True)
class Recipe(Architecture):
    """What one embedder is made of; several `pooling` modes are joined end to end.

    `dense_widths` lists the output widths of the linear layers between pooling and normalising.
    """

    pooling: PoolingMode | tuple[PoolingMode, ...] = "mean"
    max_tokens: int = 512
    dense_widths: tuple[int, ...] = ()
    normalise: bool = True
    include_prompt: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def save_embedder(recipe: Recipe, folder: Path) -> None:
    """Write the embedder to `folder`, from torch's present seed."""
    tokenizer = recipe.vocabulary()
    model = _backbone(recipe, tokenizer)
    with TemporaryDirectory() as backbone_folder:
        model.save_pretrained(backbone_folder)
        tokenizer.save_pretrained(backbone_folder)
        transformer = Transformer(backbone_folder, max_seq_length=recipe.max_tokens)
    embedder = SentenceTransformer(
        modules=[transformer, *_ending(recipe, model.config.hidden_size)],
        prompts=dict(recipe.prompts),
        default_prompt_name=recipe.default_prompt,
        similarity_fn_name="cosine",
        device="cpu",
    )
    embedder.save_pretrained(str(folder), create_model_card=False)


def _backbone(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    config = recipe.configure(tokenizer)
    if isinstance(config, transformers.T5Config):
        model: PreTrainedModel = transformers.T5EncoderModel(config)
    else:
        model = transformers.AutoModel.from_config(config)
    fill_zeros(model)
    return model


def _ending(recipe: Recipe, width: int) -> list[torch.nn.Module]:
    pooling = Pooling(width, pooling_mode=recipe.pooling, include_prompt=recipe.include_prompt)
    modules: list[torch.nn.Module] = [pooling]
    width = pooling.get_embedding_dimension()
    for dense_width in recipe.dense_widths:
        modules.append(Dense(width, dense_width))
        width = dense_width
    return [*modules, Normalize()] if recipe.normalise else modules


ENCODERS = {
    "bert-embedder": Recipe(vocabularies.wordpiece, transformers.BertConfig, ENCODER, max_tokens=256),
    "roberta-embedder": Recipe(vocabularies.roberta_bpe, transformers.RobertaConfig, ROBERTA, pooling="max"),
    "xlm-roberta-embedder": Recipe(
        vocabularies.unigram,
        transformers.XLMRobertaConfig,
        ROBERTA,
        pooling="cls",
        prompts={"query": "query: ", "passage": "passage: "},
    ),
    "camembert-embedder": Recipe(
        vocabularies.unigram,
        transformers.CamembertConfig,
        ROBERTA,
        # Both: normalising alone would leave no difference between them.
        pooling=("mean", "mean_sqrt_len_tokens"),
    ),
    "electra-embedder": Recipe(
        vocabularies.wordpiece,
        transformers.ElectraConfig,
        {**ENCODER, "embedding_size": HIDDEN // 2},
        pooling="weightedmean",
    ),
    "distilbert-embedder": Recipe(
        vocabularies.wordpiece,
        transformers.DistilBertConfig,
        {
            "dim": HIDDEN,
            "hidden_dim": 2 * HIDDEN,
            "n_layers": 2,
            "n_heads": HEADS,
            "initializer_range": WEIGHT_DEVIATION,
        },
        include_prompt=False,
        prompts={"query": "Represent the question: ", "document": "Represent the document: "},
    ),
    "albert-embedder": Recipe(
        vocabularies.unigram,
        transformers.AlbertConfig,
        {**ENCODER, "embedding_size": HIDDEN // 2},
        dense_widths=(48,),
    ),
    "ernie-embedder": Recipe(vocabularies.wordpiece, transformers.ErnieConfig, ENCODER, pooling="cls"),
    "esm-embedder": Recipe(
        vocabularies.roberta_bpe,
        transformers.EsmConfig,
        {**ENCODER, "max_position_embeddings": OFFSET_POSITIONS},
    ),
    "nomic-bert-embedder": Recipe(
        vocabularies.wordpiece,
        transformers.NomicBertConfig,
        ENCODER,
        prompts={"query": "search_query: ", "document": "search_document: "},
        default_prompt="document",
    ),
    "gte-embedder": Recipe(vocabularies.unigram, transformers.GteConfig, ENCODER, pooling="cls"),
    "jina-v3-embedder": Recipe(vocabularies.unigram, transformers.JinaEmbeddingsV3Config, ENCODER),
    "eurobert-embedder": Recipe(vocabularies.eurobert_bpe, transformers.EuroBertConfig, DECODER, max_tokens=1024),
    "modernbert-embedder": Recipe(
        vocabularies.modernbert_bpe,
        transformers.ModernBertConfig,
        MODERNBERT,
        pooling="cls",
        max_tokens=1024,
        prompts={"query": "search_query: ", "document": "search_document: "},
    ),
    "mpnet-embedder": Recipe(
        vocabularies.roberta_bpe,
        transformers.MPNetConfig,
        {**ENCODER, "max_position_embeddings": OFFSET_POSITIONS},
    ),
    "deberta-v2-embedder": Recipe(
        vocabularies.wordpiece,
        transformers.DebertaV2Config,
        # The third version's attention: positions only as distances, in buckets.
        {
            **ENCODER,
            "relative_attention": True,
            "position_buckets": 32,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        normalise=False,
    ),
    "roformer-embedder": Recipe(vocabularies.wordpiece, transformers.RoFormerConfig, ENCODER, pooling=("cls", "mean")),
    "convbert-embedder": Recipe(
        vocabularies.wordpiece, transformers.ConvBertConfig, {**ENCODER, "embedding_size": HIDDEN // 2}
    ),
    "t5-embedder": Recipe(
        vocabularies.t5_unigram,
        transformers.T5Config,
        {"d_model": HIDDEN, "d_ff": 2 * HIDDEN, "d_kv": HEAD_WIDTH, "num_layers": 2, "num_heads": HEADS},
        dense_widths=(HIDDEN,),
    ),
}

DECODERS = {
    "qwen3-embedder": Recipe(
        lambda: vocabularies.qwen_bpe(append_end=True),
        transformers.Qwen3Config,
        DECODER,
        pooling="lasttoken",
        max_tokens=1024,
        prompts={
            "query": "Instruct: Given a question, find the passages that answer it\nQuery:",
            "document": "",
        },
    ),
    "gemma3-embedder": Recipe(
        lambda: vocabularies.gemma_bpe(framed=True),
        transformers.Gemma3TextConfig,
        {
            **DECODER,
            "use_bidirectional_attention": True,
            "sliding_window": WINDOW_TOKENS,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": HEAD_WIDTH,
        },
        max_tokens=1024,
        dense_widths=(2 * HIDDEN, HIDDEN),
        prompts={"query": "task: search result | query: ", "document": "title: none | text: "},
    ),
    "llama-embedder": Recipe(
        lambda: vocabularies.llama_bpe("left"),
        transformers.LlamaConfig,
        DECODER,
        pooling="lasttoken",
        max_tokens=1024,
    ),
    "mistral-embedder": Recipe(
        lambda: vocabularies.llama_bpe("right"),
        transformers.MistralConfig,
        {**DECODER, "sliding_window": WINDOW_TOKENS},
        pooling="lasttoken",
        max_tokens=1024,
        normalise=False,
    ),
}
