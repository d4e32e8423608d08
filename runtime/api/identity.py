"""Who asks, and what they may: API keys from `Authorization` or `x-api-key`, compared in constant time.

Without any key configured the server is open: whoever reaches it may do everything.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from runtime.api.keys import Key, hash_of, read_keys
from runtime.errors import Forbidden, Unauthenticated
from runtime.registry import ModelSpec, ServerSettings
from runtime.work import Lane

SCHEME: Final = b"bearer "
PROBES: Final = frozenset(
    {
        *("/health", "/live", "/ready", "/ping"),
        *("/v2/health/live", "/v2/health/ready"),
        *("/.well-known/live", "/.well-known/ready"),
    }
)
"""Liveness and readiness: open to all, or an orchestrator restarts a server that is well."""
MODEL_LISTS: Final = frozenset({"/models", "/v1/models"})
MODEL: Final = "/v1/models/"
METRICS: Final = frozenset({"/metrics"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One key's rights."""

    name: str = ""
    tenant: str = "default"
    """Whom tokens are counted for."""
    models: frozenset[str] | None = None
    """Names of the models that may be used; None: all."""
    lane: Lane | None = None
    """The lane of requests that don't ask for bulk; None: the one that they ask for."""
    tokens_per_minute: int | None = None
    admin: bool = True

    def may_use(self, names: Iterable[str]) -> bool:
        """Whether one of a model's names is on the key's list."""
        return self.models is None or not self.models.isdisjoint(names)

    def check_model(self, spec: ModelSpec) -> None:
        """Raises Forbidden where the key isn't for that model."""
        if not self.may_use(spec.names):
            raise Forbidden("this API key is not for that model", param="model")

    def check_admin(self) -> None:
        """Raises Forbidden where the key has no admin right."""
        if not self.admin:
            raise Forbidden("this API key has no admin right")


ANYONE: Final = Caller()
"""Who asks a server without keys."""


class Guard:
    """All keys, by their hashes. On the event loop only."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises ConfigurationError where the keys can't be read."""
        self._callers: Sequence[tuple[bytes, Caller]] = ()
        self.replace(read_keys(settings))
        shown = MODEL_LISTS if settings.public_models else frozenset()
        self._public = PROBES | shown | (METRICS if settings.public_metrics else frozenset())

    def replace(self, keys: Sequence[Key]) -> None:
        """Know these keys and no others. A request whose key was known when it came goes on with that key's rights."""
        self._callers = [(key.digest, caller_of(key)) for key in keys]

    @property
    def has_keys(self) -> bool:
        """Whether any key is configured."""
        return bool(self._callers)

    def recognise(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """Whose key the request has; None: none that is known."""
        if not self._callers:
            return ANYONE
        authorization = headers.get(b"authorization", b"").strip()
        if authorization[: len(SCHEME)].lower() == SCHEME:
            authorization = authorization[len(SCHEME) :].strip()
        return self._owner(authorization) or self._owner(headers.get(b"x-api-key", b"").strip())

    def is_public(self, path: str) -> bool:
        """Whether this path answers without a key."""
        return path in self._public or (path.startswith(MODEL) and MODEL[:-1] in self._public)

    def _owner(self, presented: bytes) -> Caller | None:
        """All keys are compared, whichever fits, so that the time taken tells nothing."""
        digest = hash_of(presented)
        owner: Caller | None = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                owner = caller
        return owner


def caller_of(key: Key) -> Caller:
    """What a key's entry allows."""
    entry = key.entry
    return Caller(
        name=entry.name,
        tenant=entry.tenant or entry.name,
        models=None if entry.models is None else frozenset(entry.models),
        lane=entry.lane,
        tokens_per_minute=entry.tokens_per_minute,
        admin=entry.admin,
    )


def unauthenticated(headers: Mapping[bytes, bytes]) -> Unauthenticated:
    """The refusal of a request without a key, or with one that nobody has."""
    sent = {headers.get(name, b"").strip().lower() for name in (b"authorization", b"x-api-key")}
    if sent - {b"", SCHEME.strip()}:
        return Unauthenticated("this API key is not known")
    return Unauthenticated("an API key is needed: send it as `Authorization: Bearer …` or `x-api-key`")
