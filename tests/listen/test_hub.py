"""
A hub on a channel layer in memory, and on one that a test can break.
"""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from channels.layers import InMemoryChannelLayer

from mcp_channels import layers, topics
from mcp_channels.listen import fences, hub as hub_module, membership, reception
from mcp_channels.listen.fences import Fences
from mcp_channels.listen.filter import Filter
from mcp_channels.listen.hub import Hub, HubFullError
from mcp_channels.listen.reception import Reception
from mcp_channels.listen.stream import Stream
from mcp_channels.topics import PROMPTS, TOOLS, resource
from tests.listen.test_stream import Socket, make, settle


class Layer(InMemoryChannelLayer):
    """
    Counts what the hub does, and fails when told to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.added: list[str] = []
        self.discarded: list[str] = []
        self.new_channels = 0
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def _check(self) -> None:
        await self.gate.wait()
        if self.broken:
            raise ConnectionError("down")

    async def new_channel(self, prefix: str = "specific.") -> str:
        await self._check()
        self.new_channels += 1
        return await super().new_channel(prefix)

    async def group_add(self, group: str, channel: str) -> None:
        await self._check()
        self.added.append(group)
        await super().group_add(group, channel)

    async def group_discard(self, group: str, channel: str) -> None:
        await self._check()
        self.discarded.append(group)
        await super().group_discard(group, channel)

    async def group_send(self, group: str, message: dict) -> None:
        await self._check()
        await super().group_send(group, message)

    async def send(self, channel: str, message: dict) -> None:
        await self._check()
        await super().send(channel, message)


@asynccontextmanager
async def running():
    """
    A hub and its layer; at the end no task of it is left.
    """
    before = asyncio.all_tasks()
    layer = Layer()
    hub = Hub.current(layer)
    try:
        yield hub, layer
    finally:
        layer.broken = False
        layer.gate.set()
        await hub.close()
    assert asyncio.all_tasks() == before
    assert not layer.channels
    assert not layer.groups


@asynccontextmanager
async def attached(hub: Hub, *wanted, **limits):
    """
    A stream that is served and attached.
    """
    uris = tuple(topic.key for topic in wanted if topic.kind == "resource")
    lists = frozenset(topic.kind for topic in wanted if topic.kind != "resource")
    stream, socket = make(Filter(lists, uris), **limits), Socket()
    await hub.attach(stream, max_streams=100)
    task = asyncio.create_task(stream.serve(socket.write))
    await settle()
    try:
        yield stream, socket
    finally:
        hub.detach(stream)
        stream.end("client_closed")
        socket.open.set()
        await task


def told(socket: Socket) -> list[str]:
    return [message["params"].get("uri", message["method"]) for message in socket.messages[1:]]


async def until(condition, timeout: float = 5) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


async def publish(layer: Layer, *changed) -> None:
    for topic in changed:
        await layer.group_send(topic.group, topics.changed_message([topic]))
    await settle()
    # In a burst a hub lets changes gather.
    while any(hub._marked for hub in hub_module._hubs.values()):
        await asyncio.sleep(0.001)
    await settle()


async def test_a_message_reaches_the_streams_of_its_topic_alone():
    async with running() as (hub, layer):
        async with (
            attached(hub, resource("a"), TOOLS) as (_, one),
            attached(hub, resource("a")) as (_, two),
            attached(hub, resource("b")) as (_, three),
        ):
            await publish(layer, resource("a"))
            assert (told(one), told(two), told(three)) == (["a"], ["a"], [])


async def test_many_streams_share_one_channel_and_one_membership():
    async with running() as (hub, layer):
        async with (
            attached(hub, resource("a"), TOOLS),
            attached(hub, resource("a"), TOOLS),
            attached(hub, resource("a"), TOOLS),
        ):
            assert layer.new_channels == 1
            assert sorted(layer.added) == sorted([topics.EVERY_HUB, resource("a").group, TOOLS.group])
            names = sorted(task.get_name() for task in asyncio.all_tasks() if "hub" in task.get_name())
            assert names == ["mcp_channels-hub-layer", "mcp_channels-hub-receive", "mcp_channels-hub-sweep"]


async def test_equal_uris_are_kept_once():
    async with running() as (hub, _):
        async with attached(hub, resource("".join(["a", "b"]))) as (one, _):
            async with attached(hub, resource("".join(["a", "b"]))) as (two, _):
                assert one.topics[0].key is two.topics[0].key


async def test_a_batch_reaches_streams_by_its_topics():
    async with running() as (hub, layer):
        async with attached(hub, resource("a")) as (_, one), attached(hub, TOOLS) as (_, two):
            message = topics.changed_message([resource("x"), resource("a"), TOOLS])
            await layer.group_send(topics.EVERY_HUB, message)
            await settle()
            assert told(one) == ["a"]
            assert told(two) == ["notifications/tools/list_changed"]


async def test_a_colliding_group_delivers_nothing_foreign():
    async with running() as (hub, layer):
        async with attached(hub, resource("a")) as (_, socket):
            await layer.group_send(resource("a").group, topics.changed_message([resource("other")]))
            await settle()
            assert told(socket) == []


POISON = [
    {"type": "x"},
    {"type": ["x"]},
    {},
    {"type": topics.CHANGED},
    {"type": topics.CHANGED, "topics": 7},
    {"type": topics.CHANGED, "topics": "[", "number": 1, "from": "p", "since": None},
    "text",
    None,
    7,
    ["type"],
    ValueError("Unpack failed: incomplete input"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    TypeError("argument of type 'int' is not iterable"),
    type("InvalidToken", (Exception,), {})(),
]
"""What a layer may bring that is none of ours, or fail with where it can't be decoded."""


async def test_poisoned_messages_are_dropped_with_one_line_and_count_as_no_outage(caplog):
    async with running() as (hub, layer):
        async with attached(hub, TOOLS) as (_, socket):
            receive, poison = layer.receive, asyncio.Queue()

            async def poisoned(channel):
                if poison.empty():
                    return await receive(channel)
                message = poison.get_nowait()
                if isinstance(message, Exception):
                    raise message
                return message

            layer.receive = poisoned
            await publish(layer, TOOLS)
            for message in POISON * 30:
                poison.put_nowait(message)
            await publish(layer, TOOLS)
            await until(poison.empty)
            await publish(layer, TOOLS)
            assert len(told(socket)) == 3
            assert not hub._membership.is_down
    assert caplog.text.count("dropped") == 1
    assert "Traceback" not in caplog.text
    assert "failed" not in caplog.text


async def test_a_layer_that_decodes_nothing_is_not_asked_without_a_pause(monkeypatch):
    async with running() as (hub, layer):
        async with attached(hub, TOOLS):
            asked = 0

            async def broken(channel):
                nonlocal asked
                asked += 1
                raise TypeError("mine")

            receive, layer.receive = layer.receive, broken
            await publish(layer, TOOLS)
            await asyncio.sleep(0.6)
            layer.receive = receive
            assert asked <= reception.UNREADABLE_IN_A_ROW + 5


async def test_a_topic_that_waits_for_a_blocked_socket_is_marked_once_and_told_after_each_taking():
    async with running() as (hub, layer):
        async with attached(hub, resource("a"), TOOLS) as (stream, socket):
            marks, mark = [], stream.mark

            class Counting(Stream):
                __slots__ = ()

                def mark(self, topic, head):
                    marks.append(topic)
                    return mark(topic, head)

            stream.__class__ = Counting
            socket.block()
            for _ in range(100):
                await publish(layer, resource("a"))
            # One is on its way, one waits behind it, and one found it waiting.
            assert marks == [resource("a")] * 3
            socket.open.set()
            await settle()
            assert told(socket) == ["a", "a"]
            await publish(layer, resource("a"))
            assert told(socket) == ["a", "a", "a"]


async def test_what_a_full_set_skipped_is_marked_when_it_changes_again():
    async with running() as (hub, layer):
        async with attached(hub, resource("a"), resource("b"), max_queue=1) as (_, socket):
            socket.block()
            # The first is taken at once.
            await publish(layer, TOOLS, resource("a"), resource("a"), resource("b"))
            socket.open.set()
            await settle()
            assert told(socket) == ["a", "a"]
            await publish(layer, resource("b"))
            assert told(socket) == ["a", "a", "b"]


async def test_one_stream_that_fails_and_one_that_hangs_keep_nobody_from_hearing():
    async with running() as (hub, layer):
        async with (
            attached(hub, TOOLS) as (failing, broken),
            attached(hub, TOOLS) as (_, stuck),
            attached(hub, TOOLS) as (_, healthy),
        ):
            broken.error = RuntimeError("mine")
            stuck.block()
            await publish(layer, TOOLS)
            assert told(healthy) == ["notifications/tools/list_changed"]
            assert failing.reason == "client_closed"


async def test_a_group_is_left_some_time_after_its_last_stream(monkeypatch):
    monkeypatch.setattr(hub_module, "LINGER", 0.05)
    monkeypatch.setattr(hub_module, "SWEEP_INTERVAL", 0.02)
    async with running() as (hub, layer):
        async with attached(hub, resource("b")):
            async with attached(hub, resource("a")), attached(hub, resource("a")):
                pass
            await until(lambda: layer.discarded == [resource("a").group])
            # And is joined again when somebody wants it.
            async with attached(hub, resource("a")) as (_, socket):
                await publish(layer, resource("a"))
                assert told(socket) == ["a"]


async def test_many_groups_that_are_left_hold_no_newcomer_up(monkeypatch):
    monkeypatch.setattr(hub_module, "LINGER", 0.05)
    async with running() as (hub, layer):
        discard = layer.group_discard

        async def slow(*args):
            await asyncio.sleep(0.02)
            await discard(*args)

        layer.group_discard = slow
        async with attached(hub, PROMPTS):
            async with attached(hub, *(resource(str(number)) for number in range(1000))):
                pass
            await until(lambda: layer.discarded)
            started = time.monotonic()
            async with attached(hub, TOOLS):
                assert time.monotonic() - started < 0.5
                await until(lambda: len(layer.discarded) == 1000)
                assert set(layer.groups) == {topics.EVERY_HUB, PROMPTS.group, TOOLS.group}


async def test_a_stream_that_comes_back_in_time_finds_its_group_still_joined():
    async with running() as (hub, layer):
        async with attached(hub, resource("a")):
            pass
        async with attached(hub, resource("a")) as (_, socket):
            assert layer.added.count(resource("a").group) == 1
            await publish(layer, resource("a"))
            assert told(socket) == ["a"]


async def test_a_hub_without_streams_ends_by_itself(monkeypatch):
    monkeypatch.setattr(hub_module, "LINGER", 0.05)
    monkeypatch.setattr(hub_module, "SWEEP_INTERVAL", 0.02)
    before = asyncio.all_tasks()
    layer = Layer()
    hub = Hub.current(layer)
    async with attached(hub, TOOLS):
        pass
    await until(lambda: asyncio.all_tasks() == before)
    assert Hub.current(layer) is not hub
    assert not layer.groups
    async with attached(Hub.current(layer), TOOLS) as (_, socket):
        await publish(layer, TOOLS)
        assert told(socket) == ["notifications/tools/list_changed"]
    await Hub.current(layer).close()


async def test_a_full_hub_takes_nobody():
    async with running() as (hub, _):
        async with attached(hub, TOOLS):
            with pytest.raises(HubFullError):
                await hub.attach(make(), max_streams=1)
            assert len(hub.streams) == 1


async def test_a_draining_hub_ends_its_streams_and_takes_nobody():
    async with running() as (hub, _):
        async with attached(hub, TOOLS) as (stream, socket):
            hub.drain()
            await settle()
            assert stream.reason == "shutdown"
            assert socket.methods[-2:] == ["notifications/cancelled", "result"]
            with pytest.raises(HubFullError):
                await hub.attach(make(), max_streams=10)


async def test_nothing_published_while_a_group_is_being_joined_is_lost():
    async with running() as (hub, layer):
        async with attached(hub, TOOLS):
            stream = make(Filter(frozenset(), ("a",)))
            layer.gate.clear()
            attaching = asyncio.create_task(hub.attach(stream, max_streams=10))
            await settle()
            assert not attaching.done()
            layer.gate.set()
            await attaching
            await publish(layer, resource("a"))
            assert list(stream.pending) == [resource("a")]
            hub.detach(stream)


async def test_streams_open_while_the_layer_is_down_and_hear_of_everything_when_it_is_back(monkeypatch, caplog):
    monkeypatch.setattr(reception, "RETRY_DELAY", 0.02)
    async with running() as (hub, layer):
        layer.broken = True
        async with asyncio.timeout(5):
            async with attached(hub, resource("a")) as (_, socket), attached(hub, resource("b")) as (_, second):
                await settle()
                layer.broken = False
                await until(lambda: told(socket) == ["a"] and told(second) == ["b"])
                await publish(layer, resource("a"))
                assert told(socket) == ["a", "a"]
    assert caplog.text.count("The channel layer failed") == 1


async def test_a_layer_that_never_answers_holds_no_stream_up(monkeypatch):
    monkeypatch.setattr(membership, "JOIN_TIMEOUT", 0.05)
    async with running() as (hub, layer):
        layer.gate.clear()
        async with asyncio.timeout(2):
            async with attached(hub, resource("a")) as (_, socket):
                layer.gate.set()
                # Late, so it may have missed something.
                await until(lambda: told(socket) == ["a"])


async def test_a_layer_that_forgets_its_groups_is_reminded(monkeypatch):
    async with running() as (hub, layer):
        layer.group_expiry = 0.2
        monkeypatch.setattr(membership, "PROBE_INTERVAL", 0.05)
        monkeypatch.setattr(fences, "PROBE_INTERVAL", 60)
        async with attached(hub, TOOLS) as (_, socket):
            layer.groups.clear()
            hub._membership._work.set()
            await until(lambda: TOOLS.group in layer.groups)
            await publish(layer, TOOLS)
            assert "notifications/tools/list_changed" in told(socket)


@pytest.fixture
def watchful(monkeypatch):
    """
    Probes that take no second.
    """
    monkeypatch.setattr(membership, "PROBE_INTERVAL", 0.05)
    monkeypatch.setattr(reception, "RETRY_DELAY", 0.02)
    monkeypatch.setattr(fences, "PROBE_INTERVAL", 0.05)
    monkeypatch.setattr(fences, "FENCE_RETRY", 0.05)


@pytest.mark.usefixtures("watchful")
async def test_a_hub_whose_group_forgets_it_joins_again_and_marks_each_topic_once(caplog):
    """
    Sends succeed and nothing arrives, as after a flush of Redis: only a message through the group shows it.
    """
    async with running() as (hub, layer):
        async with attached(hub, TOOLS, resource("a")) as (_, socket):
            await asyncio.sleep(0.2)
            assert told(socket) == []
            layer.groups.clear()
            await until(lambda: len(told(socket)) == 2)
            await publish(layer, TOOLS)
            # On a busy machine the hub takes its time to gather more.
            await until(lambda: len(told(socket)) == 3)
            assert sorted(told(socket)) == sorted(["a", *["notifications/tools/list_changed"] * 2])
            await asyncio.sleep(0.3)
            assert len(told(socket)) == 3
    assert caplog.text.count("The channel layer failed (NotHeardError)") == 1
    assert caplog.text.count("The channel layer is back") == 1


@pytest.mark.usefixtures("watchful")
async def test_of_many_hubs_only_one_probes_at_a_time():
    """
    Every hub hears it, so what a hub costs does not grow with their number.
    """
    async with running() as (hub, layer):
        async with attached(hub, TOOLS):
            sent, group_send = [], layer.group_send

            async def counting(group, message):
                sent.append(message)
                await group_send(group, message)

            layer.group_send = counting
            for _ in range(50):
                fence = {"type": fences.FENCE, "hub": "another", "group": topics.EVERY_HUB, "token": 1}
                await group_send(topics.EVERY_HUB, fence)
                await asyncio.sleep(0.01)
            assert len(sent) <= 2
            sent.clear()
            await until(lambda: len(sent) >= 2)


@pytest.mark.usefixtures("watchful")
async def test_a_loop_that_was_busy_itself_takes_nothing_for_an_outage(caplog):
    async with running() as (hub, _):
        async with attached(hub, TOOLS):
            for _ in range(5):
                await asyncio.sleep(0.06)
                time.sleep(0.3)  # noqa: ASYNC251  # that is what is tested
            await asyncio.sleep(0.2)
    assert "failed" not in caplog.text


@pytest.mark.usefixtures("watchful")
async def test_broken_connections_of_a_pool_are_no_outage(monkeypatch, caplog):
    async with running() as (hub, layer):
        async with attached(hub, TOOLS) as (_, socket):
            monkeypatch.setattr(hub_module, "LINGER", 0.05)
            stale = {"group_send": 3, "group_add": 3, "group_discard": 3}

            def failing(name):
                original = getattr(layer, name)

                async def call(*args):
                    if stale[name]:
                        stale[name] -= 1
                        raise ConnectionError("closed long ago")
                    await original(*args)

                return call

            for name in stale:
                setattr(layer, name, failing(name))
            await until(lambda: not stale["group_send"])
            async with attached(hub, resource("a")) as (_, other):
                assert (stale["group_send"], stale["group_add"]) == (0, 0)
                await publish(layer, resource("a"))
                assert told(other) == ["a"]
            await until(lambda: layer.discarded)
            assert stale["group_discard"] == 0
            assert told(socket) == []
    assert "failed" not in caplog.text


async def test_broken_connections_that_bring_messages_are_one_short_outage(caplog):
    async with running() as (hub, layer):
        async with attached(hub, TOOLS) as (_, socket):
            receive, broken = layer.receive, layers.ATTEMPTS

            async def receive_later(channel):
                nonlocal broken
                if broken:
                    broken -= 1
                    raise ConnectionError("closed long ago")
                return await receive(channel)

            layer.receive = receive_later
            await publish(layer, TOOLS)
            await until(lambda: not broken and not hub._membership.is_down, timeout=2)
            assert told(socket)
    assert caplog.text.count("The channel layer failed") == 1
    assert caplog.text.count("The channel layer is back") == 1


def numbered(number, since=None, *, name="p", kind=topics.CHANGED, changed=()):
    message = {**topics.changed_message(changed), "type": kind}
    return {**message, "from": name, "number": number, "since": since}


@pytest.mark.parametrize(
    ("messages", "missed"),
    [
        ([numbered(1), numbered(2, 0.1), numbered(3, 0.1)], False),
        ([numbered(1), numbered(3, 0.1)], True),
        ([numbered(1), numbered(1, 0.1, kind=topics.SEQUENCE)], False),
        ([numbered(1), numbered(2, 0.1, kind=topics.SEQUENCE)], True),
        # Another publisher's numbers are its own.
        ([numbered(1), numbered(1, name="q"), numbered(2, 0.1, name="q"), numbered(2, 0.1)], False),
        # Not heard of before: what it sent an hour ago went before this hub was there.
        ([numbered(57, 3600.0)], False),
        ([numbered(57, 3600.0), numbered(59, 0.1)], True),
        ([numbered(57, 0.0)], True),
        ([numbered(57, 3600.0, kind=topics.SEQUENCE)], False),
        ([numbered(1, 0.0, kind=topics.SEQUENCE)], True),
        # A message that comes twice, or late, says nothing.
        ([numbered(1), numbered(2, 0.1), numbered(1), numbered(3, 0.1)], False),
        ([{**numbered(1), "from": 7}, {**numbered(3), "number": "x"}, {**numbered(3), "since": "x"}], False),
    ],
)
async def test_a_message_that_the_layer_dropped_shows_in_the_next(messages, missed):
    async with running() as (hub, layer):
        async with attached(hub, TOOLS) as (_, socket):
            await asyncio.sleep(0.01)
            for message in messages:
                await layer.group_send(topics.EVERY_HUB, message)
            await asyncio.sleep(0.2)
            assert (told(socket) != []) is missed


async def test_a_bounded_layer_needs_no_group_but_one(monkeypatch):
    monkeypatch.setattr(membership.layers, "is_bounded", lambda layer: True)
    async with running() as (hub, layer):
        async with attached(hub, resource("a"), TOOLS) as (_, socket):
            assert layer.added == [topics.EVERY_HUB]
            await layer.group_send(topics.EVERY_HUB, numbered(1, changed=[resource("a")]))
            await settle()
            assert told(socket) == ["a"]


async def test_each_event_loop_has_a_hub_of_its_own():
    async with running() as (hub, layer):
        assert Hub.current(layer) is hub

        def elsewhere() -> bool:
            async def main() -> bool:
                other = Hub.current(layer)
                await other.close()
                return other is not hub

            return asyncio.run(main())

        assert await asyncio.to_thread(elsewhere)


async def test_a_thousand_streams_cost_no_further_task():
    async with running() as (hub, _):
        before = len(asyncio.all_tasks())
        streams = [make(Filter(frozenset({"tools"}), ("a",))) for _ in range(1000)]
        for stream in streams:
            await hub.attach(stream, max_streams=1000)
        assert len(asyncio.all_tasks()) <= before + 3
        for stream in streams:
            hub.detach(stream)


async def test_messages_that_come_without_end_leave_others_their_turn():
    """
    A layer that holds messages returns them without letting the loop go on.
    """

    class Chatty:
        left = 1_000_000

        async def receive(self, channel):
            self.left -= 1
            if not self.left:
                raise RuntimeError("nobody else had a turn")
            return {"type": "mcp.changed", "topics": []}

    layer, turns = Chatty(), []
    messages = Reception(
        layer, Fences(layer), receive=lambda message: None, missed=lambda missed: None, failed=lambda error: None
    )
    receiving = asyncio.create_task(messages.run("channel"))
    async with asyncio.timeout(20):
        for _ in range(10):
            await asyncio.sleep(0)
            turns.append(layer.left)
    receiving.cancel()
    await asyncio.wait([receiving])
    assert turns[-1] > 1
