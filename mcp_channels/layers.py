"""
What must be known of a channel layer beyond its public interface.

A layer with queues of a fixed size (``channels_redis.core``) drops what doesn't fit, and tells neither side.

``channels_redis.pubsub`` reconnects on its own, inside the Redis client, and tells nobody; what was published in
between is lost without a trace. The identity of the sockets under the layer shows it. This is the only place that looks
behind a layer's interface; where it finds nothing that it knows, it says so, and the hub's probes remain.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from channels.layers import InMemoryChannelLayer

ATTEMPTS: Final = 4
"""
How often a call is tried before its error counts: after an outage a layer's pool may hold several connections that are
broken, and each fails once.
"""

ATTEMPT_DELAY: Final = 0.02
"""Seconds between two of them."""


def _shards(layer: Any) -> list[Any]:
    loops = getattr(layer, "_layers", None)
    if not isinstance(loops, dict):
        return []
    # A plain dictionary look-up: the layer's own accessor would make a new entry.
    shards = getattr(loops.get(asyncio.get_running_loop()), "_shards", [])
    return list(shards)


def is_bounded(layer: Any) -> bool:
    """
    Whether the layer may drop a message because a receiver's queue is full. The layer in memory has such queues too,
    but publisher and receiver share its event loop, and the receiver empties its queue whenever it runs.
    """
    return isinstance(getattr(layer, "capacity", None), int) and not isinstance(layer, InMemoryChannelLayer)


def is_sharded(layer: Any) -> bool:
    """
    Whether groups of this layer travel by different servers, so that one group's round trip proves nothing of others.
    """
    return len(_shards(layer)) > 1


def connections(layer: Any) -> tuple[int, ...]:
    """
    A mark of the sockets that bring this loop its messages: it changes when one was replaced. Empty if unknown.
    """
    marks = []
    for shard in _shards(layer):
        connection = getattr(getattr(shard, "_pubsub", None), "connection", None)
        writer = getattr(connection, "_writer", None)
        marks.append(0 if writer is None else id(writer))
    return tuple(marks)


def is_unreadable(error: Exception) -> bool:
    """
    Whether ``receive`` failed at what a message holds, and not at the way to it: the message can't be decoded, or was
    encrypted with a key that isn't this project's.
    """
    return isinstance(error, (ValueError, TypeError, LookupError, AssertionError)) or (
        type(error).__name__ == "InvalidToken"
    )


async def insist(call: Callable[[], Awaitable[None]]) -> None:
    """
    Do what a layer offers, and again if it fails at once. Cancelling it, by a deadline too, ends it.

    Raises whatever the last attempt raises.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            await call()
        except (TypeError, ValueError):
            # It is about what is sent, and would come again.
            raise
        except Exception:  # whatever a layer raises; the last one is for the caller
            await asyncio.sleep(ATTEMPT_DELAY)
        else:
            return
    await call()


def group_expiry(layer: Any) -> float | None:
    """
    Seconds after which the layer forgets a group's member; None where it doesn't.
    """
    value = getattr(layer, "group_expiry", None)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None
