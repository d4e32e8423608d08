"""How long a model's comings into memory took, each kind apart, and what the next one will take."""

from __future__ import annotations

from typing import Literal

FIRST_LOAD_S = 5.0
BYTES_PER_S = 200e6
"""What was never timed is guessed at these."""

Coming = Literal["loaded", "returned"]
"""From its files, or from where it was offloaded."""


class LoadTimes:
    """Of one model."""

    def __init__(self) -> None:
        self.latest_s: float | None = None
        """Of either kind."""
        self._took_s: dict[Coming, float] = {}

    def note(self, coming: Coming, seconds: float) -> None:
        """It came into memory."""
        self.latest_s = self._took_s[coming] = seconds

    def knows(self, coming: Coming) -> bool:
        """Whether one of that kind was timed."""
        return coming in self._took_s

    def predict_s(self, coming: Coming, resident_bytes: int) -> float:
        """As long as the last one of its kind, else a guess from the bytes."""
        if coming in self._took_s:
            return self._took_s[coming]
        return resident_bytes / BYTES_PER_S + (FIRST_LOAD_S if coming == "loaded" else 0.0)
