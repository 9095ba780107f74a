"""
What must be known of a channel layer beyond its public interface.

A layer with queues of a fixed size (``channels_redis.core``) drops what doesn't fit, and tells neither side.

``channels_redis.pubsub`` reconnects on its own, inside the Redis client, and tells nobody; what was published in
between is lost without a trace. The identity of the sockets under the layer shows it. This is the only place that looks
behind a layer's interface; where it finds nothing that it knows, it says so, and the hub's probes remain.
"""

import asyncio
from typing import Any

from channels.layers import InMemoryChannelLayer


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


def group_expiry(layer: Any) -> float | None:
    """
    Seconds after which the layer forgets a group's member; None where it doesn't.
    """
    value = getattr(layer, "group_expiry", None)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None
