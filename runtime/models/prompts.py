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
        if name is None:
            return self._texts.get(self._default or "", "")
        for candidate in (name, *SYNONYMS.get(name, ())):
            if candidate in self._texts:
                return self._texts[candidate]
        names = ", ".join(sorted(self._texts)) or "none"
        raise UnknownPrompt(f"this model has no such prompt; its prompts are: {names}")
