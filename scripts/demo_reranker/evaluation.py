"""The comparison on held-out queries: bi-encoder, BM25, and the cross-encoder as it was saved."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from scripts.demo_reranker.candidates import Encoder, Ranking
from scripts.demo_reranker.ranking import BM25, Quality, quality, rank
from scripts.demo_reranker.training import CrossEncoder


def compare(
    rankings: Sequence[Ranking], collection: Sequence[str], model: CrossEncoder, tokens: int
) -> dict[str, Quality]:
    """The quality of each method on the same candidates. BM25 knows the whole collection, and reads whole texts."""
    bm25 = BM25(collection)
    orders = {
        "bi-encoder": [ranking.right + 1 for ranking in rankings],
        "BM25": [rank(bm25.scores(each.query, each.documents), each.right) for each in rankings],
        "cross-encoder": cross_encoder_ranks(rankings, model, tokens),
    }
    return {method: quality(ranks) for method, ranks in orders.items()}


def cross_encoder_ranks(rankings: Sequence[Ranking], model: CrossEncoder, max_tokens: int) -> list[int]:
    """The places that the cross-encoder gives the right documents."""
    queries = [each.query for each in rankings for _ in each.documents]
    with torch.inference_mode():
        scores = model.logits(queries, [text for each in rankings for text in each.documents], max_tokens).tolist()
    ranks, start = [], 0
    for each in rankings:
        end = start + len(each.documents)
        ranks.append(rank(scores[start:end], each.right))
        start = end
    return ranks


def fixture_rankings(path: Path, encoder: Encoder, max_tokens: int) -> tuple[list[Ranking], list[str]]:
    """The queries of the test-suite's file, each with the documents of its topic; and all documents."""
    found, collection = [], []
    for topic in json.loads(path.read_text(encoding="utf-8"))["topics"]:
        texts = topic["documents"]
        collection += texts
        asked = encoder.encode([each["query"] for each in topic["queries"]], max_tokens)
        scores = asked @ encoder.encode(texts, max_tokens).T
        for each, row in zip(topic["queries"], scores, strict=True):
            order = np.argsort(-row, kind="stable").tolist()
            found.append(Ranking(each["query"], [texts[place] for place in order], order.index(each["answer"])))
    return found, collection
