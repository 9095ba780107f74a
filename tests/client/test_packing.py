"""
Packing against a model of a server, in any order of events.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mcp_channels.client.errors import SubscriptionEndedError, WatchRefusedError
from mcp_channels.client.events import Notification, Resynchronised
from mcp_channels.client.packing import Close, Cover, Fail, Linger, Open, Packing, Tell

URIS = [f"a:{number}" for number in range(5)]
UPDATED = "notifications/resources/updated"


def updated(uri: str) -> Notification:
    return Notification(UPDATED, {"uri": uri})


@dataclass
class ServerStream:
    """
    A stream as the server sees it; ``channel`` is what is on its way to the client.
    """

    uris: tuple[str, ...]
    granted: frozenset[str] | None = None
    has_been_acknowledged: bool = False
    is_lingering: bool = False
    channel: list[object] = field(default_factory=list)


@dataclass
class Watcher:
    """
    One who watches, and reads the resource whenever it is told to.
    """

    uri: str
    is_covered: bool = False
    seen: int = -1
    told: int = 0
    allowed: int = 0


class Watching(RuleBasedStateMachine):
    """
    Watches, unwatches, changes, drops, refusals and acknowledgments, narrow ones too, in any order. The messages of
    each stream keep their order; those of different streams don't.
    """

    def __init__(self) -> None:
        super().__init__()
        self.versions = dict.fromkeys(URIS, 0)
        self.watchers: dict[int, Watcher] = {}
        self.answered: set[int] = set()
        self.asked: set[int] = set()
        self.streams: dict[int, ServerStream] = {}
        self.number = 0
        self.has_dropped: set[int] = set()

    @initialize(per_stream=st.integers(1, 5))
    def start(self, per_stream: int) -> None:
        self.packing = Packing(per_stream=per_stream)
        self.per_stream = per_stream

    def perform(self, actions: list) -> None:
        for action in actions:
            match action:
                case Open(number, uris):
                    assert 0 < len(uris) <= self.per_stream
                    self.streams[number] = ServerStream(uris)
                case Close(number):
                    del self.streams[number]
                case Linger(number):
                    self.streams[number].is_lingering = True
                case Tell(number, event):
                    watcher = self.watchers[number]
                    assert watcher.is_covered
                    watcher.told += isinstance(event, Notification)
                    watcher.seen = self.versions[watcher.uri]
                case Cover(number):
                    watcher = self.watchers[number]
                    assert not watcher.is_covered
                    # It is true now: a stream that was granted the URI stands.
                    assert any(watcher.uri in (stream.granted or ()) for stream in self.streams.values())
                    watcher.is_covered, watcher.seen = True, self.versions[watcher.uri]
                    self.answered.add(number)
                case Fail(number, _):
                    del self.watchers[number]
                    self.answered.add(number)

    def some(self, data, streams: list[int]) -> int:
        return data.draw(st.sampled_from(streams))

    @rule(uri=st.sampled_from(URIS))
    def watch(self, uri: str) -> None:
        self.number += 1
        self.asked.add(self.number)
        # What is on its way when it comes is told to it, too.
        due = sum(uri in stream.channel or stream.is_lingering for stream in self.streams.values())
        self.watchers[self.number] = Watcher(uri, allowed=due)
        self.perform(self.packing.watch(self.number, uri))

    @precondition(lambda self: self.watchers)
    @rule(data=st.data())
    def unwatch(self, data) -> None:
        number = data.draw(st.sampled_from(sorted(self.watchers)))
        watcher = self.watchers.pop(number)
        self.answered.add(number)
        self.perform(self.packing.unwatch(number))
        # The last one who watches takes the last stream away.
        if not self.watchers:
            assert all(stream.is_lingering for stream in self.streams.values())
        assert watcher.uri in URIS

    @rule(uri=st.sampled_from(URIS))
    def change(self, uri: str) -> None:
        self.versions[uri] += 1
        carriers = [stream for stream in self.streams.values() if uri in (stream.granted or ())]
        for stream in carriers:
            if uri not in stream.channel:
                stream.channel.append(uri)
        # One that has not been acknowledged yet may tell it as well, after the one that it will replace.
        most = 2 if any(not stream.has_been_acknowledged for stream in carriers) else 1
        for watcher in self.watchers.values():
            if watcher.uri == uri:
                watcher.allowed += most

    @precondition(lambda self: any(stream.granted is None for stream in self.streams.values()))
    @rule(data=st.data(), narrow=st.sets(st.sampled_from(URIS), max_size=1))
    def accept(self, data, narrow: set[str]) -> None:
        number = self.some(data, [number for number, stream in self.streams.items() if stream.granted is None])
        stream = self.streams[number]
        stream.granted = frozenset(stream.uris) - narrow
        stream.channel = [stream.granted]

    @precondition(lambda self: any(stream.channel for stream in self.streams.values()))
    @rule(data=st.data())
    def receive(self, data) -> None:
        self.receive_from(self.some(data, [number for number, stream in self.streams.items() if stream.channel]))

    def receive_from(self, number: int) -> None:
        stream = self.streams[number]
        message = stream.channel.pop(0)
        if isinstance(message, frozenset):
            stream.has_been_acknowledged = True
            self.perform(self.packing.acknowledged(number, message))
        else:
            self.perform(self.packing.updated(number, message, updated(message)))

    @precondition(lambda self: any(stream.has_been_acknowledged for stream in self.streams.values()))
    @rule(data=st.data())
    def drop(self, data) -> None:
        number = self.some(data, [number for number, stream in self.streams.items() if stream.has_been_acknowledged])
        stream = self.streams[number]
        stream.granted, stream.channel, stream.has_been_acknowledged = None, [], False
        self.has_dropped.add(number)
        self.perform(self.packing.lost(number))

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def end(self, data) -> None:
        number = self.some(data, list(self.streams))
        del self.streams[number]
        self.perform(self.packing.closed(number, SubscriptionEndedError("over")))

    @precondition(lambda self: any(self.may_part(stream) for stream in self.streams.values()))
    @rule(data=st.data())
    def lingered(self, data) -> None:
        number = self.some(data, [number for number, stream in self.streams.items() if self.may_part(stream)])
        self.perform(self.packing.lingered(number))

    def may_part(self, stream: ServerStream) -> bool:
        # The lingering is longer than what is on its way.
        return stream.is_lingering and not any(other.channel for other in self.streams.values())

    @invariant()
    def streams_are_replaced_one_by_one(self) -> None:
        coming_or_going = [
            number
            for number, stream in self.streams.items()
            if number not in self.has_dropped and (stream.is_lingering or not stream.has_been_acknowledged)
        ]
        assert len(coming_or_going) <= 1

    @invariant()
    def nothing_is_told_twice(self) -> None:
        for watcher in self.watchers.values():
            assert watcher.told <= watcher.allowed

    def teardown(self) -> None:
        if not hasattr(self, "packing"):
            return
        while self.settle():
            pass
        # Every waiter is answered, no change is lost, and no stream is left that isn't needed.
        assert {number for number, watcher in self.watchers.items() if not watcher.is_covered} == set()
        assert self.asked - self.answered == set()
        for watcher in self.watchers.values():
            assert watcher.seen == self.versions[watcher.uri]
        watched = {watcher.uri for watcher in self.watchers.values()}
        assert len(self.streams) <= -(-2 * len(watched) // self.per_stream) + 1
        for number in list(self.watchers):
            del self.watchers[number]
            self.perform(self.packing.unwatch(number))
        while self.settle():
            pass
        assert self.streams == {}

    def settle(self) -> bool:
        """
        One step towards rest; False if there is none.
        """
        for number, stream in list(self.streams.items()):
            if stream.channel:
                self.receive_from(number)
                return True
            if stream.granted is None:
                stream.granted = frozenset(stream.uris)
                stream.channel = [stream.granted]
                return True
        for number, stream in list(self.streams.items()):
            if stream.is_lingering:
                self.perform(self.packing.lingered(number))
                return True
        return False


Watching.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
test_watches_lose_nothing_leak_nothing_and_are_all_answered = pytest.mark.timeout(120)(Watching.TestCase)


def carrying(packing: Packing, *uris: str) -> int:
    """
    Watch URIs, each by its index, and return the stream that carries them.
    """
    actions = [action for number, uri in enumerate(uris) for action in packing.watch(number, uri)]
    return settled(packing, actions)[-1].stream


def settled(packing: Packing, actions: list) -> list[Open]:
    """
    Acknowledge every stream that is opened, let those that linger go, and return what was opened.
    """
    opened = []
    for action in actions:
        if isinstance(action, Open):
            opened.append(action)
            opened += settled(packing, packing.acknowledged(action.stream, frozenset(action.uris)))
        elif isinstance(action, Linger):
            opened += settled(packing, packing.lingered(action.stream))
    return opened


def test_watches_of_one_uri_share_a_stream_and_many_uris_share_few():
    packing = Packing(per_stream=1000)
    assert packing.watch(0, "a:0") == [Open(1, ("a:0",))]
    for number in range(1, 1500):
        assert packing.watch(number, f"a:{number}") == []
    assert packing.watch(2000, "a:0") == []
    actions = packing.acknowledged(1, frozenset({"a:0"}))
    assert actions[:2] == [Cover(0), Cover(2000)]
    second = actions[2]
    assert (second.stream, len(second.uris)) == (2, 1000)
    actions = packing.acknowledged(2, frozenset(second.uris))
    assert actions[0] == Linger(1)
    assert sum(isinstance(action, Cover) for action in actions) == 999
    # The next one waits for the former to go.
    assert len(actions) == 1000
    close, opened = packing.lingered(1)
    assert close == Close(1)
    assert (opened.stream, len(opened.uris)) == (3, 500)


def test_a_change_in_the_switch_is_told_once_and_one_of_before_is_told_after_all():
    packing = Packing(per_stream=10)
    first = carrying(packing, "a:1", "a:2")
    [opened] = packing.watch(7, "a:3")
    assert Tell(0, updated("a:1")) in packing.updated(first, "a:1", updated("a:1"))
    actions = packing.acknowledged(opened.stream, frozenset(opened.uris))
    assert actions == [Linger(first), Cover(7)]
    # Both tell of a:1; only the former still tells of a:2.
    assert packing.updated(first, "a:1", updated("a:1")) == []
    assert packing.updated(opened.stream, "a:1", updated("a:1")) == [Tell(0, updated("a:1"))]
    assert packing.updated(first, "a:2", updated("a:2")) == []
    assert packing.lingered(first) == [Tell(1, updated("a:2")), Close(first)]
    assert packing.updated(first, "a:2", updated("a:2")) == []


def test_a_stream_that_can_not_be_replaced_stays_in_force():
    packing = Packing(per_stream=10)
    first = carrying(packing, "a:1")
    [opened] = packing.watch(7, "a:2")
    error = SubscriptionEndedError("no")
    assert packing.closed(opened.stream, error) == [Fail(7, error)]
    assert packing.updated(first, "a:1", updated("a:1")) == [Tell(0, updated("a:1"))]
    # The next call tries again.
    assert packing.watch(8, "a:2") == [Open(opened.stream + 1, ("a:1", "a:2"))]


def test_a_narrower_acknowledgment_ends_the_watches_that_it_drops():
    packing = Packing(per_stream=10)
    stream = carrying(packing, "a:1", "a:2")
    packing.lost(stream)
    assert packing.watch(7, "a:1") == []
    failed, resynchronised, covered = packing.acknowledged(stream, frozenset({"a:1"}))[::-1]
    assert (failed.watch, type(failed.error)) == (1, WatchRefusedError)
    assert resynchronised == Cover(7)
    assert covered == Tell(0, Resynchronised({"resourceSubscriptions": ["a:1"]}))


def test_a_resource_below_a_watched_one_is_told_to_who_watches_it():
    packing = Packing(per_stream=10)
    stream = carrying(packing, "file:///a", "file:///ab")
    event = updated("file:///a/b")
    assert packing.updated(stream, "file:///a/b", event) == [Tell(0, event)]


def test_streams_that_have_become_small_are_brought_together():
    packing = Packing(per_stream=4)
    opened: list[Open] = []
    for number in range(8):
        opened += settled(packing, packing.watch(number, f"a:{number}"))
    assert sorted(opened[-1].uris) == ["a:4", "a:5", "a:6", "a:7"]
    for number in (0, 1, 2, 4, 5, 6):
        opened += settled(packing, packing.unwatch(number))
    assert sorted(opened[-1].uris) == ["a:3", "a:7"]
