"""What every handler shares: the engine, its limits, and what is worth remembering about its models."""

from __future__ import annotations

import time

from runtime.api.body import BodyLimits
from runtime.api.contract import Engine
from runtime.api.fetching import Fetcher
from runtime.api.identity import Guard
from runtime.api.quota import Quota
from runtime.api.tracing import Tracing
from runtime.pictures import PictureLimits
from runtime.work import MAXSIM_ID


class Edge:
    """One per app; used on the event loop only."""

    def __init__(self, engine: Engine, guard: Guard | None = None) -> None:
        """`guard`: who may ask; None: whoever the settings say.

        Raises ConfigurationError where the API keys can't be read, or tracing is asked for and not installed.
        """
        self.engine = engine
        self.limits = engine.config.server
        self.guard = guard or Guard(self.limits)
        self.body_limits = BodyLimits(
            self.limits.max_body_bytes, stall_s=self.limits.body_stall_timeout_s, total_s=self.limits.body_timeout_s
        )
        self.quota = Quota()
        self.picture_limits = PictureLimits(self.limits.max_image_pixels, self.limits.max_image_bytes)
        self.fetcher = Fetcher(
            self.limits.allow_image_hosts,
            timeout_s=self.limits.image_fetch_timeout_s,
            max_bytes=self.limits.max_image_bytes,
        )
        self.tracing = Tracing() if self.limits.tracing else None
        self.created = int(time.time())
        """`created` of every model: when this process began to serve it."""
        self._compute: dict[str, bytes] = {}

    def compute(self, model_id: str) -> bytes | None:
        """TEI's `x-compute-type`: `cpu` or `gpu`; None until the model has a device."""
        known = self._known(model_id)
        if known is None:
            for status in self.engine.describe():
                if status.device is not None:
                    self._compute[status.id] = b"cpu" if status.device.startswith("cpu") else b"gpu"
            known = self._known(model_id)
        return known

    def _known(self, model_id: str) -> bytes | None:
        """What is built in runs on the device that all models share."""
        return self._compute.get(model_id) or (
            next(iter(self._compute.values()), None) if model_id == MAXSIM_ID else None
        )
