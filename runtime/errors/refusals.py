"""What the caller did wrong: one class a mistake; sending the same again changes nothing."""

from __future__ import annotations

from runtime.errors.tree import RequestError


class Unauthenticated(RequestError):
    """No API key, or one that nobody has."""

    status = 401
    code = "unauthenticated"
    kind = "authentication_error"


class Forbidden(RequestError):
    """The API key is known, and not for this."""

    status = 403
    code = "forbidden"
    kind = "permission_error"


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


class TooManyDocuments(InvalidRequest):
    """More documents than the server scores against one query."""

    code = "too_many_documents"
    param = "documents"


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


class InvalidImage(RequestError):
    """A picture that is no picture: broken base64, damaged or cut off, or too thin to be looked at."""

    code = "invalid_image"
    param = "input"


class UnsupportedImage(RequestError):
    """A picture of a format, or with pixels of a kind, that is not taken."""

    code = "unsupported_image"
    param = "input"


class ImageTooLarge(RequestError):
    """A picture of more bytes or pixels than the server takes."""

    status = 413
    code = "image_too_large"
    param = "input"


class ImageUrlRefused(RequestError):
    """A picture's address that this server doesn't fetch from."""

    code = "image_url_not_allowed"
    param = "input"


class ImageUnreachable(RequestError):
    """A picture's address is allowed, but what stands there didn't come: in time, whole, or at all."""

    code = "image_unreachable"
    param = "input"


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
