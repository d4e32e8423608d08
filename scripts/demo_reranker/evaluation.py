"""The comparison on held-out queries: bi-encoder, BM25, and the cross-encoder as it was saved."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from scripts.demo_reranker.candidates import Encoder, Ranking
from scripts.demo_reranker.ranking import BM25, rank
from scripts.demo_reranker.training import CrossEncoder


def compare(
    rankings: Sequence[Ranking], collection: Sequence[str], model: CrossEncoder, max_tokens: int, threads: int
) -> dict[str, list[int]]:
    """By method, the place of each query's right document. BM25 knows the whole collection, and reads whole texts."""
    bm25 = BM25(collection)
    return {
        "bi-encoder": [each.right + 1 for each in rankings],
        "BM25": [rank(bm25.scores(each.query, each.documents), each.right) for each in rankings],
        "cross-encoder": cross_encoder_ranks(rankings, model, max_tokens, threads),
    }


def cross_encoder_ranks(rankings: Sequence[Ranking], model: CrossEncoder, max_tokens: int, threads: int) -> list[int]:
    """The places that the cross-encoder gives the right documents. Each thread scores whole rankings alone."""
    reads = [model.read([each.query] * len(each.documents), each.documents, max_tokens) for each in rankings]
    score = torch.inference_mode()(model.score)
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        scores = pool.map(score, reads)
        return [rank(found.tolist(), each.right) for found, each in zip(scores, rankings, strict=True)]


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
