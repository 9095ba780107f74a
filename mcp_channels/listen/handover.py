"""
Waiting until the streams that a new one supersedes have ended, wherever they are.

The holder of a stream says at once that it heard of the order, and again when the stream has ended. One that says
nothing is dead, or as good as dead: its clients hear nothing either, and nobody waits for it.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from mcp_channels.listen.admission import Displaced

RECEIPT_TIMEOUT: Final = 1.5
"""Seconds that the holder of a stream has to say that it heard of its end, where the channel layer is up."""

SLOW_RECEIPT_TIMEOUT: Final = 2.5
"""The same where the layer is down, and the holder finds the order in the database."""

STEPS: Final = 15
"""
The pieces that this time is waited in. On a host that is too busy each takes longer, and so do the holder's answers, so
that one which lives isn't taken for dead.
"""

HANDOVER_TIMEOUT: Final = 8.0
"""Seconds that a new stream waits for those that it supersedes, if their holders live."""

SILENT_FOR: Final = 10.0
"""Seconds for which a holder that did not answer isn't waited for again."""


@dataclass(slots=True, eq=False)
class _Awaited:
    node: str
    received: asyncio.Future[None]
    ended: asyncio.Future[None]
    waiters: int = 0


class Handovers:
    """
    The ends that streams of one event loop wait for.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[int, _Awaited] = {}
        self._silent: dict[str, float] = {}

    @property
    def keys(self) -> Collection[int]:
        """
        The keys of the streams whose end is waited for.
        """
        return self._awaited.keys()

    def received(self, key: int) -> None:
        """
        The holder of a stream has heard that it is to end.
        """
        awaited = self._awaited.get(key)
        if awaited is not None:
            self._silent.pop(awaited.node, None)
            _settle(awaited.received)

    def ended(self, key: int) -> None:
        """
        A stream has ended.
        """
        awaited = self._awaited.get(key)
        if awaited is not None:
            self.received(key)
            _settle(awaited.ended)

    def expect(self, displaced: Iterable[Displaced]) -> "Handover":
        """
        Begin to listen for the ends of these streams; to be called before they are ordered.
        """
        return Handover(self, [self._expect(item) for item in displaced])

    def _expect(self, displaced: Displaced) -> tuple[int, _Awaited]:
        awaited = self._awaited.get(displaced.key)
        if awaited is None:
            awaited = _Awaited(displaced.node, self._loop.create_future(), self._loop.create_future())
            self._awaited[displaced.key] = awaited
        awaited.waiters += 1
        return displaced.key, awaited

    def _forget(self, key: int, awaited: _Awaited) -> None:
        awaited.waiters -= 1
        if not awaited.waiters:
            del self._awaited[key]

    def _is_silent(self, node: str) -> bool:
        since = self._silent.get(node)
        if since is not None and self._loop.time() - since >= SILENT_FOR:
            del self._silent[node]
            since = None
        return since is not None

    async def _wait(self, awaited: Iterable[_Awaited], patience: float) -> None:
        asked = [item for item in awaited if not item.ended.done() and not self._is_silent(item.node)]
        for _ in range(STEPS):
            receipts = [item.received for item in asked if not item.received.done()]
            if not receipts:
                break
            await asyncio.wait(receipts, timeout=patience / STEPS)
        now = self._loop.time()
        self._silent.update((item.node, now) for item in asked if not item.received.done())
        if ends := [item.ended for item in asked if item.received.done() and not item.ended.done()]:
            await asyncio.wait(ends, timeout=HANDOVER_TIMEOUT)


class Handover:
    """
    What one new stream waits for.
    """

    def __init__(self, handovers: Handovers, awaited: list[tuple[int, _Awaited]]) -> None:
        self._handovers = handovers
        self._awaited = awaited

    async def wait(self, *, is_layer_down: bool) -> None:
        """
        Return when the streams have ended, or when it makes no sense to wait for them any longer.
        """
        try:
            patience = SLOW_RECEIPT_TIMEOUT if is_layer_down else RECEIPT_TIMEOUT
            await self._handovers._wait([item for _, item in self._awaited], patience)  # noqa: SLF001  # of one piece
        finally:
            for key, item in self._awaited:
                self._handovers._forget(key, item)  # noqa: SLF001


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
