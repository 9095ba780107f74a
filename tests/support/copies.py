"""
Clients that each keep a copy of some notes: what notifications are for.

A client reads a note again at each notification of it, and all of its notes at each acknowledgment; when its stream is
lost, it listens again.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.http import Ended, call, listening

FAULTS = (OSError, asyncio.IncompleteReadError, TimeoutError, Ended, AssertionError, ValueError)
"""What a client meets where a server dies, or is not there yet."""

RETRY = (0.1, 2.0)
"""Seconds before a new attempt: of the first, and the most."""

READ_TIMEOUT = 15.0


class Drop(NamedTuple):
    """
    A stream that was lost.
    """

    at: float
    """By the monotonic clock."""
    port: int
    error: str


class Copy:
    """
    One client of the server at a port.
    """

    def __init__(self, port: int, *, token: str, uris: Sequence[str]) -> None:
        self.port = port
        self.uris = tuple(uris)
        self.held: dict[str, str | None] = dict.fromkeys(uris)
        self.heard: Counter[str] = Counter()
        self.acknowledgments = 0
        self.drops: list[Drop] = []
        self._token = token
        self._stale: dict[str, None] = {}
        self._work = asyncio.Event()

    async def run(self) -> None:
        """
        Listen and read until cancelled.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._read())

    @property
    def is_open(self) -> bool:
        """
        Whether there is a stream.
        """
        return self.acknowledgments > len(self.drops)

    async def _listen(self) -> None:
        delay = RETRY[0]
        while True:
            opened = self.acknowledgments
            try:
                await self._follow()
            except FAULTS as error:
                if self.acknowledgments > opened:
                    delay = RETRY[0]
                    self.drops.append(Drop(time.monotonic(), self.port, repr(error)))
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY[1])

    async def _follow(self) -> None:
        asked = {"resourceSubscriptions": list(self.uris)}
        async with listening(self.port, asked, token=self._token) as stream:
            if stream.honoured != asked:
                raise AssertionError(f"A client asked for {asked} and got {stream.honoured}")
            self.acknowledgments += 1
            self._spoil(*self.uris)
            while True:
                message = await stream.message(timeout=None)
                if message.get("method") != "notifications/resources/updated":
                    raise AssertionError(f"A stream brought {message}")
                self.heard[message["params"]["uri"]] += 1
                self._spoil(message["params"]["uri"])

    def _spoil(self, *uris: str) -> None:
        self._stale.update(dict.fromkeys(uris))
        self._work.set()

    async def _read(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._stale:
                uri = next(iter(self._stale))
                # Before it is read: what changes from here on is another change.
                del self._stale[uri]
                try:
                    async with asyncio.timeout(READ_TIMEOUT):
                        answer = await call(self.port, "resources/read", {"uri": uri}, token=self._token)
                    self.held[uri] = json.loads(answer["result"]["contents"][0]["text"])["body"]
                except (*FAULTS, KeyError):
                    self._stale[uri] = None
                    await asyncio.sleep(0.2)
