"""Tokens a minute for each key: checked before a request runs, charged when its tokens are known.

The window is `limits`' sliding counter: this minute's tokens, and those of the minute before by what is left of it. Its
exact moving window keeps an object a token. What a request takes beyond the limit is a debt, which is paid out of the
next windows before another request runs.
"""

from __future__ import annotations

import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from runtime.api.identity import Caller
from runtime.errors import RateLimited

MINUTE_S = 60.0


class Quota:
    """The counts of all keys. On the event loop only."""

    def __init__(self) -> None:
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._debts: dict[str, int] = {}

    def check(self, caller: Caller) -> None:
        """Raises RateLimited while the key's tokens of this minute are spent."""
        limit = caller.tokens_per_minute
        if limit is None:
            return
        debt = self._pay(caller, limit, 0)
        item = RateLimitItemPerMinute(limit)
        if debt or not self._limiter.test(item, caller.name):
            reset_s = self._limiter.get_window_stats(item, caller.name).reset_time - time.time()
            wait_s = max(reset_s, debt / limit * MINUTE_S, 1.0)
            raise RateLimited(f"this API key's {limit} tokens a minute are spent", retry_after_s=wait_s)

    def charge(self, caller: Caller, tokens: int) -> None:
        """Count what a request took."""
        if caller.tokens_per_minute is not None:
            self._pay(caller, caller.tokens_per_minute, tokens)

    def _pay(self, caller: Caller, limit: int, tokens: int) -> int:
        """Take debt and `tokens` out of the window as far as they go; what remains is the debt."""
        owed = self._debts.pop(caller.name, 0) + tokens
        item = RateLimitItemPerMinute(limit)
        remaining = self._limiter.get_window_stats(item, caller.name).remaining if owed else 0
        paid = min(owed, remaining)
        if paid and not self._limiter.hit(item, caller.name, cost=paid):
            paid = 0
        if owed > paid:
            self._debts[caller.name] = owed - paid
        return owed - paid
