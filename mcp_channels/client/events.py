"""
What a subscription or a listener tells of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """
    The first stream is open; ``honoured`` is the filter that the server granted, as it is on the wire.
    """

    honoured: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """
    Something changed: read it again. A change that is told while an earlier one of the same thing still waits to be
    consumed is one event with it.
    """

    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Closed:
    """
    A stream is over. ``graceful`` says that the server ended it in due form; ``reason`` is its word, or what went
    wrong. ``final`` says that no other stream follows.
    """

    reason: str
    graceful: bool
    final: bool = False


@dataclass(frozen=True, slots=True)
class Reconnecting:
    """
    Another stream will be asked for in ``delay`` seconds.
    """

    delay: float


@dataclass(frozen=True, slots=True)
class Resynchronised:
    """
    A later stream is open, and ``honoured`` is its filter. What changed in between was not told: read everything again.
    ``narrowed`` is what the acknowledgment before granted and this one does not, in the filter's form.
    """

    honoured: Mapping[str, Any]
    narrowed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reconnected:
    """
    A legacy session was lost, and there is another. What changed in between was not told: read everything again.
    """

    resubscribed: tuple[str, ...]
    """The listener's URIs that the server watches again."""
    failed: tuple[tuple[str, str], ...]
    """The listener's URIs that it doesn't, each with what went wrong. They are tried again with the next session."""


Event = Acknowledged | Notification | Closed | Reconnecting | Resynchronised | Reconnected
"""Any of the above."""
