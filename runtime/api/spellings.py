"""Fields that go by two names: an error is about the one that the caller wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import BaseModel, ModelWrapValidatorHandler, PrivateAttr, model_validator

from runtime.errors import CotenantError

OTHER_NAMES: Final[Mapping[str, str]] = {"prompt_name": "input_type", "dimensions": "output_dimension"}
"""The name of Cohere's and Voyage's clients for a field, by the name that errors have for it."""


class Spelled(BaseModel):
    """A body that remembers how its fields were written."""

    _written: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="wrap")
    @classmethod
    def _remember(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        found = handler(data)
        if isinstance(data, dict):
            found._written = frozenset(data)
        return found

    def in_own_words(self, error: CotenantError) -> CotenantError:
        """The same error, about the field's other name where the caller wrote only that."""
        other = OTHER_NAMES.get(error.param or "")
        if other is None or error.param in self._written or other not in self._written:
            return error
        return error.about(other)
