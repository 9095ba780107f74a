"""
Fences: messages that a hub sends to a group that it is in, to see that it would hear others'.

A layer may take a join for done before its broker has heard of it, and may forget a group's member later: its data was
flushed, the membership expired, a connection was lost. Sends succeed all the same. What comes back through the group is
the only proof.
"""

import asyncio
import itertools
import random
import secrets
from typing import Any, Final

from mcp_channels import layers, topics

FENCE: Final = "mcp_channels.fence"
"""The ``type`` of such a message."""

OPERATION_TIMEOUT: Final = 5.0
"""Seconds that one call of the layer, or a portion of them, may take before the layer counts as down."""

FENCE_RETRY: Final = 0.25
"""Seconds after which a fence that did not come back is sent again."""

MOST_TRIES: Final = 20
"""Fences that may go astray. They are counted, and no clock is asked: this loop may have been busy itself."""

QUIET_TRIES: Final = 4
"""The same for a probe, of those in whose time nothing else arrived either."""

PROBE_INTERVAL: Final = 1.0
"""Seconds without a message through the group of all hubs after which a hub sends one itself."""


class NotHeardError(Exception):
    """
    The layer takes messages for a group, and they don't arrive here.
    """


class Fences:
    """
    The fences of one hub. All methods are to be called on its event loop.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._loop = asyncio.get_running_loop()
        self._name = secrets.token_hex(8)
        self._tokens = itertools.count()
        self._sent: dict[int, asyncio.Event] = {}
        self._arrived = 0
        self._heard_at = self._loop.time()
        self._patience = PROBE_INTERVAL

    def note(self, *, is_for_all: bool) -> None:
        """
        Note that a message arrived; ``is_for_all``: through the group of all hubs.
        """
        self._arrived += 1
        if is_for_all:
            self._heard_at = self._loop.time()

    def take(self, message: dict[str, Any]) -> None:
        """
        Take a fence that arrived, another hub's perhaps.
        """
        self.note(is_for_all=message.get("group") == topics.EVERY_HUB)
        if message.get("hub") == self._name and (sent := self._sent.get(message.get("token", -1))) is not None:
            sent.set()

    async def probe(self) -> None:
        """
        If it has been quiet, see whether messages to all hubs still arrive. Each hub hears the others' probes, and
        waits for a time of its own, so that of many hubs only one sends.

        Raises:
            NotHeardError: they don't.
            Exception: whatever the layer raises.
        """
        if self._loop.time() - self._heard_at >= self._patience:
            self._patience = PROBE_INTERVAL * random.uniform(1, 1.5)  # noqa: S311  # no secret
            await self.see(topics.EVERY_HUB, quiet_tries=QUIET_TRIES)

    async def see(self, group: str, *, quiet_tries: int = MOST_TRIES) -> None:
        """
        Return when a message to ``group`` has arrived.

        Raises:
            NotHeardError: none does.
            Exception: whatever the layer raises.
        """
        token = next(self._tokens)
        arrived = self._sent[token] = asyncio.Event()
        fence = {"type": FENCE, "hub": self._name, "group": group, "token": token}
        try:
            for _ in range(MOST_TRIES):
                before = self._arrived
                async with asyncio.timeout(OPERATION_TIMEOUT):
                    await layers.insist(lambda: self._layer.group_send(group, dict(fence)))
                try:
                    async with asyncio.timeout(FENCE_RETRY):
                        await arrived.wait()
                        return
                except TimeoutError:
                    # It may stand behind others.
                    quiet_tries -= self._arrived == before
                    if not quiet_tries:
                        break
        finally:
            del self._sent[token]
        raise NotHeardError
