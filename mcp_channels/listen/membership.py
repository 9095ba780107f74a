"""
A hub's place on the channel layer: one channel, and the groups that it is in.

All that is slow, or can fail, is here and in ``reception``: joining and leaving, seeing that messages still come, and
coming back after an outage. When something may have been missed, the hub is told so; it is never told nothing.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from mcp_channels import layers, topics
from mcp_channels.batching import portions
from mcp_channels.listen.fences import OPERATION_TIMEOUT, PROBE_INTERVAL, Fences
from mcp_channels.listen.reception import Missed, Receive, Reception, retry_delay
from mcp_channels.topics import Topic

JOIN_TIMEOUT: Final = 2.0
"""Seconds that a stream's acknowledgment waits for its groups; past it, the stream is told of all changes later."""

PORTION: Final = 100
"""The most groups that are joined at the same time."""

logger = logging.getLogger("mcp_channels.hub")


class ReconnectedError(Exception):
    """
    The layer got itself another connection, and what was sent in between is lost.
    """


class Joining:
    """
    Topics whose groups are joined in one go. ``late`` says that somebody stopped waiting for it.
    """

    __slots__ = ("done", "late", "topics")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.topics: list[Topic] = []
        self.done = done
        self.late = False

    def release(self) -> None:
        """
        Let those go on who wait for it.
        """
        if not self.done.done():
            self.done.set_result(None)


class Membership:
    """
    One hub's channel and groups. All methods are to be called on its event loop.
    """

    def __init__(self, layer: Any, *, receive: Receive, missed: Missed) -> None:
        self.layer = layer
        self._missed = missed
        self._loop = asyncio.get_running_loop()
        self._channel: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._work = asyncio.Event()
        self._wanted: set[Topic] = set()
        self._joined: dict[Topic, None] = {}
        self._joining: Joining | None = None
        self._leaving: deque[Topic] = deque()
        self._dead: list[str] = []
        self._fences = Fences(layer)
        self._down = False
        self._failures = 0
        self._connections: tuple[int, ...] = ()
        self._renewed_at = self._loop.time()
        self._reception = Reception(layer, self._fences, receive=receive, missed=missed, failed=self._fail)

    @property
    def is_down(self) -> bool:
        """
        Whether the layer is known to be down.
        """
        return self._down

    @property
    def channel(self) -> str:
        """
        The channel's name; empty as long as there is none.
        """
        return self._channel or ""

    def start(self) -> None:
        """
        Get a channel, and begin to receive.
        """
        if not self._tasks:
            self._tasks = [self._loop.create_task(self._tend(), name="mcp_channels-hub-layer")]

    async def close(self) -> None:
        """
        End the tasks, and leave the groups, if the layer lets one.
        """
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        try:
            async with asyncio.timeout(1):
                for group in [*self._groups(), *self._groups_of(self._leaving)] if self._channel else []:
                    await self.layer.group_discard(group, self._channel)
                self._channel = None
        except Exception as error:  # the layer is down; its own expiry does the rest
            logger.debug("Groups could not be left: %r", error)

    def join(self, topic: Topic) -> Joining:
        """
        Join a topic's group soon; ``wait`` for what this returns.
        """
        if self._joining is None:
            self._joining = Joining(self._loop.create_future())
        self._joining.topics.append(topic)
        self._wanted.add(topic)
        self._work.set()
        return self._joining

    def leave(self, left: Iterable[Topic]) -> None:
        """
        Leave these topics' groups soon.
        """
        for topic in left:
            self._wanted.discard(topic)
            self._joined.pop(topic, None)
            self._leaving.append(topic)
        self._work.set()

    def forget(self, dead: Iterable[str]) -> None:
        """
        Take hubs that died without a word out of the group that all are in: a layer that keeps its groups in its broker
        would go on sending to them.
        """
        self._dead.extend(dead)
        if self._dead:
            self._work.set()

    async def wait(self, joinings: Iterable[Joining]) -> None:
        """
        Return when the groups have been joined. A layer that is down, or slow, holds nobody up: then the hub hears
        later that changes may have been missed.
        """
        open_ones = [joining for joining in joinings if not joining.done.done()]
        if open_ones and not self._down:
            await asyncio.wait([joining.done for joining in open_ones], timeout=JOIN_TIMEOUT)
        for joining in open_ones:
            if not joining.done.done():
                joining.late = True

    # Joining and leaving

    async def _tend(self) -> None:
        while True:
            self._work.clear()
            try:
                await self._tend_once()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the edge: whatever a layer raises is an outage
                self._failures += 1
                self._fail(error)
            delay = retry_delay(self._failures) if self._down else PROBE_INTERVAL / 2
            try:
                async with asyncio.timeout(delay):
                    await self._work.wait()
                    if self._down:
                        await asyncio.sleep(delay)
            except TimeoutError:
                pass

    async def _tend_once(self) -> None:
        if self._channel is None:
            await self._open()
        if self._connections != layers.connections(self.layer):
            self._fail(ReconnectedError())
        recovering = self._down
        if recovering:
            await self._add(self._groups())
        late = await self._join_all()
        if recovering:
            self._recover()
        elif late:
            self._missed(late)
        await self._leave_all()
        await self._forget_dead()
        await self._renew()

    async def _open(self) -> None:
        async with asyncio.timeout(OPERATION_TIMEOUT):
            channel = await self.layer.new_channel()
        self._channel = channel
        self._tasks.append(self._loop.create_task(self._reception.run(channel), name="mcp_channels-hub-receive"))
        await self._add([topics.EVERY_HUB])
        self._reception.begin()
        self._connections = layers.connections(self.layer)

    async def _join_all(self) -> list[Topic]:
        """
        Join what is to be joined, and return those topics whose streams did not wait for it.
        """
        joining, self._joining = self._joining, None
        if joining is None:
            return []
        joining.topics = [topic for topic in joining.topics if topic in self._wanted]
        try:
            await self._add(self._groups_of(joining.topics))
        except BaseException:
            self._postpone(joining)
            raise
        # Some may have been given up meanwhile.
        self._joined.update((topic, None) for topic in joining.topics if topic in self._wanted)
        joining.release()
        return joining.topics if joining.late else []

    def _postpone(self, joining: Joining) -> None:
        joining.release()
        if self._joining is None:
            self._joining = Joining(self._loop.create_future())
        self._joining.late = True
        self._joining.topics.extend(joining.topics)

    async def _leave_all(self) -> None:
        # Who wants to join waits for no more than a portion.
        while self._leaving and self._joining is None:
            some = list(itertools.islice(self._leaving, PORTION))
            left = self._groups_of([topic for topic in some if topic not in self._wanted])
            async with asyncio.timeout(OPERATION_TIMEOUT):
                await asyncio.gather(*(self._discard(group, self._channel) for group in left))
            # Not before: if the layer failed, the groups are still to be left. What was added stands behind them.
            for _ in some:
                self._leaving.popleft()

    async def _forget_dead(self) -> None:
        while self._dead:
            async with asyncio.timeout(OPERATION_TIMEOUT):
                await self._discard(topics.EVERY_HUB, self._dead[-1])
            self._dead.pop()

    async def _renew(self) -> None:
        now = self._loop.time()
        expiry = layers.group_expiry(self.layer)
        if expiry is not None and now - self._renewed_at >= expiry / 4:
            self._renewed_at = now
            await self._add(self._groups())
        await self._fences.probe()

    def _groups(self) -> list[str]:
        return [topics.EVERY_HUB, *self._groups_of(self._joined)]

    def _groups_of(self, wanted: Iterable[Topic]) -> list[str]:
        # On a bounded layer everything goes to every hub.
        return [] if layers.is_bounded(self.layer) else [topic.group for topic in wanted]

    async def _add(self, groups: list[str]) -> None:
        for some in portions(groups, PORTION):
            async with asyncio.timeout(OPERATION_TIMEOUT):
                await asyncio.gather(*(self._add_one(group) for group in some))
        # A layer may return from a join before the broker has heard of it, so see a message come through.
        for group in groups if layers.is_sharded(self.layer) else groups[-1:]:
            await self._fences.see(group)

    async def _add_one(self, group: str) -> None:
        await layers.insist(lambda: self.layer.group_add(group, self._channel))

    async def _discard(self, group: str, channel: str | None) -> None:
        await layers.insist(lambda: self.layer.group_discard(group, channel))

    # Outages

    def _fail(self, error: Exception) -> None:
        if self._down:
            return
        self._down = True
        logger.error("The channel layer failed (%s); streams stay open until it is back", type(error).__name__)
        self._work.set()
        if self._joining is not None:
            self._joining.late = True
            self._joining.release()

    def _recover(self) -> None:
        self._connections = layers.connections(self.layer)
        self._missed(None)
        if self._down:
            logger.warning("The channel layer is back; every stream was told that its topics may have changed")
        self._down = False
        self._failures = 0
        # What was missed meanwhile has been made up for.
        self._reception.begin()
