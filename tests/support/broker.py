"""
What can befall the Redis under a channel layer.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import redis as client

from tests.support.processes import Redis

CAPACITY = 100
"""Messages that a channel of the core layer takes."""

POISON = (
    {},
    {"type": None},
    {"type": ["mcp_channels.changed"]},
    {"type": "chat.message", "text": "hello"},
    {"type": "mcp_channels.changed"},
    {"type": "mcp_channels.changed", "topics": 5},
    {"type": "mcp_channels.changed", "topics": '[["resource"], 1, null, [1, 2], ["no such kind", ""]]'},
    {"type": "mcp_channels.changed", "topics": "x" * 3_000_000},
    {"type": "mcp_channels.orders", "orders": {"a": [None]}},
    {"type": "mcp_channels.orders", "orders": [[1, 2, 3], "x"], "principals": "all"},
    {"type": "mcp_channels.fence", "hub": 1, "token": {}},
    {"type": "mcp_channels.sequence", "from": [], "number": "1", "since": None},
    {"type": "mcp_channels.changed", "from": "x", "number": -(2**60), "since": None, "topics": "[]"},
)
"""Messages that are no messages of ours, or broken ones."""

RUBBISH = (
    b"",
    b"\xc1",
    b"\x81",
    b"\xff" * 1000,
    msgpack.packb({"type": "mcp_channels.changed"})[:-4],
    msgpack.packb(7),
    msgpack.packb(["type"]),
)
"""What can't be decoded, or isn't a dictionary."""


class Broker:
    """
    A Redis that carries one layer, ``pubsub`` or ``core``, and what is done to it.
    """

    def __init__(self, redis: Redis, layer: str) -> None:
        self.redis = redis
        self.layer = layer
        self._store = client.Redis(port=redis.port)

    def faults(self, *, seconds: float) -> dict[str, Callable[[], Awaitable[None]]]:
        """
        All that can befall it, by name. What lasts, lasts so long.
        """
        at_once: dict[str, Callable[[], Any]] = {
            "flushed": self._store.flushall,
            "connections cut": lambda: self.cut("normal"),
            "subscribers cut": lambda: self.cut("pubsub"),
            "all cut": lambda: (self.cut("pubsub"), self.cut("normal")),
            "poisoned": self.poison,
            "filled": self.fill,
        }
        if self.layer == "core":
            at_once |= {"groups forgotten": self.forget_groups, "member forgotten": self.forget_member}

        def soon(fault: Callable[[], Any]) -> Callable[[], Awaitable[None]]:
            return lambda: asyncio.to_thread(fault)

        return {
            "stopped": lambda: self.outage(seconds),
            "black hole": lambda: self.black_hole(seconds),
            **{name: soon(fault) for name, fault in at_once.items()},
        }

    async def outage(self, seconds: float) -> None:
        """
        Kill it, and start it again, empty.
        """
        self.redis.stop()
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(self.redis.start)

    async def black_hole(self, seconds: float) -> None:
        """
        Keep its sockets, and let it answer nothing.
        """
        self.redis.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            self.redis.resume()

    def cut(self, kind: str) -> None:
        """
        Cut the connections of a kind, ``normal`` or ``pubsub``.
        """
        self._store.client_kill_filter(_type=kind, skipme=True)

    def forget_groups(self) -> None:
        """
        Delete the groups of the core layer, as their expiry does.
        """
        if keys := self._store.keys("*:group:*"):
            self._store.delete(*keys)

    def forget_member(self) -> None:
        """
        Take one member out of each group of the core layer.
        """
        for key in self._store.keys("*:group:*"):
            members = self._store.zrange(key, 0, -1)
            self._store.zrem(key, random.choice(members))

    def fill(self) -> None:
        """
        Send each hub as many messages as its channel takes, and more.
        """
        for number in range(CAPACITY + 20):
            self._send_to_hubs({"type": "junk", "count": number})

    def poison(self) -> None:
        """
        Send each hub what it can't understand, over its channel and its groups.
        """
        for message in (*RUBBISH, *POISON):
            self._send_to_hubs(message)

    def _send_to_hubs(self, message: bytes | dict[str, Any]) -> None:
        if self.layer == "pubsub":
            data = message if isinstance(message, bytes) else msgpack.packb(message)
            for channel in self._store.pubsub_channels("asgi*"):
                self._store.publish(channel, data)
            return
        for member in {member for key in self._store.keys("*:group:*") for member in self._store.zrange(key, 0, -1)}:
            # The layer finds the hub by this, and makes each message another one by twelve random bytes before it.
            addressed = {"__asgi_channel__": [member.decode()], **message} if isinstance(message, dict) else message
            data = addressed if isinstance(addressed, bytes) else msgpack.packb(addressed)
            key = b"asgi" + member.partition(b"!")[0] + b"!"
            self._store.zadd(key, {random.randbytes(12) + data: time.time()})
            self._store.expire(key, 60)
