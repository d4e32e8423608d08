"""Where in the caller's body each of a job's inputs stands, so that an error names it as the caller does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runtime.errors import CotenantError


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a job's inputs, by their index; they are only worked out for an error."""

    field: str
    """The field that holds them."""
    of: Callable[[int], str] | None = None
    """Where it isn't `field[index]`."""

    def at(self, index: int) -> str:
        """Such as `documents[3]`."""
        return f"{self.field}[{index}]" if self.of is None else self.of(index)

    def named(self, error: CotenantError) -> CotenantError:
        """The error about one of the inputs, or about all of them, in the caller's words."""
        return error.in_field(self.field) if error.index is None else error.located(self.at(error.index))


def lone(field: str) -> Places:
    """The field is the input itself."""
    return Places(field, lambda _: field)


def places_of(field: str, value: object) -> Places:
    """Of inputs that came as a list, or as one text, one list of token ids or one conversation."""
    single = not isinstance(value, list) or (field == "messages" and bool(value) and not isinstance(value[0], list))
    return lone(field) if single or (isinstance(value, list) and value and type(value[0]) is int) else Places(field)
