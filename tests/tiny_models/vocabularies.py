"""Small tokenizers of every common kind, trained on English text that each Python carries.

The text is the language reference behind `help()`, so a vocabulary can differ between Python versions: make
models at test time, and never pin ids or vectors.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pydoc_data.topics import topics
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 1200
TRAINING_LINES = 4000
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ROBERTA_ROLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
QWEN_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
GEMMA_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<image>")


def english_lines() -> list[str]:
    """Return real English lines of every length from none to about 100 words."""
    return [line for text in topics.values() for line in text.splitlines() if line.strip()]


def wordpiece() -> PreTrainedTokenizerFast:
    """Uncased WordPiece with BERT's special tokens; names the pair's second text in `token_type_ids`."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_copy(_trained_wordpiece()),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def unigram() -> PreTrainedTokenizerFast:
    """SentencePiece-like Unigram with XLM-R's special tokens: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3."""
    tokenizer = _copy(_trained_unigram(ROBERTA_TOKENS, "<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return _fast(tokenizer, model_max_length=512, **ROBERTA_ROLES)


def t5_unigram() -> PreTrainedTokenizerFast:
    """SentencePiece-like Unigram with T5's special tokens: no start token, `</s>` at the end."""
    tokenizer = _copy(_trained_unigram(("<pad>", "</s>", "<unk>"), "<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    roles = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _fast(tokenizer, model_max_length=512, **roles)


def roberta_bpe() -> PreTrainedTokenizerFast:
    """Byte-level BPE with RoBERTa's special tokens: `<s>` 0, `<pad>` 1, `</s>` 2."""
    tokenizer = _copy(_trained_bpe(ROBERTA_TOKENS))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return _fast(tokenizer, model_max_length=512, **ROBERTA_ROLES)


def modernbert_bpe() -> PreTrainedTokenizerFast:
    """Byte-level BPE between `[CLS]` and `[SEP]`, as ModernBERT has it."""
    tokenizer = _copy(_trained_bpe(("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")))
    _frame(tokenizer, start="[CLS]", end="[SEP]")
    return _fast(
        tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_max_length=8192,
    )


def eurobert_bpe() -> PreTrainedTokenizerFast:
    """Byte-level BPE between `<|begin_of_text|>` and `<|end_of_text|>`, as EuroBERT has it."""
    tokenizer = _copy(_trained_bpe(("<|begin_of_text|>", "<|end_of_text|>", "<|pad|>", "<|mask|>")))
    _frame(tokenizer, start="<|begin_of_text|>", end="<|end_of_text|>")
    return _fast(
        tokenizer,
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        pad_token="<|pad|>",
        mask_token="<|mask|>",
        model_max_length=2048,
    )


def llama_bpe(padding_side: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE between `<s>` and `</s>`, padded with `</s>`: what E5-Mistral-like embedders feed."""
    tokenizer = _copy(_trained_bpe(("<unk>", "<s>", "</s>")))
    _frame(tokenizer, start="<s>", end="</s>")
    return _fast(
        tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="</s>",
        padding_side=padding_side,
        model_max_length=2048,
    )


def qwen_bpe(*, append_end: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE with Qwen's special tokens, padded on the left.

    `append_end` ends each text in `<|endoftext|>`: the token that a Qwen3 embedder pools.
    """
    tokenizer = _copy(_trained_bpe(QWEN_TOKENS))
    if append_end:
        _frame(tokenizer, end="<|endoftext|>")
    return _fast(
        tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(QWEN_TOKENS[1:]),
        padding_side="left",
        model_max_length=2048,
    )


def gemma_bpe(*, framed: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE with Gemma's special tokens; `framed` puts each text between `<bos>` and `<eos>`."""
    tokenizer = _copy(_trained_bpe(GEMMA_TOKENS))
    if framed:
        _frame(tokenizer, start="<bos>", end="<eos>")
    return _fast(
        tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
        model_max_length=2048,
    )


def idefics_bpe(start: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the image tokens of Idefics3 and ModernVBERT, padded on the left.

    `start` is the token that opens a prompt: `<|im_start|>` or `<|begin_of_text|>`.
    """
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    image = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *tiles]
    return _fast(
        _copy(_trained_bpe((start, "<|im_end|>", "<pad>", *image))),
        bos_token=start,
        eos_token="<end_of_utterance>",
        pad_token="<pad>",
        additional_special_tokens=image,
        padding_side="left",
        model_max_length=2048,
    )


def clip_bpe(max_tokens: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE between `<|startoftext|>` and `<|endoftext|>`, as CLIP has it."""
    tokenizer = _copy(_trained_bpe(("<|startoftext|>", "<|unused|>", "<|pad|>", "<|endoftext|>")))
    _frame(tokenizer, start="<|startoftext|>", end="<|endoftext|>")
    roles = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
    return _fast(tokenizer, model_max_length=max_tokens, **roles)


def siglip_bpe(max_tokens: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE that ends each text in `<eos>` and gives no attention mask."""
    tokenizer = _copy(_trained_bpe(GEMMA_TOKENS))
    _frame(tokenizer, end="<eos>")
    fast = _fast(tokenizer, model_max_length=max_tokens, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    fast.model_input_names = ["input_ids"]
    return fast


def _fast(tokenizer: Tokenizer, **roles: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "attention_mask"], **roles
    )


def _frame(tokenizer: Tokenizer, *, start: str | None = None, end: str) -> None:
    """Make `tokenizer` put `start` before and `end` after each text."""
    single = f"{start} $A {end}" if start else f"$A {end}"
    ids = [(token, tokenizer.token_to_id(token)) for token in (start, end) if token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=f"{single} $B {end}", special_tokens=ids
    )


def _copy(tokenizer: Tokenizer) -> Tokenizer:
    """Return an independent copy, since the trained ones are shared and get a frame of their own."""
    copied: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    return copied


@cache
def _trained_wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY_SIZE, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_training_lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


@cache
def _trained_unigram(special: Sequence[str], unknown: str) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(special),
        unk_token=unknown,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_lines(), trainer)
    return tokenizer


@cache
def _trained_bpe(special: Sequence[str]) -> Tokenizer:
    """Train a byte-level BPE whose `special` tokens take the ids from 0 on."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_lines(), trainer)
    return tokenizer


def _training_lines() -> Iterator[str]:
    return iter(english_lines()[:TRAINING_LINES])
