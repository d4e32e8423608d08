"""Real text of known length for the workloads, cut from Python's own documentation strings.

The same interpreter gives the same texts every time; `Corpus.fingerprint` tells two interpreters apart.
"""

import ast
import hashlib
import random
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from pydoc_data.topics import topics

# Modules with long, plain-English documentation strings. They are parsed, never imported.
DOCUMENTED_MODULES = (
    *("_pydecimal", "_pyio", "argparse", "ast", "bdb", "calendar", "cmd", "codecs", "concurrent.futures"),
    *("configparser", "contextlib", "csv", "dataclasses", "difflib", "dis", "doctest", "enum", "filecmp"),
    *("fractions", "ftplib", "functools", "gettext", "glob", "gzip", "heapq", "imaplib", "inspect"),
    *("ipaddress", "locale", "lzma", "mailbox", "mimetypes", "netrc", "ntpath", "numbers", "optparse", "os"),
    *("pathlib", "pdb", "pickle", "pickletools", "pkgutil", "platform", "plistlib", "poplib", "posixpath"),
    *("pprint", "profile", "pydoc", "queue", "quopri", "random", "sched", "selectors", "shelve", "shlex"),
    *("shutil", "smtplib", "socket", "socketserver", "ssl", "statistics", "string", "subprocess", "symtable"),
    *("tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize", "trace", "traceback", "turtle"),
    *("typing", "uuid", "warnings", "wave", "weakref", "zipapp", "zipfile"),
)
SEED = 20_261_129
QUERY_WORDS = range(10, 15)
QUERY_COUNT = 512
REQUEST_TEXTS = 32
REQUEST_COUNT = 96
# A word of this prose is about 1.5 WordPiece tokens: a lognormal of these words has a mean of about 32 tokens
# ([CLS] and [SEP] counted) and a long tail, as the chunks of a documentation index have.
TEXT_WORDS_MEDIAN = 15.0
TEXT_WORDS_SIGMA = 0.8
TEXT_WORDS_RANGE = (3, 150)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Queries of 10 to 14 words, and texts of mixed length in requests of 32."""

    queries: tuple[str, ...]
    requests: tuple[tuple[str, ...], ...]

    @property
    def texts(self) -> list[str]:
        return [text for request in self.requests for text in request]

    def candidates(self, count: int) -> Iterator[tuple[str, list[str]]]:
        """Each query with the next `count` texts, as a first stage of retrieval would hand them over; endless."""
        texts = cycle(self.texts)
        for query in cycle(self.queries):
            yield query, list(islice(texts, count))

    @cached_property
    def fingerprint(self) -> str:
        """The first 12 hex digits of the SHA-256 over every query and text, in order."""
        joined = "\0".join([*self.queries, *self.texts])
        return hashlib.sha256(joined.encode()).hexdigest()[:12]


def load_corpus() -> Corpus:
    """Collects, draws and cuts; reads source files and blocks for about two seconds."""
    chooser = random.Random(SEED)
    documents = list(_documents())
    passages = sorted({*_paragraphs(documents), *_summaries(documents)})
    by_words: dict[int, list[str]] = {}
    for passage in passages:
        by_words.setdefault(len(passage.split()), []).append(passage)
    for same_length in by_words.values():
        chooser.shuffle(same_length)
    queries = [query for words in QUERY_WORDS for query in by_words.pop(words)]
    chooser.shuffle(queries)
    # What the queries leave over goes back, so that texts of these lengths exist too.
    for leftover in queries[QUERY_COUNT:]:
        by_words.setdefault(len(leftover.split()), []).append(leftover)
    texts = _draw_texts(by_words, REQUEST_COUNT * REQUEST_TEXTS, chooser)
    starts = range(0, len(texts), REQUEST_TEXTS)
    return Corpus(
        queries=tuple(queries[:QUERY_COUNT]),
        requests=tuple(tuple(texts[start : start + REQUEST_TEXTS]) for start in starts),
    )


def _draw_texts(by_words: dict[int, list[str]], count: int, chooser: random.Random) -> list[str]:
    """Draws lognormal lengths, and for each the nearest unused passage."""
    lengths = sorted(by_words)
    shortest, longest = TEXT_WORDS_RANGE
    texts: list[str] = []
    while len(texts) < count:
        wanted = TEXT_WORDS_MEDIAN * chooser.lognormvariate(0.0, TEXT_WORDS_SIGMA)
        if not shortest <= wanted <= longest:
            continue
        place = min(bisect_left(lengths, round(wanted)), len(lengths) - 1)
        passages = by_words[lengths[place]]
        texts.append(passages.pop())
        if not passages:
            del lengths[place]
    return texts


def _paragraphs(documents: list[str]) -> Iterator[str]:
    """Every paragraph, and every pair of neighbours: long texts are rare as single paragraphs."""
    for document in documents:
        prose = [paragraph for paragraph in map(_one_line, re.split(r"\n\s*\n", document)) if _is_prose(paragraph)]
        yield from prose
        yield from (f"{first} {second}" for first, second in zip(prose[::2], prose[1::2], strict=False))


def _summaries(documents: list[str]) -> Iterator[str]:
    """First sentences, the short texts."""
    for document in documents:
        summary = _one_line(document).split(". ")[0]
        if _is_prose(summary):
            yield summary


def _documents() -> Iterator[str]:
    yield from (topics[name] for name in sorted(topics))
    for module in DOCUMENTED_MODULES:
        yield from _docstrings(module)


def _docstrings(module: str) -> Iterator[str]:
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    """Leaves out grammar rules, tables, doctests and signatures."""
    letters = sum(character.isalpha() or character == " " for character in text)
    return len(text.split()) >= TEXT_WORDS_RANGE[0] and letters >= 0.88 * len(text) and not re.search(">>>|::", text)
