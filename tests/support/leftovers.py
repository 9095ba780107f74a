"""
What a server, its Redis and its database hold at one moment: to be compared before and after.
"""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import redis as client

from tests.support.processes import Redis, Server
from tests.support.project import Project

INSIGHT = "tests.support.insight:application"

ROWS = "result = {'streams': models.LiveStream.objects.count(), 'nodes': models.Node.objects.count()}"


class Leftovers:
    """
    One server of the example project, its Redis and its database.
    """

    def __init__(self, project: Project, server: Server, redis: Redis) -> None:
        self.project = project
        self.server = server
        self._store = client.Redis(port=redis.port)

    def look(self) -> dict[str, Any]:
        """
        Everything that must return to where it began, and ``rss`` in bytes.
        """
        with urllib.request.urlopen(f"{self.server.url}/insight", timeout=30) as answer:
            inside = json.load(answer)
        return {
            "inside": inside,
            "redis": self.redis(),
            "rows": self.project.worker.run(ROWS),
            "rss": inside.pop("rss"),
        }

    def redis(self) -> dict[str, Any]:
        """
        The channels that somebody listens to, the groups' members, the messages that wait, and the connections.
        """
        channels = [name.decode() for name in self._store.pubsub_channels("*")]
        groups, waiting = {}, 0
        for key in self._store.keys("*"):
            if b":group:" in key:
                groups[key.decode()] = self._store.zcard(key)
            else:
                waiting += self._store.zcard(key)
        return {
            "channels": dict(self._store.pubsub_numsub(*channels)) if channels else {},
            "groups": groups,
            "waiting": waiting,
            "connections": len(self._store.client_list()),
        }

    def settle(self, reached: Callable[[dict[str, Any]], bool], *, timeout: float) -> dict[str, Any]:
        """
        Look until something is so, and return what there is then, or when the time is up.
        """
        deadline = time.monotonic() + timeout
        while True:
            found = self.look()
            if reached(found) or time.monotonic() > deadline:
                return found
            time.sleep(0.25)


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """
    What differs, by its path. Memory is left out, and so are messages in Redis, as a hub always sends itself some.
    Connections to Redis, which a pool keeps, are taken off the descriptors.
    """
    one, two = dict(_flat(before)), dict(_flat(after))
    return {key: (one.get(key), two.get(key)) for key in sorted({*one, *two}) if one.get(key) != two.get(key)}


def _flat(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not path:
        connections = found["redis"]["connections"]
        found = {
            **{name: value for name, value in found.items() if name != "rss"},
            "inside": {**found["inside"], "descriptors": found["inside"]["descriptors"] - connections},
            "redis": {**found["redis"], "connections": None, "waiting": None},
        }
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
