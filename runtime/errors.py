"""Every way to fail, as one tree: each class has an HTTP status, a code and a type.

    CotenantError
    ├── StartupError              a configuration that can't be served (ends the start, never a request)
    │   ├── ConfigurationError
    │   ├── SourceNotFound
    │   └── UnsupportedModel
    ├── RequestError              the caller's fault; sending it again changes nothing
    │   ├── InvalidJson
    │   ├── InvalidRequest
    │   │   ├── EmptyInput
    │   │   ├── TooManyInputs
    │   │   ├── InputTooLong
    │   │   ├── InvalidDimensions
    │   │   ├── InvalidEncoding
    │   │   ├── TokenIdsNotAccepted
    │   │   └── UnknownPrompt
    │   ├── ModelRequired
    │   ├── ModelNotFound
    │   ├── UnsupportedCapability
    │   ├── UnsupportedMediaType
    │   ├── BodyTooLarge
    │   ├── RouteNotFound
    │   ├── MethodNotAllowed
    │   └── AdminRefused
    ├── CapacityError             the moment's fault; sending it again later may work
    │   ├── QueueFull
    │   ├── ModelLoading
    │   ├── NoRoomNow
    │   └── Draining
    ├── RequestCancelled          the client hung up
    └── ExecutionError            the model's or the device's fault
        ├── ModelFailed
        ├── DoesNotFit
        ├── OutOfMemory
        ├── ForwardFailed
        └── NonFiniteOutput

Messages never repeat the caller's input. The edge turns the tree into HTTP in one place (`api/problems.py`);
anything outside the tree is a bug: status 500 with the request's id.
"""

from __future__ import annotations


class CotenantError(Exception):
    """Root of the tree. `status`: HTTP status; `code`: stable machine word; `kind`: OpenAI's `type`."""

    status: int = 500
    code: str = "internal_error"
    kind: str = "server_error"
    retry_after_s: float | None = None
    """Seconds after which the same request may succeed; sent as `Retry-After`. None: no promise."""
    param: str | None = None
    """The request field at fault, when there is one."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        if param is not None:
            self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


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


class InvalidJson(RequestError):
    """The body is not JSON (or holds text that is not Unicode, such as a lone surrogate)."""

    code = "invalid_json"


class InvalidRequest(RequestError):
    """The body is JSON but not of the route's schema. Infinity's and TEI's own paths answer it with 422."""


class EmptyInput(InvalidRequest):
    """A list of no inputs (an empty string is an input like any other)."""

    status = 422
    code = "empty_input"
    param = "input"


class TooManyInputs(InvalidRequest):
    """More inputs than the server takes in one request."""

    code = "too_many_inputs"
    param = "input"


class InputTooLong(InvalidRequest):
    """An input beyond the model's limit although truncation was switched off."""

    code = "input_too_long"
    param = "input"


class InvalidDimensions(InvalidRequest):
    """`dimensions` outside 1 to the model's width."""

    code = "invalid_dimensions"
    param = "dimensions"


class InvalidEncoding(InvalidRequest):
    """An `encoding_format` or `embed_dtype` that is not offered."""

    code = "invalid_encoding_format"
    param = "encoding_format"


class TokenIdsNotAccepted(InvalidRequest):
    """Token ids where text is wanted: another tokenizer's ids would give garbage vectors."""

    code = "token_ids_not_accepted"
    param = "input"


class UnknownPrompt(InvalidRequest):
    """A prompt name that the model doesn't have."""

    code = "unknown_prompt"
    param = "prompt_name"


class ModelRequired(RequestError):
    """No model is named and more than one could be meant."""

    code = "model_required"
    param = "model"


class ModelNotFound(RequestError):
    """The named model is not served here."""

    status = 404
    code = "model_not_found"
    kind = "not_found_error"
    param = "model"


class UnsupportedCapability(RequestError):
    """The model is served but can't do this task."""

    code = "unsupported_capability"
    param = "model"


class UnsupportedMediaType(RequestError):
    """The body's content type is not JSON."""

    status = 415
    code = "unsupported_media_type"


class BodyTooLarge(RequestError):
    """The body is larger than the server takes."""

    status = 413
    code = "request_too_large"


class RouteNotFound(RequestError):
    """No such path."""

    status = 404
    code = "route_not_found"
    kind = "not_found_error"


class MethodNotAllowed(RequestError):
    """The path exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class AdminRefused(RequestError):
    """An administrator's route, asked by somebody who may not."""

    status = 403
    code = "admin_refused"
    kind = "permission_error"


class CapacityError(CotenantError):
    """Not now: the request is fine and may succeed later."""

    status = 503
    code = "unavailable"
    kind = "overloaded_error"
    retry_after_s = 1.0


class QueueFull(CapacityError):
    """The model's queue already holds as much work as may wait."""

    status = 429
    code = "queue_full"


class ModelLoading(CapacityError):
    """The model is still being loaded."""

    code = "model_loading"
    retry_after_s = 5.0


class NoRoomNow(CapacityError):
    """The model is not in memory, and those that are must stay for now."""

    code = "no_room_now"


class Draining(CapacityError):
    """The server is shutting down."""

    code = "draining"


class RequestCancelled(CotenantError):
    """The client hung up; its waiting work was dropped. Nobody reads this answer."""

    status = 499
    code = "request_cancelled"
    kind = "cancelled"


class ExecutionError(CotenantError):
    """The model or the device failed on this request."""

    code = "execution_failed"


class ModelFailed(ExecutionError):
    """The model could not be loaded; it stays out of service until it is loaded again."""

    status = 503
    code = "model_failed"


class DoesNotFit(ExecutionError):
    """The model can't be resident within the memory budget, whoever else leaves."""

    status = 503
    code = "does_not_fit"


class OutOfMemory(ExecutionError):
    """The device ran out of memory for this input even alone."""

    status = 503
    code = "out_of_memory"


class ForwardFailed(ExecutionError):
    """The model raised on this input."""

    code = "forward_failed"


class NonFiniteOutput(ExecutionError):
    """The model computed NaN or infinity for this input; a fake vector is never served."""

    code = "non_finite_output"
