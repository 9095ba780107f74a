"""
A node's regular look at the database: its heartbeat, orders that the channel layer did not bring, and the sweeping up.

It has a thread and a connection of its own: a synchronous view that keeps Django's thread for long must not make the
node look dead.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

from channels.db import DatabaseSyncToAsync
from django.db import DatabaseError, connections

from mcp_channels.listen import registry
from mcp_channels.listen.orders import CHECK, Order
from mcp_channels.listen.registry import Delivery
from mcp_channels.models import DEAD_AFTER

TICK: Final = 1.0
"""Seconds between two looks."""

HEARTBEAT: Final = 5.0
"""Seconds between two heartbeats; what streams have delivered is written with them."""

SWEEP_INTERVAL: Final = 2.5
"""Seconds between two looks for dead nodes, and for streams whose principal or token is none any more."""

LATE: Final = 2 * HEARTBEAT
"""Seconds without a heartbeat after which a node was held up itself, and doesn't judge others."""

FORGET_INTERVAL: Final = 300.0
"""Seconds between two looks for anonymous callers to forget."""

logger = logging.getLogger("mcp_channels.node")


class Seen(NamedTuple):
    """
    What a look brought.
    """

    is_alive: bool
    """False: the node's row is gone."""

    orders: Sequence[Order]
    """What stands on the rows of its streams."""

    ended: Sequence[int]
    """Those of the awaited streams that have no row any more."""

    released: Sequence[int]
    """The rows that were deleted."""

    dead: Collection[str] = ()
    """The channels of nodes that died: nobody hears there any more."""

    is_recorded: bool = True
    """Whether it is written what streams have delivered."""


class Beat:
    """
    The looks of one node.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self._thread = ThreadPoolExecutor(1, "mcp_channels-node")
        self._look = DatabaseSyncToAsync(self._look_once, thread_sensitive=False, executor=self._thread)
        now = time.monotonic()
        # The row is new.
        self._beat_at = self._swept_at = now
        self._forgot_at = now - FORGET_INTERVAL
        self._steady_since: float | None = now
        self._failures = 0
        self._asked_at: float | None = None

    @property
    def is_unanswered(self) -> bool:
        """
        Whether the last look did not reach the database, or waits for it for longer than between two heartbeats.
        """
        asked_at = self._asked_at
        return self.is_failing or (asked_at is not None and time.monotonic() - asked_at >= HEARTBEAT)

    @property
    def is_failing(self) -> bool:
        """
        Whether the last look did not reach the database.
        """
        return self._failures > 0

    async def look(
        self,
        *,
        awaited: Sequence[int],
        released: Sequence[int],
        deliveries: Mapping[int, Delivery],
        channel: str = "",
    ) -> Seen | None:
        """
        Look once. None: the database can't be reached.

        Args:
            awaited: keys of streams elsewhere whose end somebody waits for.
            released: keys of rows that are still to be deleted.
            deliveries: what streams have delivered since it was last written.
            channel: where this node hears the channel layer; empty: not known.
        """
        self._asked_at = time.monotonic()
        try:
            seen: Seen = await self._look(awaited, released, deliveries, channel)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the edge: whatever the database raises is an outage, and the streams stay
            self._failures += 1
            self._steady_since = None
            if self._failures == 1:
                logger.error("The database failed (%s); streams stay open", type(error).__name__)
            return None
        finally:
            self._asked_at = None
        if self._failures:
            logger.warning("The database is back")
            self._failures = 0
        return seen

    def close(self) -> None:
        """
        Give back the thread and its connection.
        """
        self._thread.submit(connections.close_all)
        self._thread.shutdown(wait=False)

    def _look_once(
        self, awaited: Sequence[int], released: Sequence[int], deliveries: Mapping[int, Delivery], channel: str
    ) -> Seen:
        now = time.monotonic()
        is_alive = True
        if now - self._beat_at >= HEARTBEAT or self._steady_since is None:
            silence = registry.beat(self.node, channel)
            is_alive = silence is not None
            self._beat_at = now
            later = time.monotonic()
            if self._steady_since is None or (silence or 0.0) + later - now >= LATE:
                self._steady_since = later
        found = registry.orders_for(self.node)
        if now - self._swept_at >= SWEEP_INTERVAL:
            found.extend((key, "revoked") for key in registry.unwanted(self.node))
        there = registry.still_there(awaited) if awaited else set()
        ended = [key for key in awaited if key not in there]
        dead: Collection[str] = ()
        try:
            # Last, as somebody may hold the rows.
            registry.take_checks([key for key, what in found if what == CHECK])
            if released:
                with registry.impatient():
                    registry.release(released)
            if deliveries:
                registry.record(deliveries)
            if is_alive:
                dead = self._clean_up(now)
        except DatabaseError as error:  # an outage shows at the next look, and all of this is tried again
            logger.debug("A node could not write all that it has to: %r", error)
            return Seen(is_alive, found, ended, [], is_recorded=False)
        return Seen(is_alive, found, ended, released, dead)

    def _clean_up(self, now: float) -> Collection[str]:
        """
        Sweep up, and return the channels of nodes that died.
        """
        # After an outage of the database, or a sleep of the host, all nodes look dead for a moment: who had one itself
        # waits for their beats.
        is_steady = self._steady_since is not None and now - self._steady_since >= DEAD_AFTER.total_seconds()
        dead: Collection[str] = ()
        if now - self._swept_at >= SWEEP_INTERVAL:
            if is_steady:
                dead = [channel for channel in registry.sweep(self.node).values() if channel]
            self._swept_at = now
        if now - self._forgot_at >= FORGET_INTERVAL:
            self._forgot_at = now
            # What was swept must be told of, whatever becomes of this.
            with suppress(DatabaseError):
                registry.forget()
        return dead
