"""A model's prompts by name: its own and the registry's, under every name that clients use for them."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.errors import UnknownPrompt

SYNONYMS = {
    "search_query": ("query",),
    "search_document": ("document", "passage", "corpus"),
    "query": ("search_query",),
    "document": ("passage", "corpus", "search_document"),
    "passage": ("document", "corpus", "search_document"),
}
"""Cohere's, Voyage's and sentence-transformers' names for the same two prompts."""

QUERIES = frozenset({"query", "search_query"})
DOCUMENTS = frozenset({"document", "passage", "corpus", "search_document"})


def is_document(name: str | None) -> bool:
    """Whether a prompt of that name is for what is searched rather than for what searches."""
    return name in DOCUMENTS


def is_query(name: str | None) -> bool:
    """Whether a prompt of that name is for what searches."""
    return name in QUERIES


class Prompts:
    """Immutable."""

    def __init__(self, texts: Mapping[str, str | None], default: str | None) -> None:
        """`default`: the name of the prompt for requests that name none."""
        self._texts = {name: text or "" for name, text in texts.items()}
        self._default = default

    @property
    def names(self) -> tuple[str, ...]:
        """As the model's files and the registry write them."""
        return tuple(self._texts)

    def text(self, name: str | None) -> str:
        """The prompt of that name; the default one's where none is named, mostly empty. Raises UnknownPrompt."""
        found = self.name(name)
        return "" if found is None else self._texts.get(found, "")

    def name(self, name: str | None) -> str | None:
        """The model's own name of the prompt that is meant; the default's where none is named. Raises UnknownPrompt."""
        if name is None:
            return self._default
        for candidate in (name, *SYNONYMS.get(name, ())):
            if candidate in self._texts:
                return candidate
        names = ", ".join(sorted(self._texts)) or "none"
        raise UnknownPrompt(f"this model has no such prompt; its prompts are: {names}")
