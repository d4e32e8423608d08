"""Every way to fail, as one tree: each class has an HTTP status, a code and a type.

    CotenantError
    ├── StartupError              a configuration that can't be served (ends the start, never a request)
    │   ├── ConfigurationError
    │   ├── SourceNotFound
    │   └── UnsupportedModel
    ├── RequestError              the caller's fault; sending it again changes nothing
    │   ├── Unauthenticated
    │   ├── Forbidden
    │   ├── InvalidJson
    │   ├── InvalidRequest
    │   │   ├── EmptyInput
    │   │   ├── TooManyInputs
    │   │   ├── TooManyDocuments
    │   │   ├── InputTooLong
    │   │   ├── InvalidDimensions
    │   │   ├── InvalidEncoding
    │   │   ├── TokenIdsNotAccepted
    │   │   └── UnknownPrompt
    │   ├── ModelRequired
    │   ├── ModelNotFound
    │   ├── UnsupportedCapability
    │   ├── InvalidImage
    │   ├── UnsupportedImage
    │   ├── ImageTooLarge
    │   ├── ImageUrlRefused
    │   ├── ImageUnreachable
    │   ├── UnsupportedMediaType
    │   ├── BodyTooLarge
    │   ├── RouteNotFound
    │   ├── MethodNotAllowed
    │   └── AdminRefused
    ├── CapacityError             the moment's fault; sending it again later may work
    │   ├── QueueFull
    │   ├── RateLimited
    │   ├── ModelLoading
    │   ├── NoRoomNow
    │   ├── PinnedOut
    │   └── Draining
    ├── RequestCancelled          the client hung up
    ├── BodyTimeout               the request's body did not come in time
    ├── DeadlineExceeded          the client's own deadline passed
    └── ExecutionError            the model's or the device's fault: ModelFailed, DoesNotFit, OutOfMemory, …

Messages never repeat the caller's input. The edge turns the tree into HTTP in one place (`api/problems.py`);
anything outside the tree is a bug: status 500 with the request's id.
"""

from __future__ import annotations

import copy
from typing import Final, Self

INPUT: Final = "{input}"
"""What messages call the input at fault, until it is known what the caller calls it."""


class CotenantError(Exception):
    """Root of the tree. `status`: HTTP status; `code`: stable machine word; `kind`: OpenAI's `type`."""

    status: int = 500
    code: str = "internal_error"
    kind: str = "server_error"
    retry_after_s: float | None = None
    """Seconds after which the same request may succeed; sent as `Retry-After`. None: no promise."""
    param: str | None = None
    """The request field at fault, when there is one."""

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None, index: int | None = None
    ) -> None:
        """`index`: which of the job's inputs is at fault; `message` has `{input}` in its place."""
        super().__init__(message)
        self._words = message
        self.index = index
        if param is not None:
            self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    @property
    def message(self) -> str:
        """What went wrong, in words."""
        return self._words if self.index is None else self._words.replace(INPUT, f"input {self.index}")

    def __str__(self) -> str:
        return self.message

    def of_input(self, index: int) -> Self:
        """The same about another of the job's inputs, where it is about one."""
        if self.index is None:
            return self
        found = copy.copy(self)
        found.index = index
        return found

    def located(self, place: str) -> Self:
        """The same in the caller's words: `place`, such as `documents[3]`, is where the input at fault stands."""
        found = self.in_field(place.partition("[")[0].partition(".")[0])
        found._words = f"{place}: {self._words}" if self.index is None else self._words.replace(INPUT, place)
        found.index = None
        return found

    def in_field(self, name: str) -> Self:
        """The same, with `name` as the field at fault where that was just called `input`."""
        found = copy.copy(self)
        if self.param == "input":
            found.param = name
        return found

    def about(self, name: str) -> Self:
        """The same by another name of the field at fault, also where the message begins with it."""
        found = copy.copy(self)
        if self.param is not None and self._words.startswith(f"{self.param} "):
            found._words = f"{name}{self._words.removeprefix(self.param)}"
        found.param = name
        return found


class StartupError(CotenantError):
    """The server can't start as asked."""

    code = "startup_error"


class ConfigurationError(StartupError):
    """A flag, an environment variable or a registry key is wrong."""

    code = "configuration_error"


class SourceNotFound(StartupError):
    """A model's files are not where its source says."""

    code = "source_not_found"


class UnsupportedModel(StartupError):
    """A model of a kind that no family here can run."""

    code = "unsupported_model"


class RequestError(CotenantError):
    """The request is at fault; the same request will always fail."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"


class CapacityError(CotenantError):
    """Not now: the request is fine and may succeed later."""

    status = 503
    code = "unavailable"
    kind = "overloaded_error"
    retry_after_s = 1.0


class RequestCancelled(CotenantError):
    """The client hung up; its waiting work was dropped. Nobody reads this answer."""

    status = 499
    code = "request_cancelled"
    kind = "cancelled"


class BodyTimeout(CotenantError):
    """The request's body stalled, or took too long; the same request may come through."""

    status = 408
    code = "body_timeout"
    kind = "timeout_error"


class DeadlineExceeded(CotenantError):
    """The client's deadline passed before the answer was there; what still waited was dropped."""

    status = 504
    code = "deadline_exceeded"
    kind = "timeout_error"


class ExecutionError(CotenantError):
    """The model or the device failed on this request."""

    code = "execution_failed"
