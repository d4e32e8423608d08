"""Tiny, randomly initialised, architecturally real models, made when a test asks for them.

Their weights are seeded noise: good for shapes, batching, pooling, limits and failures, not for quality.
`python -m tests.tiny_models FOLDER [NAME ...]` writes them to be served by hand.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from .bad_neighbours import BAD_NEIGHBOURS
from .embedders import DECODERS, ENCODERS, save_embedder
from .image_text import IMAGE_TEXT
from .rerankers import CLASSIFIERS, RERANKERS, save_reranker
from .token_embedders import TOKEN_EMBEDDERS

__all__ = [
    "BAD_NEIGHBOURS",
    "CLASSIFIERS",
    "DECODERS",
    "EMBEDDERS",
    "IMAGE_TEXT",
    "MAKERS",
    "PAGE_MODELS",
    "RERANKERS",
    "TOKEN_EMBEDDERS",
    "make",
]

SEED = 0
EMBEDDERS = {**ENCODERS, **DECODERS}
PAGE_MODELS = ("colpali", "colqwen2", "colqwen2-5", "colidefics3", "colmodernvbert")


def _save_page_model(name: str, folder: Path) -> None:
    # colpali-engine takes seconds to import, which tests of texts need not pay.
    from .page_models import PAGE_MODELS as makers

    makers[name](folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    **{name: partial(save_embedder, recipe) for name, recipe in EMBEDDERS.items()},
    **{name: partial(save_reranker, recipe) for name, recipe in {**RERANKERS, **CLASSIFIERS}.items()},
    **{name: partial(_save_page_model, name) for name in PAGE_MODELS},
    **TOKEN_EMBEDDERS,
    **IMAGE_TEXT,
    **BAD_NEIGHBOURS,
}


def make(name: str, folder: Path) -> None:
    """Write the model `name` of `MAKERS` into `folder`, which is made where it is missing.

    Same name, same weights, whatever was made before; torch's global random state stays as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        MAKERS[name](folder)
