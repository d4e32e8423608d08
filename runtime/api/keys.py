"""Named API keys: read from a file and from settings, kept as SHA-256 alone.

A key is 256 random bits, so a plain hash is enough: there is nothing to guess. No error repeats a key.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, SecretStr, ValidationError

from runtime.configuration import read_tree
from runtime.errors import ConfigurationError
from runtime.registry import Section, ServerSettings
from runtime.work import Lane

HASHED: Final = re.compile(r"sha256:([0-9a-f]{64})")
ONLY_NAME: Final = "default"
"""Name and tenant of the one key of `server.api_key`."""

Name = Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]
"""Short and plain: it stands in log lines and metrics."""


class KeyEntry(Section):
    """One key of the file."""

    name: Name
    key: SecretStr = Field(min_length=1)
    """`sha256:` and 64 hexadecimal digits, or the key itself."""
    tenant: Name | None = None
    """Whom the tokens are counted for; the name by default."""
    models: tuple[str, ...] | None = None
    """Ids, served names or aliases that may be used; None: all."""
    lane: Lane | None = None
    tokens_per_minute: int | None = Field(None, ge=1)
    admin: bool = False


class KeyFile(Section):
    """The file of `server.keys_file`."""

    keys: tuple[KeyEntry, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Key:
    """A key's hash and what it allows."""

    digest: bytes
    entry: KeyEntry


def read_keys(settings: ServerSettings) -> list[Key]:
    """Every key that is configured; none: the server is open. Raises ConfigurationError."""
    entries = [*entries_of_settings(settings), *entries_of_file(settings.keys_file)]
    keys = [Key(digest_of(entry), entry) for entry in entries]
    for kind, found in (("name", [key.entry.name for key in keys]), ("key", [key.digest for key in keys])):
        if len(set(found)) < len(found):
            raise ConfigurationError(f"two API keys have one {kind}")
    return keys


def entries_of_settings(settings: ServerSettings) -> Iterator[KeyEntry]:
    """The keys of `server.api_key` and `server.api_keys`. Raises ConfigurationError."""
    if settings.api_key is not None:
        if not settings.api_key.get_secret_value().strip():
            raise ConfigurationError("server.api_key (COTENANT_API_KEY) is blank: nobody could send it")
        yield KeyEntry(name=ONLY_NAME, key=settings.api_key, admin=True)
    if settings.api_keys is not None:
        for pair in settings.api_keys.get_secret_value().split(","):
            name, _, key = pair.strip().partition(":")
            try:
                yield KeyEntry.model_validate({"name": name, "key": key})
            except ValidationError:
                raise ConfigurationError("server.api_keys (COTENANT_API_KEYS): write NAME:KEY,NAME:KEY") from None


def entries_of_file(path: str | None) -> tuple[KeyEntry, ...]:
    """The keys of a YAML file. Raises ConfigurationError."""
    if path is None:
        return ()
    try:
        return KeyFile.model_validate(read_tree(Path(path).absolute(), "keys")).keys
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = "there is no key in it: `cotenant key NAME` makes one" if first["type"] == "too_short" else first["msg"]
        raise ConfigurationError(f"{path}: {where}: {said}") from None


def digest_of(entry: KeyEntry) -> bytes:
    """The key's SHA-256, 32 bytes."""
    text = entry.key.get_secret_value()
    hashed = HASHED.fullmatch(text)
    return bytes.fromhex(hashed[1]) if hashed else hash_of(text.encode())


def hash_of(key: bytes) -> bytes:
    """SHA-256, 32 bytes."""
    return hashlib.sha256(key).digest()


def new_key(name: str) -> tuple[str, str]:
    """A fresh key, and its entry for the file. Raises ConfigurationError for a name that is too odd."""
    key = f"ctn-{secrets.token_urlsafe(32)}"
    try:
        KeyEntry.model_validate({"name": name, "key": key})
    except ValidationError:
        raise ConfigurationError("a key's name has 1 to 64 letters, digits, dots, dashes or underscores") from None
    return key, f'- name: "{name}"\n  key: sha256:{hash_of(key.encode()).hex()}\n'
