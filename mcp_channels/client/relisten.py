"""
When to listen again, and when not to. No I/O, and no clock of its own.
"""

import random
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

FINAL_REASONS: Final = frozenset({"superseded", "revoked", "client_closed"})
"""
The server's reasons after which listening again would do harm: two clients would end each other's streams for ever, or
one would ask for what it was just denied.
"""

LONGEST_RETRY_AFTER: Final = 3600.0
"""Seconds; a server that says more is asked again after this time."""


@dataclass(frozen=True, slots=True)
class Relisten:
    """
    How a lost stream is asked for again: exponential back-off with full jitter, so that clients that lost a server
    together do not come back together.
    """

    first_delay: float = 2.0
    """Seconds; the first delay is between 0 and this. Each further failure doubles it."""
    longest_delay: float = 30.0
    """Seconds; no delay is longer, except by a server's ``Retry-After``, to which the jitter is added."""
    attempts: int | None = None
    """Requests without a healthy stream in between, after which it is given up; None: no limit."""
    seconds: float | None = None
    """Time since the last healthy stream, after which it is given up; None: no limit."""
    healthy_after: float = 5.0
    """
    Seconds that an acknowledged stream must have lasted for the delays, the attempts and the time to start anew. A
    stream that is ended at once, however politely, does not reset them.
    """
    first: bool = False
    """Whether the first request, too, is sent again if it fails in a way that may pass. Without, it fails at once."""


class Backoff:
    """
    The delays of one subscription.
    """

    def __init__(self, policy: Relisten, *, rng: random.Random | None = None) -> None:
        self._policy = policy
        self._random = rng or random.Random()  # noqa: S311  # no secret
        self._failures = 0
        self._since: float | None = None

    def lasted(self, seconds: float) -> None:
        """
        Take notice that an acknowledged stream lasted so long.
        """
        if seconds >= self._policy.healthy_after:
            self._failures = 0
            self._since = None

    def delay(self, now: float, *, retry_after: float | None = None) -> float | None:
        """
        Seconds to wait before the next request, or None if it is to be given up.

        Args:
            now: the time, in seconds of any clock, the same for all calls.
            retry_after: what the server asked for.
        """
        if self._since is None:
            self._since = now
        self._failures += 1
        policy = self._policy
        if policy.attempts is not None and self._failures > policy.attempts:
            return None
        ceiling = min(policy.first_delay * 2.0 ** min(self._failures - 1, 30), policy.longest_delay)
        # The jitter comes after the cap and on top of Retry-After: neither may bring all back at once.
        delay = min(retry_after or 0.0, LONGEST_RETRY_AFTER) + self._random.uniform(0, ceiling)
        if policy.seconds is not None and now + delay - self._since > policy.seconds:
            return None
        return max(delay, 0.001)


def parse_retry_after(value: str | None, *, now: float) -> float | None:
    """
    The seconds that a ``Retry-After`` header means, a number or a date (RFC 9110 §10.2.3); ``now`` is Unix time. None
    if there is none, or it means nothing.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(parsedate_to_datetime(text).timestamp() - now, 0.0)
    except (ValueError, TypeError, OverflowError):
        return None
