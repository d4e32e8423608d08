"""How good an order is: Okapi BM25 as the old yardstick, mean reciprocal rank and top-1 as the measures."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

WORD = re.compile(r"[^\W_]+")


class Quality(NamedTuple):
    """How often, and how nearly, the right document came first."""

    mrr: float
    top_1: float


class BM25:
    """Okapi BM25 with the statistics of a collection.

    Formula: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with 1 added
    within the logarithm, so that a word that most documents have doesn't count against one.
    """

    def __init__(self, collection: Iterable[str], k1: float = 1.2, b: float = 0.75) -> None:
        lengths = []
        self._holding: Counter[str] = Counter()
        for document in collection:
            found = words(document)
            lengths.append(len(found))
            self._holding.update(set(found))
        self._documents = len(lengths)
        self._mean_length = sum(lengths) / len(lengths)
        self._k1, self._b = k1, b

    def scores(self, query: str, documents: Iterable[str]) -> list[float]:
        """The score of each document for the query."""
        asked = words(query)
        return [self._score(asked, words(document)) for document in documents]

    def _score(self, asked: Sequence[str], found: Sequence[str]) -> float:
        counts = Counter(found)
        damping = self._k1 * (1 - self._b + self._b * len(found) / self._mean_length)
        return sum(
            self._rarity(word) * counts[word] * (self._k1 + 1) / (counts[word] + damping)
            for word in asked
            if word in counts
        )

    def _rarity(self, word: str) -> float:
        holding = self._holding[word]
        return math.log(1 + (self._documents - holding + 0.5) / (holding + 0.5))


def words(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return WORD.findall(text.lower())


def rank(scores: Sequence[float], right: int) -> int:
    """The place of the right document, from 1. Of equal scores the right one comes last: ties earn nothing."""
    return sum(score >= scores[right] for score in scores)


def quality(ranks: Sequence[int]) -> Quality:
    """Mean reciprocal rank, and the share of ranks that are 1."""
    return Quality(sum(1 / each for each in ranks) / len(ranks), ranks.count(1) / len(ranks))


def gain(ranks: Sequence[int], better: Sequence[int]) -> tuple[float, float]:
    """By how much `better` has the higher MRR on the same queries, and the standard error of that difference."""
    differences = [1 / ours - 1 / theirs for ours, theirs in zip(better, ranks, strict=True)]
    return statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def table(ranks: Mapping[str, Sequence[int]]) -> str:
    """The figures as a Markdown table. The last method is compared with each."""
    *_, last = ranks
    rows = []
    for method, places in ranks.items():
        found, (mean, error) = quality(places), gain(places, ranks[last])
        beaten = f"{mean:+.3f} ± {error:.3f}" if method != last else ""
        rows.append(f"| {method} | {found.mrr:.3f} | {found.top_1:.3f} | {beaten} |")
    return "\n".join((f"| | MRR | top-1 | higher MRR of the {last} (± standard error) |", "|---|---|---|---|", *rows))
