"""
The fan-out of one process: one hub for each event loop that serves streams.

A hub holds one channel of the layer, whatever the number of streams. It joins a topic's group when the first local
stream wants it and leaves some seconds after the last one went, so a message crosses the layer once for each process,
is decoded once, and its JSON is built once; the streams get it by reference. Three tasks serve all streams: one reads
the layer, one does the layer's slow business (joins, leaves, probes, recovery), and one sweeps the deadlines.

When the layer fails, streams stay open. When it is back, the hub joins its groups again and marks every topic of every
stream as changed: to notify too much is safe, silence is not.
"""

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from mcp_channels import layers, topics
from mcp_channels.listen import frames
from mcp_channels.listen.stream import Reason, Stream
from mcp_channels.publisher import publisher
from mcp_channels.topics import Topic

FENCE: Final = "mcp_channels.fence"
"""The ``type`` of a message that a hub sends to itself, to see that it would hear others'."""

JOIN_TIMEOUT: Final = 2.0
"""Seconds that a stream's acknowledgment waits for its groups; past it, the stream is told of all changes later."""

OPERATION_TIMEOUT: Final = 5.0
"""Seconds that one call of the layer, or a portion of them, may take before the layer counts as down."""

PUBLISHERS: Final = 10_000
"""The most publishers whose last number is remembered."""

PORTION: Final = 100
"""The most groups that are joined at the same time."""

FENCE_RETRY: Final = 0.25
"""Seconds after which a fence that did not come back is sent again."""

PROBE_INTERVAL: Final = 2.0
"""Seconds between two looks at whether the layer still brings messages."""

RETRY_DELAY: Final = 0.25
"""Seconds before the first new attempt at a layer that failed; doubled with each, up to ``RETRY_CEILING``."""

RETRY_CEILING: Final = 2.0

LINGER: Final = 5.0
"""Seconds for which a topic's group is kept after its last stream went, and a hub after its last topic."""

LONGEST_PAUSE: Final = 0.05
"""The most seconds for which the hub lets a burst of changes gather before it wakes the writers again."""

SWEEP_INTERVAL: Final = 0.25
"""The most seconds between two sweeps of the deadlines."""

logger = logging.getLogger("mcp_channels.hub")


class HubFullError(RuntimeError):
    """
    The process holds as many streams as it may, or is shutting down.
    """


class _Entry:
    """
    One topic that local streams want. ``joining`` is None once the group has been joined.
    """

    __slots__ = ("head", "joining", "streams", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.head = frames.notification_head(topic)
        self.streams: set[Stream] = set()
        self.joining: _Joining | None = None

    def mark(self) -> set[Stream]:
        """
        Mark the topic as pending with each of its streams, and return them.
        """
        topic, head = self.topic, self.head
        for stream in self.streams:
            stream.mark(topic, head)
        return self.streams


class _Joining:
    """
    Entries whose groups are joined in one go. ``late`` says that somebody stopped waiting for it.
    """

    __slots__ = ("done", "entries", "late")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.entries: list[_Entry] = []
        self.done = done
        self.late = False


class Hub:
    """
    The streams of one event loop, by topic. Use ``Hub.current()``.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.streams: set[Stream] = set()
        self.draining = False
        """Whether the process is shutting down: no stream is taken any more."""
        self._loop = asyncio.get_running_loop()
        self._entries: dict[Topic, _Entry] = {}
        self._idle: dict[Topic, float] = {}
        self._leaving: deque[Topic] = deque()
        self._joining: _Joining | None = None
        self._channel: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._work = asyncio.Event()
        self._down = False
        self._failures = 0
        self._connections: tuple[int, ...] = ()
        self._last_used = self._renewed_at = self._probed_at = self._loop.time()
        self._name = secrets.token_hex(8)
        self._fences: dict[int, asyncio.Future[None]] = {}
        self._tokens = itertools.count()
        self._numbers: dict[str, int] = {}
        self._joined_at = self._loop.time()
        self._marked: set[Stream] = set()
        self._flushing: asyncio.TimerHandle | None = None
        self._flush_at = 0.0

    @staticmethod
    def current(layer: Any) -> "Hub":
        """
        The hub of the running event loop, made at the first call.
        """
        loop = asyncio.get_running_loop()
        hub = _hubs.get(loop)
        if hub is None or hub.layer is not layer:
            for other in [known for known in _hubs if known.is_closed()]:
                del _hubs[other]
            hub = _hubs[loop] = Hub(layer)
        return hub

    async def attach(self, stream: Stream, *, max_streams: int) -> None:
        """
        Join the topics of ``stream``. When this returns, nothing that is published is missed by it.

        A layer that is down holds nobody up: the stream is then told that everything changed once the layer is back.
        The caller must ``detach`` the stream, also when this raises or is cancelled.

        Raises:
            HubFullError: there are ``max_streams`` streams, or the process is shutting down.
        """
        if self.is_full(max_streams):
            raise HubFullError
        self._start()
        self.streams.add(stream)
        stream.topics = tuple(self._want(topic, stream) for topic in stream.topics)
        joining = {
            entry.joining: None for topic in stream.topics if (entry := self._entries[topic]).joining is not None
        }
        if not joining:
            return
        self._work.set()
        if not self._down:
            await asyncio.wait([batch.done for batch in joining if batch], timeout=JOIN_TIMEOUT)
        for batch in joining:
            if batch and not batch.done.done():
                batch.late = True

    def detach(self, stream: Stream) -> None:
        """
        Forget ``stream``. Its topics' groups are left some seconds later, if nobody else wants them.
        """
        self.streams.discard(stream)
        now = self._loop.time()
        for topic in stream.topics:
            entry = self._entries.get(topic)
            if entry is None:
                continue
            entry.streams.discard(stream)
            if not entry.streams:
                self._idle[topic] = now
        stream.topics = ()

    def is_full(self, max_streams: int) -> bool:
        """
        Whether one more stream would be refused.
        """
        return self.draining or len(self.streams) >= max_streams

    def end_all(self, reason: Reason) -> None:
        """
        End every stream.
        """
        for stream in list(self.streams):
            stream.end(reason)

    def drain(self) -> None:
        """
        Refuse new streams, and end those that are open (``shutdown``).
        """
        self.draining = True
        self.end_all("shutdown")

    def mark_all(self) -> None:
        """
        Say that every topic may have changed.
        """
        for entry in self._entries.values():
            self._mark(entry)

    async def close(self) -> None:
        """
        End the hub's tasks and give its channel back.
        """
        if _hubs.get(self._loop) is self:
            del _hubs[self._loop]
        if self._flushing is not None:
            self._flushing.cancel()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        try:
            async with asyncio.timeout(1):
                await self._forget_groups()
        except Exception as error:  # the layer is down; its own expiry does the rest
            logger.debug("Groups could not be left: %r", error)

    # Topics

    def _want(self, topic: Topic, stream: Stream) -> Topic:
        entry = self._entries.get(topic)
        if entry is None:
            entry = self._entries[topic] = _Entry(topic)
            if self._joining is None:
                self._joining = _Joining(self._loop.create_future())
            self._joining.entries.append(entry)
            entry.joining = self._joining
        entry.streams.add(stream)
        self._idle.pop(topic, None)
        # The entry's own object, so that equal URIs of many streams are kept once.
        return entry.topic

    def _dispatch(self, message: dict[str, Any]) -> None:
        if "number" in message and self._has_missed(message):
            logger.warning("The channel layer dropped messages; every stream was told that its topics may have changed")
            self.mark_all()
        match message.get("type"):
            case topics.CHANGED:
                for topic in topics.read_changed(message):
                    entry = self._entries.get(topic)
                    if entry is not None:
                        self._mark(entry)
            case topics.RESYNC:
                self.mark_all()
            case _ if message.get("type") == FENCE and message.get("hub") == self._name:
                fence = self._fences.get(message.get("token", -1))
                if fence is not None and not fence.done():
                    fence.set_result(None)
            case _:
                pass

    def _has_missed(self, message: dict[str, Any]) -> bool:
        """
        Whether a publisher's numbers show that a message was dropped by the layer.
        """
        match message:
            case {"type": kind, "from": str(name), "number": int(number), "since": float() | int() | None as since}:
                before = number if kind == topics.SEQUENCE else number - 1
            case _:
                return False
        last = self._numbers.pop(name, None)
        self._numbers[name] = number if last is None else max(last, number)
        if len(self._numbers) > PUBLISHERS:
            del self._numbers[next(iter(self._numbers))]
        if last is not None:
            return before > last
        # Not heard of until now: was the one before sent when this hub could hear it?
        return since is not None and self._loop.time() - since > self._joined_at

    # Waking writers

    def _mark(self, entry: _Entry) -> None:
        self._marked |= entry.mark()
        if self._flushing is None:
            self._flushing = self._loop.call_at(self._flush_at, self._flush)

    def _flush(self) -> None:
        """
        Wake the streams that were marked: at once when it is quiet, and in a burst no more often than half of the time
        goes into it, so that what comes in between is written together.
        """
        started = self._loop.time()
        marked, self._marked = self._marked, set()
        for stream in marked:
            stream.wake()
        # The writers run in the loop's next round; what is called after that comes when they have written.
        self._loop.call_soon(self._loop.call_soon, self._flushed, started)

    def _flushed(self, started: float) -> None:
        now = self._loop.time()
        self._flush_at = now + min(now - started, LONGEST_PAUSE)
        self._flushing = self._loop.call_at(self._flush_at, self._flush) if self._marked else None

    # Tasks

    def _start(self) -> None:
        if self._tasks:
            return
        publisher.adopt(self._loop)
        self._tasks = [
            self._loop.create_task(self._tend(), name="mcp_channels-hub-layer"),
            self._loop.create_task(self._sweep(), name="mcp_channels-hub-sweep"),
        ]

    async def _sweep(self) -> None:
        while True:
            now = self._loop.time()
            due = now + SWEEP_INTERVAL
            for stream in list(self.streams):
                due = min(due, stream.tick(now))
            self._collect_idle(now)
            if self.streams or self._entries or self.draining:
                self._last_used = now
            elif now - self._last_used >= LINGER:
                self._retire()
                return
            await asyncio.sleep(max(due - now, 0.001))

    def _retire(self) -> None:
        # Out of the registry at once: whoever comes next must get a new hub, not one that is about to end.
        if _hubs.get(self._loop) is self:
            del _hubs[self._loop]
        task = self._loop.create_task(self.close(), name="mcp_channels-hub-close")
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    def _collect_idle(self, now: float) -> None:
        # The dictionary is in order of time, so the first that is young enough ends the search.
        left = [topic for topic, since in itertools.takewhile(lambda idle: now - idle[1] >= LINGER, self._idle.items())]
        for topic in left:
            del self._idle[topic]
            del self._entries[topic]
        if left:
            self._leaving.extend(left)
            self._work.set()

    async def _receive(self, channel: str) -> None:
        while True:
            try:
                message = await self.layer.receive(channel)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the edge of the receive loop: whatever a layer raises is an outage
                self._outage(error)
                await asyncio.sleep(self._retry_delay())
                continue
            try:
                self._dispatch(message)
            except Exception:  # one bad message must not end the loop that all streams live on
                logger.exception("A message of the channel layer could not be handled")

    async def _tend(self) -> None:
        while True:
            self._work.clear()
            try:
                await self._tend_once()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the edge: whatever a layer raises is an outage
                self._outage(error)
            delay = self._retry_delay() if self._down else PROBE_INTERVAL / 2
            try:
                async with asyncio.timeout(delay):
                    await self._work.wait()
                    if self._down:
                        await asyncio.sleep(delay)
            except TimeoutError:
                pass

    async def _tend_once(self) -> None:
        if self._channel is None:
            async with asyncio.timeout(OPERATION_TIMEOUT):
                channel = await self.layer.new_channel()
            self._channel = channel
            self._tasks.append(self._loop.create_task(self._receive(channel), name="mcp_channels-hub-receive"))
            await self._add([topics.EVERY_HUB])
            self._joined_at = self._loop.time()
            self._connections = layers.connections(self.layer)
        recovering = self._down or self._connections != layers.connections(self.layer)
        if recovering:
            await self._add(self._groups())
        batch, self._joining = self._joining, None
        if batch is not None:
            try:
                await self._add(self._groups_of(entry.topic for entry in batch.entries))
            except BaseException:
                self._postpone(batch)
                raise
            self._joined(batch)
        if recovering:
            self._recovered()
        elif batch is not None and batch.late:
            for entry in batch.entries:
                self._mark(entry)
        await self._leave()
        now = self._loop.time()
        expiry = layers.group_expiry(self.layer)
        if expiry is not None and now - self._renewed_at >= expiry / 4:
            self._renewed_at = now
            await self._add(self._groups())
        if now - self._probed_at >= PROBE_INTERVAL:
            self._probed_at = now
            await self._fence(self.layer.send, [self._channel])

    def _joined(self, batch: _Joining) -> None:
        for entry in batch.entries:
            entry.joining = None
        if not batch.done.done():
            batch.done.set_result(None)

    def _postpone(self, batch: _Joining) -> None:
        batch.late = True
        if not batch.done.done():
            batch.done.set_result(None)
        if self._joining is None:
            self._joining = _Joining(self._loop.create_future())
        self._joining.late = True
        for entry in batch.entries:
            if self._entries.get(entry.topic) is entry:
                entry.joining = self._joining
                self._joining.entries.append(entry)

    def _groups(self) -> list[str]:
        joined = (topic for topic, entry in self._entries.items() if entry.joining is None)
        return [topics.EVERY_HUB, *self._groups_of(joined)]

    def _groups_of(self, wanted: Iterable[Topic]) -> list[str]:
        # On a bounded layer everything goes to every hub.
        return [] if layers.is_bounded(self.layer) else [topic.group for topic in wanted]

    async def _add(self, groups: list[str]) -> None:
        for some in _portions(groups):
            async with asyncio.timeout(OPERATION_TIMEOUT):
                await asyncio.gather(*(self.layer.group_add(group, self._channel) for group in some))
        # A layer may return from a join before the broker has heard of it, so see a message come through.
        await self._fence(self.layer.group_send, groups if layers.is_sharded(self.layer) else groups[-1:])

    async def _fence(self, send: Any, destinations: Iterable[str | None]) -> None:
        for destination in destinations:
            token = next(self._tokens)
            fence = self._fences[token] = self._loop.create_future()
            try:
                async with asyncio.timeout(OPERATION_TIMEOUT):
                    while not fence.done():
                        await send(destination, {"type": FENCE, "hub": self._name, "token": token})
                        await asyncio.wait([fence], timeout=FENCE_RETRY)
            finally:
                del self._fences[token]

    async def _leave(self) -> None:
        while self._leaving:
            topic = self._leaving[0]
            if topic not in self._entries and self._groups_of([topic]):
                async with asyncio.timeout(OPERATION_TIMEOUT):
                    await self.layer.group_discard(topic.group, self._channel)
            # Not before: if the layer failed, the group is still to be left. What was added stands behind it.
            self._leaving.popleft()

    async def _forget_groups(self) -> None:
        if self._channel is not None:
            for group in [*self._groups(), *self._groups_of(self._leaving)]:
                await self.layer.group_discard(group, self._channel)

    # Outages

    def _outage(self, error: Exception) -> None:
        self._failures += 1
        if self._down:
            return
        self._down = True
        logger.error("The channel layer failed (%s); streams stay open until it is back", type(error).__name__)
        self._work.set()
        if self._joining is not None:
            self._joining.late = True
            if not self._joining.done.done():
                self._joining.done.set_result(None)

    def _retry_delay(self) -> float:
        delay: float = min(RETRY_DELAY * 2 ** min(self._failures, 8), RETRY_CEILING)
        return delay

    def _recovered(self) -> None:
        self._connections = layers.connections(self.layer)
        self.mark_all()
        if self._down:
            logger.warning("The channel layer is back; every stream was told that its topics may have changed")
        self._down = False
        self._failures = 0
        # What was missed meanwhile has been made up for.
        self._numbers.clear()
        self._joined_at = self._loop.time()


_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}
_closing: set[asyncio.Task[None]] = set()


def _portions(groups: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(groups), PORTION):
        yield groups[start : start + PORTION]


def hubs() -> Iterator[tuple[asyncio.AbstractEventLoop, Hub]]:
    """
    The hubs of this process, each with its event loop.
    """
    yield from list(_hubs.items())
