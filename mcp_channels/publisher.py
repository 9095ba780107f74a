"""
The way to the channel layer, from any thread.

A publisher keeps one event loop: a hub's, in a process that serves streams, or one of its own in a background thread,
started when it is first needed and, after a fork, anew. (``async_to_sync(layer.group_send)`` would open a connection to
Redis for each call.) Since a notification is a level trigger, what waits is a set of topics: a topic that changes
again while it waits costs nothing, and when many wait they travel together.

Nothing here raises into the caller, nor makes it wait. While the layer is down the topics are kept and tried again;
past ``MAX_WAITING`` of them, one word that everything may have changed takes their place.

A layer that drops what doesn't fit into a receiver's queue would lose changes in silence. On such a layer every message
goes to every hub and carries a number, so that a hub sees that it missed one; the last number is told again some time
after, in case the last message was the one that was dropped.
"""

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401  # registered for the exit before this module
import logging
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any, Final, NamedTuple

from channels.layers import get_channel_layer

from mcp_channels import layers, signals, telemetry, topics
from mcp_channels.conf import settings
from mcp_channels.topics import Topic

MAX_WAITING: Final = 10_000
"""Topics that are kept while the layer is down."""

MAX_TOLD: Final = 1_000
"""Messages of other kinds than changes that wait to be sent; past it the oldest are dropped."""

SINGLY: Final = 8
"""Up to so many topics travel by their own groups, to the hubs that want them; more travel together, to every hub."""

SEND_TIMEOUT: Final = 5.0
"""Seconds that the layer may take for one message before it counts as down."""

PACE: Final = 0.005
"""Seconds between two messages on a layer with bounded queues; what is published meanwhile travels in the next."""

REMINDERS: Final = (0.1, 1.0, 5.0)
"""Seconds after the last message, on a layer with bounded queues, at which its number is told again."""

RETRY_DELAY: Final = 0.1
"""Seconds before the first new attempt; doubled with each, up to ``RETRY_CEILING``."""

RETRY_CEILING: Final = 2.0

EXIT_TIMEOUT: Final = 2.0
"""Seconds that a process which exits waits for its last notifications to leave."""

logger = logging.getLogger("mcp_channels.publisher")


class _Taken(NamedTuple):
    changed: list[Topic]
    everything: bool
    told: list[Mapping[str, object]]


class Publisher:
    """
    A process's way to the channel layer. Use the module's ``publisher``.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """
        Forget everything: what waits, the loops, the thread. A forked child starts with it.
        """
        self._lock = threading.Lock()
        self._waiting: dict[Topic, None] = {}
        self._everything = False
        self._told: list[Mapping[str, object]] = []
        self._draining: asyncio.AbstractEventLoop | None = None
        self._adopted: list[asyncio.AbstractEventLoop] = []
        self._own: _LoopThread | None = None
        self._failures = 0
        self._name = secrets.token_hex(8)
        self._number = 0
        self._sent_at: float | None = None
        self._reminding: asyncio.Task[None] | None = None
        self._empty = threading.Event()
        self._empty.set()
        self.failed = 0
        """Attempts that the layer refused, since the process started."""

    def adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """
        Publish on ``loop`` from now on, as long as it runs.
        """
        with self._lock:
            self._adopted = [known for known in self._adopted if not known.is_closed() and known is not loop]
            self._adopted.append(loop)

    def publish(self, changed: Iterable[Topic]) -> None:
        """
        Tell every hub that these topics changed. Returns at once; from any thread, with or without an event loop.
        """
        with self._lock:
            if not self._everything:
                self._waiting.update(dict.fromkeys(changed))
            if topics.EVERYTHING in self._waiting or len(self._waiting) > MAX_WAITING:
                self._replace()
            self._start_draining()

    def tell(self, messages: Iterable[Mapping[str, object]]) -> None:
        """
        Send messages of other kinds to every hub, once: while the layer is down they are lost, so they may only say
        what can also be found elsewhere. Returns at once, as ``publish`` does.
        """
        with self._lock:
            self._told.extend(messages)
            del self._told[:-MAX_TOLD]
            self._start_draining()

    def flush(self, timeout: float) -> bool:
        """
        Wait up to ``timeout`` seconds until nothing is left to publish, and say whether that is so. Blocks.
        """
        return self._empty.wait(timeout)

    # The rest of the class, but for _drain and what it calls, runs under the lock.

    def _replace(self) -> None:
        self._waiting.clear()
        self._everything = True

    def _start_draining(self) -> None:
        if not (self._waiting or self._everything or self._told):
            return
        self._empty.clear()
        if self._draining is not None and self._draining.is_running():
            return
        loop = self._loop()
        self._draining = loop
        try:
            loop.call_soon_threadsafe(self._drain_soon, loop)
        except RuntimeError:  # it closed this very moment; the next publish finds another
            self._draining = None

    def _loop(self) -> asyncio.AbstractEventLoop:
        for loop in reversed(self._adopted):
            if loop.is_running():
                return loop
        if self._own is None:
            self._own = _LoopThread()
            # A child of multiprocessing ends without running atexit.
            Finalize(None, self.stop, exitpriority=100)
        return self._own.loop

    def _take(self) -> "_Taken | None":
        with self._lock:
            if not (self._waiting or self._everything or self._told):
                self._draining = None
                self._empty.set()
                return None
            taken = _Taken(list(self._waiting), self._everything, self._told)
            self._waiting.clear()
            self._everything = False
            self._told = []
            return taken

    def _give_back(self, changed: list[Topic], everything: bool) -> None:
        with self._lock:
            self._waiting = {**dict.fromkeys(changed), **self._waiting}
            self._everything = self._everything or everything
            if len(self._waiting) > MAX_WAITING:
                self._replace()

    def _drain_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        _keep(loop.create_task(self._drain(), name="mcp_channels-publisher"))

    async def _drain(self) -> None:
        try:
            while (taken := self._take()) is not None:
                try:
                    await self._send(taken)
                except (TypeError, ValueError):
                    # No outage: the layer will never take this. What must not be is that the rest waits behind it.
                    logger.exception(
                        "The channel layer can't carry a notification; hubs are told of any change instead"
                    )
                    with self._lock:
                        self._waiting.clear()
                        self._everything = not taken.everything
                except Exception as error:  # the edge: whatever a layer raises is an outage, never the saver's fault
                    self._failed(error)
                    await asyncio.sleep(min(RETRY_DELAY * 2 ** min(self._failures, 8), RETRY_CEILING))
        except asyncio.CancelledError:
            with self._lock:
                self._draining = None
            raise

    async def _send(self, taken: "_Taken") -> None:
        layer = get_channel_layer(settings.channel_layer)
        if layer is None:
            logger.error("No channel layer %r is configured: nobody hears of changes", settings.channel_layer)
            return
        changed, everything = taken.changed, taken.everything
        left = list(changed)
        try:
            # First, so that who may no longer hear of a change is known before it comes.
            for message in taken.told:
                await _group_send(layer, topics.EVERY_HUB, dict(message))
            if everything:
                await self._send_to_all(layer, {"type": topics.RESYNC})
                everything = False
            if len(left) <= SINGLY and not layers.is_bounded(layer):
                while left:
                    await _group_send(layer, left[0].group, topics.changed_message(left[:1]))
                    del left[0]
            else:
                for batch in topics.batches(changed):
                    await self._send_to_all(layer, topics.changed_message(batch))
                    del left[: len(batch)]
        except BaseException:
            self._give_back(left, everything)
            raise
        if self._failures:
            logger.warning("The channel layer is back; what waited was published")
            self._failures = 0
        if not changed:
            return
        counts = Counter(topic.kind for topic in changed)
        kinds = tuple(sorted(counts))
        telemetry.emit(signals.notification_published, Publisher, kinds=kinds, count=len(changed), counts=dict(counts))

    async def _send_to_all(self, layer: Any, message: dict[str, object]) -> None:
        if not layers.is_bounded(layer):
            await _group_send(layer, topics.EVERY_HUB, message)
            return
        self._number += 1
        stamp = self._stamp()
        self._sent_at = time.monotonic()
        await _group_send(layer, topics.EVERY_HUB, {**message, **stamp})
        if self._reminding is not None:
            self._reminding.cancel()
        self._reminding = _keep(asyncio.get_running_loop().create_task(self._remind(layer), name="mcp_channels-remind"))
        await asyncio.sleep(PACE)

    async def _remind(self, layer: Any) -> None:
        for delay in REMINDERS:
            await asyncio.sleep(delay)
            try:
                await self._tell_number(layer)
            except Exception as error:  # the next message, or the recovery of the layer, will tell
                logger.debug("A reminder could not be sent: %r", error)

    async def _tell_number(self, layer: Any) -> None:
        await _group_send(layer, topics.EVERY_HUB, {"type": topics.SEQUENCE, **self._stamp()})

    def _stamp(self) -> dict[str, object]:
        """
        This publisher's name, its last number, and how long ago the message went that should have been seen before.
        """
        since = None if self._sent_at is None else time.monotonic() - self._sent_at
        return {"from": self._name, "number": self._number, "since": since}

    async def _say_goodbye(self) -> None:
        layer = get_channel_layer(settings.channel_layer)
        if layer is not None and layers.is_bounded(layer):
            await asyncio.sleep(REMINDERS[0])
            await self._tell_number(layer)

    def _failed(self, error: Exception) -> None:
        self.failed += 1
        self._failures += 1
        if self._failures == 1:
            logger.error("The channel layer failed (%s); notifications wait and are tried again", type(error).__name__)

    def stop(self) -> None:
        """
        Publish what waits, unless the layer is down, and end the thread. The process ends with it.
        """
        with self._lock, suppress(RuntimeError):  # a thread may not be startable any more
            # What waited for a loop that has ended meanwhile.
            self._start_draining()
        if not self._failures:
            self.flush(EXIT_TIMEOUT)
        if self._own is not None:
            if self._number and not self._failures:
                goodbye = asyncio.run_coroutine_threadsafe(self._say_goodbye(), self._own.loop)
                with suppress(Exception):  # the layer is down, and the process must end
                    goodbye.result(EXIT_TIMEOUT)
            self._own.stop()
            self._own = None


async def _group_send(layer: Any, group: str, message: dict[str, object]) -> None:
    async with asyncio.timeout(SEND_TIMEOUT):
        # A layer may add to what it is given.
        await layers.insist(lambda: layer.group_send(group, dict(message)))


class _LoopThread:
    """
    An event loop in a daemon thread.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.loop.call_soon(started.set)
        self._thread = threading.Thread(target=self._run, name="mcp_channels-publisher", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
        finally:
            # channels_redis closes its connections as it sees the loop close.
            self.loop.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(EXIT_TIMEOUT)


def _keep(task: asyncio.Task[None]) -> asyncio.Task[None]:
    # An event loop alone does not keep its tasks from being collected.
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


_tasks: set[asyncio.Task[None]] = set()

publisher = Publisher()
"""This process's publisher."""

# Threads and loops don't survive a fork: the child starts its own when it first publishes.
os.register_at_fork(after_in_child=publisher.reset)
# What atexit runs comes too late to look up a host's name: by then Python has shut its thread pools down, in the order
# against that of registration.
if hasattr(threading, "_register_atexit"):
    threading._register_atexit(publisher.stop)  # noqa: SLF001  # see above; there is no public way
atexit.register(publisher.stop)
