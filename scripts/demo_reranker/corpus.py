"""The training text: Debian's package descriptions, a synopsis (query) beside what it sums up (document).

apt fetches them from the sources that this machine uses, into a private folder; the system's own lists stay as they
are. Each description has its package's licence, so none of the text is kept in the repository.
"""

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MIN_QUERY_WORDS = 3
MIN_DOCUMENT_WORDS = 10
# Packages of one source share the head of their text. Alike within this many words means alike for training.
HEAD_WORDS = 30
SUITE = re.compile(r"^(?:Codename|Suite|Date): (.+)$", re.MULTILINE)


class Pair(NamedTuple):
    """A query and the one document that answers it."""

    query: str
    document: str


@dataclass(frozen=True)
class Corpus:
    """The pairs of both parts. No document of `held_out` is in `train`, as an answer or as a wrong one."""

    train: list[Pair]
    held_out: list[Pair]
    releases: str

    @property
    def digest(self) -> str:
        """A hash of all pairs, in their order."""
        return digest(text for pair in (*self.train, *self.held_out) for text in pair)


def digest(texts: Iterable[str]) -> str:
    """A short hash of some texts and their order."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def load_corpus(cache: Path, train: int, held_out: int, seed: int) -> Corpus:
    """Fetch the descriptions unless `cache` has them, and draw both parts."""
    lists = cache / "apt-lists"
    if not list(translations(lists)):
        fetch(lists)
    texts = (path.read_text(encoding="utf-8") for path in translations(lists))
    pairs = distinct(sorted(pair for text in texts for pair in read_pairs(text)))
    if len(pairs) < train + held_out:
        raise SystemExit(f"{len(pairs)} descriptions were found, and {train + held_out} are needed")
    drawn = random.Random(seed).sample(pairs, train + held_out)
    return Corpus(drawn[:train], drawn[train:], releases(lists))


def translations(lists: Path) -> Iterator[Path]:
    """The files with English descriptions among apt's lists."""
    return iter(sorted(lists.glob("*_Translation-en")))


def fetch(lists: Path) -> None:
    """Let apt write its index of English descriptions, about 35 MB unpacked, into `lists`."""
    if not shutil.which("apt-get"):
        raise SystemExit("the training text is Debian's package descriptions: run this where there is apt-get")
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::lists": lists,
        "Dir::Cache": lists.parent / "apt-cache",
        "Acquire::Languages": "en",
        "Acquire::GzipIndexes": "false",
        "Acquire::IndexTargets::deb::Packages::DefaultEnabled": "false",
        "APT::Sandbox::User": "root",  # apt's own user can't write to a private folder
    }
    chosen = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    environment = {**os.environ, "LC_ALL": "C"}
    subprocess.run(["apt-get", *chosen, "--quiet", "update"], check=True, env=environment, stdout=sys.stderr)


def releases(lists: Path) -> str:
    """Which releases the descriptions are of, with their dates."""
    found = {" ".join(SUITE.findall(path.read_text(encoding="utf-8"))[:3]) for path in lists.glob("*_InRelease")}
    return "; ".join(sorted(found))


def read_pairs(translation: str) -> Iterator[Pair]:
    """The pairs of a file of apt's: stanzas, each with a synopsis and, indented, the description."""
    for stanza in translation.split("\n\n"):
        _, _, described = stanza.partition("\nDescription-en: ")
        synopsis, *lines = described.split("\n")
        words = [line.strip() for line in lines if line.startswith(" ") and line.strip() != "."]
        pair = Pair(" ".join(synopsis.split()), " ".join(" ".join(words).split()))
        if len(pair.query.split()) >= MIN_QUERY_WORDS and len(pair.document.split()) >= MIN_DOCUMENT_WORDS:
            yield pair


def distinct(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs without those whose query, or whose document's head, an earlier one has."""
    seen: set[str] = set()
    kept = []
    for pair in pairs:
        keys = {f"query {pair.query.lower()}", " ".join(pair.document.lower().split()[:HEAD_WORDS])}
        if seen.isdisjoint(keys):
            kept.append(pair)
        seen |= keys
    return kept
