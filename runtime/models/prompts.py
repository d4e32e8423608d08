"""A model's prompts by name: its own and the registry's, under every name that clients use for them."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.errors import UnknownPrompt, UnsupportedModel

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
        """`default`: the name of the prompt for requests that name none. Raises UnsupportedModel if there is none."""
        self._texts = {name: text or "" for name, text in texts.items()}
        self._default = None if default is None else self._found(default)
        if default is not None and self._default is None:
            raise UnsupportedModel(f"default_prompt: there is no prompt {default!r}; its prompts are: {self._listed}")

    @property
    def names(self) -> tuple[str, ...]:
        """As the model's files and the registry write them."""
        return tuple(self._texts)

    def text(self, name: str | None, optional: bool = False) -> str:
        """The prompt of that name; the default one's where none is named, mostly empty. Raises as `name` does."""
        found = self.name(name, optional)
        return "" if found is None else self._texts.get(found, "")

    def name(self, name: str | None, optional: bool = False) -> str | None:
        """The model's own name of the prompt that is meant; the default's where none is named.

        Raises UnknownPrompt where there is none of that name, unless it is `optional`: then the default's, too.
        """
        if name is None:
            return self._default
        found = self._found(name)
        if found is None and optional:
            return self._default
        if found is None:
            raise UnknownPrompt(f"this model has no such prompt; its prompts are: {self._listed}")
        return found

    def _found(self, name: str) -> str | None:
        return next((known for known in (name, *SYNONYMS.get(name, ())) if known in self._texts), None)

    @property
    def _listed(self) -> str:
        return ", ".join(sorted(self._texts)) or "none"
