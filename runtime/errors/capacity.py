"""What the moment forbids: the request is fine and may succeed later."""

from __future__ import annotations

from runtime.errors.tree import CapacityError


class QueueFull(CapacityError):
    """The model's queue already holds as much work as may wait."""

    status = 429
    code = "queue_full"


class RateLimited(CapacityError):
    """The API key's tokens of this minute are spent."""

    status = 429
    code = "rate_limited"
    kind = "rate_limit_error"


class ModelLoading(CapacityError):
    """The model is still being loaded."""

    code = "model_loading"
    retry_after_s = 5.0


class NoRoomNow(CapacityError):
    """The model is not in memory, and those that are must stay for now."""

    code = "no_room_now"


class PinnedOut(CapacityError):
    """The model has no room beside those that are pinned; it has once an operator unpins them."""

    code = "pinned_out"
    retry_after_s = 300.0
    """Nobody knows when; clients of OpenAI's don't sleep that long, and give up soon."""


class Draining(CapacityError):
    """The server is shutting down."""

    code = "draining"
