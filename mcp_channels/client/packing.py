"""
Which streams carry which watches, without I/O.

Watches of one URI share a stream, and many URIs share one stream, since a server lets a client have few. A filter can't
be changed while its stream is open, so a stream is replaced: the one with the other filter is opened and acknowledged
first, and then the former lingers for a while. What the former still tells is held back, since the other tells it too;
what that has not told by then comes from before its time, and is told after all. So no change is lost in the switch,
and none is told twice as long as the two streams are no further apart than the lingering.

One stream is opened at a time, and none while another lingers, so that the client has one more than it needs at most.
What is watched meanwhile waits, and goes into the next one together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from mcp_channels.client.errors import WatchRefusedError
from mcp_channels.client.events import Event, Notification, Resynchronised
from mcp_channels.client.filter import lies_below


@dataclass(frozen=True, slots=True)
class Open:
    """
    Open a stream for these URIs.
    """

    stream: int
    uris: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """
    Close a stream.
    """

    stream: int


@dataclass(frozen=True, slots=True)
class Linger:
    """
    Say ``lingered()`` of this stream in a while.
    """

    stream: int


@dataclass(frozen=True, slots=True)
class Tell:
    """
    Hand an event to a watch.
    """

    watch: int
    event: Event


@dataclass(frozen=True, slots=True)
class Cover:
    """
    An acknowledgment that stands covers the watch.
    """

    watch: int


@dataclass(frozen=True, slots=True)
class Fail:
    """
    The watch is over.
    """

    watch: int
    error: Exception


Action = Open | Close | Linger | Tell | Cover | Fail


@dataclass
class _Stream:
    uris: tuple[str, ...]
    replaces: tuple[int, ...]
    role: Literal["opening", "carrying", "leaving"] = "opening"
    honoured: frozenset[str] | None = None
    left_at: int = 0
    deferred: dict[str, Notification] = field(default_factory=dict)


class Packing:
    """
    Watches and streams, each by a number. Every method returns what is to be done, in order.
    """

    def __init__(self, *, per_stream: int) -> None:
        self._per_stream = per_stream
        self._uris: dict[int, str] = {}
        self._watches: dict[str, dict[int, None]] = {}
        self._covered: set[int] = set()
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._told: dict[str, int] = {}
        self._clock = 0
        self._may_repack = True

    def latest(self, uri: str) -> int | None:
        """
        The youngest watch of a URI.
        """
        return next(reversed(self._watches.get(uri, {})), None)

    def watch(self, watch: int, uri: str) -> list[Action]:
        """
        Watch a URI.
        """
        self._uris[watch] = uri
        self._watches.setdefault(uri, {})[watch] = None
        self._may_repack = True
        actions: list[Action] = []
        if self._stands(uri):
            self._covered.add(watch)
            actions.append(Cover(watch))
        return actions + self._plan()

    def unwatch(self, watch: int) -> list[Action]:
        """
        Watch no longer. The server may go on to tell of the URI until its stream is replaced; nobody hears of that.
        """
        if watch not in self._uris:
            return []
        self._forget(watch)
        self._may_repack = True
        return self._plan()

    def acknowledged(self, number: int, honoured: frozenset[str]) -> list[Action]:
        """
        A stream was acknowledged, for the first time or again.
        """
        stream = self._streams.get(number)
        if stream is None or stream.role == "leaving":
            return []
        stood = {uri for uri in stream.uris if self._stands(uri)}
        stream.honoured = honoured
        actions: list[Action] = []
        if stream.role == "opening":
            stream.role = "carrying"
            actions += self._retire(stream)
        for uri in stream.uris:
            if self._stands(uri):
                actions += self._cover(uri, is_gapless=uri in stood)
            else:
                actions += self._fail(uri, WatchRefusedError(uri))
        return actions + self._plan()

    def lost(self, number: int) -> list[Action]:
        """
        A stream is lost, and asked for again.
        """
        stream = self._streams.get(number)
        if stream is None:
            return []
        if stream.role == "leaving":
            del self._streams[number]
            return [*self._part(stream), Close(number), *self._plan()]
        stream.honoured = None
        return []

    def closed(self, number: int, error: Exception) -> list[Action]:
        """
        A stream is over for good.
        """
        stream = self._streams.pop(number, None)
        if stream is None:
            return []
        if stream.role == "leaving":
            return [*self._part(stream), *self._plan()]
        if stream.role == "opening":
            # Whatever it was to bring together stays as it is until something changes.
            self._may_repack = False
        actions: list[Action] = []
        for uri in stream.uris:
            if not self._is_carried(uri):
                actions += self._fail(uri, error)
        return actions + self._plan()

    def updated(self, number: int, uri: str, event: Notification) -> list[Action]:
        """
        A stream told that a resource changed.
        """
        stream = self._streams.get(number)
        if stream is None:
            return []
        if stream.role == "leaving":
            stream.deferred[uri] = event
            return []
        return self._tell(uri, event)

    def lingered(self, number: int) -> list[Action]:
        """
        A stream that was replaced has lingered for long enough.
        """
        stream = self._streams.pop(number, None)
        return [] if stream is None else [*self._flush(stream), Close(number), *self._plan()]

    def _cover(self, uri: str, *, is_gapless: bool) -> Iterator[Action]:
        for watch in self._watches.get(uri, {}):
            if watch not in self._covered:
                self._covered.add(watch)
                yield Cover(watch)
            elif not is_gapless:
                yield Tell(watch, Resynchronised({"resourceSubscriptions": [uri]}))

    def _fail(self, uri: str, error: Exception) -> list[Action]:
        watches = list(self._watches.get(uri, {}))
        for watch in watches:
            self._forget(watch)
        return [Fail(watch, error) for watch in watches]

    def _forget(self, watch: int) -> None:
        uri = self._uris.pop(watch)
        self._covered.discard(watch)
        del self._watches[uri][watch]
        if not self._watches[uri]:
            del self._watches[uri]
            self._told.pop(uri, None)

    def _retire(self, stream: _Stream) -> list[Action]:
        actions: list[Action] = []
        for number in stream.replaces:
            former = self._streams.get(number)
            # It stays if a URI that had been given up when the other was opened is watched again.
            if former is not None and set(self._live(former)) <= set(stream.uris):
                former.role, former.left_at = "leaving", self._clock
                actions.append(Linger(number))
        return actions

    def _tell(self, uri: str, event: Event, *, since: int | None = None) -> list[Action]:
        watched = [uri] if uri in self._watches else [parent for parent in self._watches if lies_below(uri, parent)]
        actions: list[Action] = []
        for parent in watched:
            if since is None or self._told.get(parent, -1) < since:
                self._clock += 1
                self._told[parent] = self._clock
                actions += [Tell(watch, event) for watch in self._watches[parent] if watch in self._covered]
        return actions

    def _flush(self, stream: _Stream) -> list[Action]:
        deferred, stream.deferred = stream.deferred, {}
        return [
            action for uri, event in deferred.items() for action in self._tell(uri, event, since=stream.left_at + 1)
        ]

    def _part(self, stream: _Stream) -> list[Action]:
        """
        A stream that was replaced has gone too early: what it was still to tell is not known.
        """
        return [
            action
            for uri in self._live(stream)
            for action in self._tell(uri, Resynchronised({"resourceSubscriptions": [uri]}), since=stream.left_at + 1)
        ]

    def _carrying(self) -> dict[int, _Stream]:
        return {number: stream for number, stream in self._streams.items() if stream.role == "carrying"}

    def _stands(self, uri: str) -> bool:
        return any(
            stream.role == "carrying" and stream.honoured is not None and uri in stream.honoured
            for stream in self._streams.values()
        )

    def _is_carried(self, uri: str) -> bool:
        """
        Whether a stream covers the URI, or may yet.
        """
        return any(
            stream.role != "leaving" and uri in (stream.uris if stream.honoured is None else stream.honoured)
            for stream in self._streams.values()
        )

    def _live(self, stream: _Stream) -> list[str]:
        return [uri for uri in stream.uris if uri in self._watches]

    def _plan(self) -> list[Action]:
        idle = [
            number for number, stream in self._streams.items() if stream.role != "leaving" and not self._live(stream)
        ]
        for number in idle:
            del self._streams[number]
        actions: list[Action] = [Close(number) for number in idle]
        if any(stream.role != "carrying" for stream in self._streams.values()):
            return actions
        return actions + (self._plan_needed() or self._plan_repacking())

    def _plan_needed(self) -> list[Action]:
        needed = [uri for uri in self._watches if not self._is_carried(uri)]
        if not needed:
            return []
        carrying = {number: self._live(stream) for number, stream in self._carrying().items()}
        number = min(carrying, key=lambda number: len(carrying[number]), default=None)
        if number is None or len(carrying[number]) >= self._per_stream:
            return self._open(needed, ())
        return self._open([*carrying[number], *needed], (number,))

    def _plan_repacking(self) -> list[Action]:
        if not self._may_repack:
            return []
        carrying = sorted(((self._live(stream), number) for number, stream in self._carrying().items()), key=_size)
        # Half-full at most, or else the next watch would part them again.
        if len(carrying) >= 2 and len(carrying[0][0]) + len(carrying[1][0]) <= self._per_stream // 2:
            (first, one), (second, other) = carrying[:2]
            return self._open([*second, *first], (one, other))
        for live, number in carrying:
            if len(self._streams[number].uris) > 2 * len(live):
                return self._open(live, (number,))
        return []

    def _open(self, uris: list[str], replaces: tuple[int, ...]) -> list[Action]:
        self._last_stream += 1
        chosen = tuple(dict.fromkeys(uris))[: self._per_stream]
        self._streams[self._last_stream] = _Stream(chosen, replaces)
        return [Open(self._last_stream, chosen)]


def _size(item: tuple[list[str], int]) -> int:
    return len(item[0])
