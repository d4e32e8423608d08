"""Makes a page-image model of a real architecture with random weights, so that a first run needs no model hub.

It is ColPali (SigLIP and Gemma) in small: 448 pixels, 256 tokens a page, the tokenizer trained on the text behind
Python's `help()`. Every route, shape and size is as with a trained model; what it finds alike means nothing. It is
written in a temporary folder and then renamed: a folder that is there is whole.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory

# Before torch is imported: OpenMP's threads would spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from colpali_engine.models import ColPali, ColPaliProcessor
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PaliGemmaConfig, PreTrainedTokenizerFast, SiglipImageProcessor
from transformers.utils.logging import disable_progress_bar

from runtime.sources import cache_folder

NAME = "random-colpali"
SEED = 0
PIXELS, PATCH = 448, 28
VISUAL_TOKENS = (PIXELS // PATCH) ** 2
WIDTH, HEADS, LAYERS = 128, 4, 3
VOCABULARY_SIZE = 4000
SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<image>")
WEIGHT_DEVIATION = 0.08
"""Wider than the usual 0.02, so that different pages get clearly different rows from three layers."""

README = """\
# random-colpali

RANDOM WEIGHTS. This model knows nothing: its scores mean nothing. It has the architecture of ColPali in small, so that
every route for page images can be tried without a model hub. For search, serve a trained model in its place, such as
vidore/colqwen2-v1.0 or vidore/colSmol-256M.
"""


def make(into: Path) -> Path:
    """Make sure that the model lies in a folder of its name in `into`, and return this folder."""
    folder = into / NAME
    if folder.exists():
        return folder
    into.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=into, prefix=f".{NAME}-") as temporary:
        made = Path(temporary, NAME)
        save(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():  # else another run was faster, with the same files
                raise
    return folder


def save(folder: Path) -> None:
    """Write the model to `folder`; torch's global random state stays as it was."""
    # The processor reads `image_seq_length` from the image processor and from nowhere else.
    images = SiglipImageProcessor(size={"height": PIXELS, "width": PIXELS}, image_seq_length=VISUAL_TOKENS)
    processor = ColPaliProcessor(images, _tokenizer())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = ColPali(_config(processor))
        for module in model.modules():
            # Zero rows and biases, as fresh ones are, would become 0/0 where a row is made a unit row.
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight.data[module.padding_idx].normal_(0, WEIGHT_DEVIATION)
        model.custom_text_proj.bias.data.normal_(0, WEIGHT_DEVIATION)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "README.md").write_text(README, encoding="utf-8")


def _config(processor: ColPaliProcessor) -> PaliGemmaConfig:
    tower = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "initializer_range": WEIGHT_DEVIATION,
    }
    tokenizer = processor.tokenizer
    text = {
        **tower,
        "model_type": "gemma",
        "num_key_value_heads": 1,
        "head_dim": WIDTH // HEADS,
        "max_position_embeddings": 2048,
        # Only now: the processor has added its 1,152 location and segment tokens.
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    vision = {
        **tower,
        "model_type": "siglip_vision_model",
        "image_size": PIXELS,
        "patch_size": PATCH,
        "vision_use_head": False,
    }
    return PaliGemmaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=processor.image_token_id,
        projection_dim=WIDTH,
        hidden_size=WIDTH,
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=2048,
    )


def _lines() -> Iterator[str]:
    for text in topics.values():
        yield from text.splitlines()


def main() -> None:
    """Make the model where it is missing; print its folder."""
    disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=None, help="default: ~/.cache/cotenant/models")
    into = parser.parse_args().into or cache_folder()
    if not (into / NAME).exists():
        print(f"{NAME}: making a page-image model with random weights", file=sys.stderr, flush=True)
    try:
        print(make(into))
    except OSError as error:
        parser.exit(1, f"{NAME}: can't be made in {into}: {error.strerror or error}\n")


if __name__ == "__main__":
    main()
