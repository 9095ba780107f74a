"""
What a listener tells of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """
    The first stream is open; ``honoured`` is the filter that the server granted.
    """

    honoured: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    """
    Something changed: read it again.
    """

    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Closed:
    """
    A stream is over. ``graceful`` says that the server ended it in due form; ``reason`` is its word, or what went
    wrong.
    """

    reason: str
    graceful: bool


@dataclass(frozen=True, slots=True)
class Reconnecting:
    """
    A new stream will be asked for in ``delay`` seconds.
    """

    delay: float


@dataclass(frozen=True, slots=True)
class Resynchronised:
    """
    A later stream is open. What changed in between was not told: read everything again.
    """

    honoured: Mapping[str, Any]


Event = Acknowledged | Notification | Closed | Reconnecting | Resynchronised
"""Any of the above."""
