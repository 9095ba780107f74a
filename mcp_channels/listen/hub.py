"""
The fan-out of one process: one hub for each event loop that serves streams.

A hub is in a topic's group from the first local stream that wants it until some seconds after the last one went, so a
message crosses the layer once for each process, is decoded once, and its JSON is built once; the streams get it by
reference. A stream costs no channel, no group of its own and no timer: one sweep serves all deadlines.

When the layer fails, streams stay open. When it is back, every topic of every stream is marked as changed: to notify
too much is safe, silence is not.
"""

import asyncio
import itertools
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from mcp_channels import topics
from mcp_channels.listen import frames
from mcp_channels.listen.membership import Joining, Membership
from mcp_channels.listen.node import Node
from mcp_channels.listen.places import FULL, places
from mcp_channels.listen.stream import OnTaken, Reason, Stream
from mcp_channels.publisher import publisher
from mcp_channels.topics import MalformedError, Topic

LINGER: Final = 5.0
"""Seconds for which a topic's group is kept after its last stream went, and a hub after its last topic."""

LONGEST_PAUSE: Final = 0.05
"""The most seconds for which the hub lets a burst of changes gather before it wakes the writers again."""

SWEEP_INTERVAL: Final = 0.25
"""The most seconds between two sweeps of the deadlines."""


class HubFullError(RuntimeError):
    """
    The process holds as many streams as it may, or is shutting down; the text, for the client, says which.
    """


class _Entry:
    """
    One topic that local streams want.
    """

    __slots__ = ("head", "joining", "quiet", "streams", "topic")

    def __init__(self, topic: Topic, head: bytes, joining: Joining) -> None:
        self.topic = topic
        self.head = head
        self.joining: Joining | None = joining
        self.streams: set[Stream] = set()
        self.quiet: set[Stream] = set()
        """Those that are to be asked at a change: all but those with which the topic was found to be pending still."""

    def mark(self, on_taken: OnTaken) -> list[Stream]:
        """
        Mark the topic as pending with its streams, and return those with which it was not. The others are to be woken
        already, or don't take what they are told: these cost nothing any more, until they take it.
        """
        topic, head = self.topic, self.head
        marked: list[Stream] = []
        others: list[Stream] = []
        for stream in self.quiet:
            (marked if stream.mark(topic, head) else others).append(stream)
        for stream in others:
            if topic in stream.pending:
                self.quiet.discard(stream)
                stream.on_taken = on_taken
        return marked


class Hub:
    """
    The streams of one event loop, by topic. Use ``Hub.current()``.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.streams: set[Stream] = set()
        self.draining = _stopping.is_set()
        """Whether the process is shutting down: no stream is taken any more."""
        self._loop = asyncio.get_running_loop()
        self._membership = Membership(layer, receive=self._receive, missed=self._missed)
        self.node = Node(drop=self.drop, membership=self._membership, finish=self._finish)
        """The place of this hub's streams in the database."""
        self._entries: dict[Topic, _Entry] = {}
        self._idle: dict[Topic, float] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._last_used = self._loop.time()
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
        if self.draining:
            raise HubFullError("The server is shutting down")
        if not places.take(max_streams):
            raise HubFullError(FULL)
        self._start()
        self.streams.add(stream)
        entries = [self._want(topic, stream) for topic in stream.topics]
        # The entries' own objects, so that equal URIs of many streams are kept once.
        stream.topics = tuple(entry.topic for entry in entries)
        joinings = {joining: None for entry in entries if (joining := entry.joining) is not None}
        if joinings:
            await self._membership.wait(joinings)

    def detach(self, stream: Stream) -> None:
        """
        Forget ``stream``. Its topics' groups are left some seconds later, if nobody else wants them.
        """
        if stream in self.streams:
            with _counting:
                self.streams.discard(stream)
                _delivered[stream.endpoint] = _delivered.get(stream.endpoint, 0) + stream.delivered
            places.give_back()
        self.drop(stream, stream.topics)

    def drop(self, stream: Stream, dropped: Collection[Topic]) -> None:
        """
        Take topics from ``stream``: it isn't told of them any more.
        """
        now = self._loop.time()
        stream.lose(dropped)
        for topic in dropped:
            entry = self._entries.get(topic)
            if entry is None:
                continue
            entry.streams.discard(stream)
            entry.quiet.discard(stream)
            if not entry.streams:
                self._idle[topic] = now

    @property
    def is_layer_down(self) -> bool | None:
        """
        Whether the channel layer is known to be down; None before the first stream.
        """
        return None if self._sweeping is None else self._membership.is_down

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
        self.draining = self.node.draining = True
        self.end_all("shutdown")

    async def close(self) -> None:
        """
        End the hub's tasks and give its channel back.
        """
        self._forget()
        if self._flushing is not None:
            self._flushing.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self.node.close()
        await self._membership.close()

    # Topics

    def _want(self, topic: Topic, stream: Stream) -> _Entry:
        entry = self._entries.get(topic)
        if entry is None:
            head = frames.notification_head(topic)
            entry = self._entries[topic] = _Entry(topic, head, self._membership.join(topic))
        elif entry.joining is not None and entry.joining.done.done():
            entry.joining = None
        entry.streams.add(stream)
        entry.quiet.add(stream)
        self._idle.pop(topic, None)
        return entry

    def _receive(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case topics.CHANGED:
                for topic in topics.read_changed(message):
                    entry = self._entries.get(topic)
                    if entry is not None:
                        self._mark(entry)
            case topics.ORDERS:
                self.node.receive(message)
            case topics.RESYNC:
                self._missed(None)
            case topics.SEQUENCE:
                # Its number has been looked at.
                pass
            case _:
                raise MalformedError("its type is unknown")

    def _missed(self, missed: Iterable[Topic] | None) -> None:
        entries = self._entries.values() if missed is None else map(self._entries.get, missed)
        for entry in entries:
            if entry is not None:
                self._mark(entry)

    def _taken(self, stream: Stream, taken: Sequence[Topic]) -> None:
        for topic in taken:
            entry = self._entries.get(topic)
            if entry is not None and stream in entry.streams:
                entry.quiet.add(stream)

    # Waking writers

    def _mark(self, entry: _Entry) -> None:
        self._marked.update(entry.mark(self._taken))
        if self._marked and self._flushing is None:
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

    # Deadlines

    def _start(self) -> None:
        if self._sweeping is None:
            publisher.adopt(self._loop)
            self._membership.start()
            self._sweeping = self._loop.create_task(self._sweep(), name="mcp_channels-hub-sweep")

    async def _sweep(self) -> None:
        while True:
            now = self._loop.time()
            due = now + SWEEP_INTERVAL
            for stream in list(self.streams):
                due = min(due, stream.tick(now))
            self._collect_idle(now)
            if self.streams or self._entries or self.draining or self.node.owes:
                self._last_used = now
            elif now - self._last_used >= LINGER:
                self._retire()
                return
            await asyncio.sleep(max(due - now, 0.001))

    def _collect_idle(self, now: float) -> None:
        # The dictionary is in order of time, so the first that is young enough ends the search.
        left = [topic for topic, since in itertools.takewhile(lambda idle: now - idle[1] >= LINGER, self._idle.items())]
        for topic in left:
            del self._idle[topic]
            del self._entries[topic]
        if left:
            self._membership.leave(left)

    async def _finish(self) -> None:
        """
        Leave the layer: the last stream has ended at a shutdown, and the process may not come to ``close``.
        """
        # Those that have ended may still have their places: their responses are not over.
        if all(stream.reason is not None for stream in self.streams):
            self._forget()
            await self._membership.close()

    def _retire(self) -> None:
        self._forget()
        task = self._loop.create_task(self.close(), name="mcp_channels-hub-close")
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    def _forget(self) -> None:
        # Out of the registry at once: whoever comes next must get a new hub, not one that is about to end.
        if _hubs.get(self._loop) is self:
            del _hubs[self._loop]


_stopping = threading.Event()
_hubs: dict[asyncio.AbstractEventLoop, Hub] = {}
_closing: set[asyncio.Task[None]] = set()
_counting = threading.Lock()
_delivered: dict[str, int] = {}


class Status(NamedTuple):
    """
    What this process holds and reaches, over all of its event loops.
    """

    streams: int
    """The places that are taken: by open streams, and by streamed calls."""

    draining: bool
    """Whether it is shutting down."""

    layer: Literal["up", "down", "unused"]
    """The channel layer; unused where no stream was served lately."""

    database: Literal["up", "down", "unused"]
    """The database, as the last heartbeat found it."""


class Tally(NamedTuple):
    """
    An endpoint's open streams in this process, and the notifications that were delivered since it started.
    """

    streams: int
    delivered: int


def _forget() -> None:
    global _counting  # another thread may hold the parent's
    _counting = threading.Lock()
    _hubs.clear()
    _delivered.clear()
    places.reset()


# A forked child serves none of its parent's streams.
os.register_at_fork(after_in_child=_forget)


def status() -> Status:
    """
    How this process does. From any thread; it asks nobody.
    """
    hubs = _running()
    return Status(
        streams=places.taken,
        draining=_stopping.is_set() or any(hub.draining for hub in hubs),
        layer=_worst(hub.is_layer_down for hub in hubs),
        database=_worst(hub.node.is_database_down for hub in hubs),
    )


def tallies() -> dict[str, Tally]:
    """
    Counts by endpoint, of every endpoint that has served a stream. From any thread.
    """
    with _counting:
        # A stream that ends meanwhile must be neither counted twice nor left out.
        found = {endpoint: Tally(0, delivered) for endpoint, delivered in _delivered.items()}
        for hub in _running():
            for stream in list(hub.streams):
                streams, delivered = found.get(stream.endpoint, (0, 0))
                found[stream.endpoint] = Tally(streams + 1, delivered + stream.delivered)
    return found


def _running() -> list[Hub]:
    return [hub for loop, hub in list(_hubs.items()) if not loop.is_closed()]


def _worst(are_down: Iterable[bool | None]) -> Literal["up", "down", "unused"]:
    known = [is_down for is_down in are_down if is_down is not None]
    if not known:
        return "unused"
    return "down" if any(known) else "up"


def drain_all() -> None:
    """
    Drain every hub of this process, those that are yet to be made included. From any thread, or a signal handler.
    """
    _stopping.set()
    for loop, hub in list(_hubs.items()):
        if not loop.is_closed():
            loop.call_soon_threadsafe(hub.drain)
