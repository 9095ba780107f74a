"""
A stream against a recording socket, without HTTP and without a hub.
"""

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import pytest

from mcp_channels import signals, telemetry
from mcp_channels.listen import frames
from mcp_channels.listen.filter import Filter
from mcp_channels.listen.flow import PIECE, Flow
from mcp_channels.listen.stream import CLOSING_TIME, FRAMES_AT_ONCE, Limits, Stream
from mcp_channels.topics import TOOLS, resource

INFO = frames.dumps({"name": "test", "version": ""})


class Socket:
    """
    Records what is written; ``block`` makes writes wait.
    """

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.open = asyncio.Event()
        self.open.set()
        self.written = asyncio.Event()
        self.error: Exception | None = None

    async def write(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.writes.append(data)
        self.written.set()
        await self.open.wait()

    def block(self) -> None:
        self.open.clear()

    @property
    def frames(self) -> list[str]:
        return [frame for frame in b"".join(self.writes).decode().split("\r\n\r\n") if frame]

    @property
    def messages(self) -> list[dict]:
        return [json.loads(frame.split("data: ", 1)[1]) for frame in self.frames if not frame.startswith(":")]

    @property
    def methods(self) -> list[str]:
        return [message.get("method", "result") for message in self.messages]


class Tube(Flow):
    """
    A socket's flow that is opened and closed by hand.
    """

    def __init__(self, *, piece: int = PIECE) -> None:
        self.piece = piece
        self.bytes = 0
        self.open = asyncio.Event()
        self.open.set()

    async def wait(self) -> None:
        await self.open.wait()

    def taken(self) -> int:
        return self.bytes


def make(honoured: Filter | None = None, *, expires_in: float | None = None, **limits) -> Stream:
    return Stream(
        "id",
        Filter(frozenset({"tools"})) if honoured is None else honoured,
        endpoint="test",
        server_info=INFO,
        limits=Limits(**limits),
        expires_in=expires_in,
    )


def mark(stream: Stream, *topics) -> None:
    for topic in topics:
        stream.mark(topic, frames.notification_head(topic))
    stream.wake()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(stream: Stream, socket: Socket, flow: Flow | None = None):
    """
    Serve a stream; at the end, check that it is over and left no task.
    """
    before = asyncio.all_tasks()
    task = asyncio.create_task(stream.serve(socket.write, flow))
    await settle()
    try:
        yield task
    finally:
        socket.open.set()
        if flow is not None:
            flow.open.set()
        stream.end("client_closed")
        await asyncio.wait([task], timeout=5)
    assert task.done()
    assert asyncio.all_tasks() == before


async def test_the_acknowledgment_comes_before_what_was_pending():
    stream, socket = make(), Socket()
    mark(stream, TOOLS)
    async with serving(stream, socket):
        assert socket.methods == ["notifications/subscriptions/acknowledged", "notifications/tools/list_changed"]


async def test_a_topic_that_changes_again_while_the_socket_is_blocked_is_told_once():
    stream, socket = make(), Socket()
    async with serving(stream, socket):
        socket.block()
        mark(stream, resource("a"))
        await settle()
        for _ in range(1000):
            mark(stream, resource("b"), resource("c"), resource("b"))
        socket.open.set()
        await settle()
        uris = [message["params"].get("uri") for message in socket.messages[1:]]
        assert uris == ["a", "b", "c"]
        assert stream.delivered == 3


async def test_a_change_during_the_write_of_its_notice_is_told_again():
    stream, socket = make(), Socket()
    async with serving(stream, socket):
        socket.block()
        mark(stream, TOOLS)
        await settle()
        mark(stream, TOOLS)
        socket.open.set()
        await settle()
        assert socket.methods[1:] == ["notifications/tools/list_changed"] * 2


async def test_what_is_over_the_queue_is_dropped_alone():
    stream, socket = make(max_queue=2), Socket()
    dropped = []
    signals.notification_dropped.connect(lambda sender, **kwargs: dropped.append(kwargs["kind"]), weak=False)
    try:
        async with serving(stream, socket):
            socket.block()
            mark(stream, resource("a"))
            await settle()
            mark(stream, resource("b"), resource("c"), resource("d"), resource("b"))
            socket.open.set()
            await settle()
            assert [message["params"].get("uri") for message in socket.messages[1:]] == ["a", "b", "c"]
        assert telemetry.flush(5)
        assert dropped == ["resource"]
    finally:
        signals.notification_dropped.receivers.clear()
        signals.notification_dropped.sender_receivers_cache.clear()


async def test_many_notices_are_written_in_bounded_pieces_and_in_order():
    stream, socket = make(max_queue=10_000), Socket()
    uris = [str(number) for number in range(FRAMES_AT_ONCE * 2 + 1)]
    mark(stream, *map(resource, uris))
    async with serving(stream, socket):
        await settle()
        assert [message["params"].get("uri") for message in socket.messages[1:]] == uris
        assert max(map(len, socket.writes)) <= PIECE


async def test_short_notices_are_written_by_their_number_and_a_long_one_alone():
    stream, socket = make(max_queue=10_000), Socket()
    uris = [*map(str, range(FRAMES_AT_ONCE + 1)), "x" * 2 * PIECE, "last"]
    mark(stream, *map(resource, uris))
    async with serving(stream, socket, Tube(piece=PIECE * 10)):
        await settle()
        assert [message["params"].get("uri") for message in socket.messages[1:]] == uris
        assert [write.count(b"event: message") for write in socket.writes[1:]] == [FRAMES_AT_ONCE, 3]
    stream, socket = make(), Socket()
    mark(stream, *map(resource, uris[-3:]))
    async with serving(stream, socket):
        await settle()
        assert [write.count(b"event: message") for write in socket.writes[1:]] == [1, 1, 1]


@pytest.mark.parametrize("reason", ["max_lifetime", "idle_timeout", "superseded", "shutdown", "server_error"])
async def test_an_ended_stream_tells_what_is_pending_and_closes(reason):
    stream, socket = make(), Socket()
    async with serving(stream, socket) as task:
        mark(stream, TOOLS)
        stream.end(reason)
        stream.end("revoked")
        await asyncio.wait_for(task, 5)
        assert socket.methods[1:] == ["notifications/tools/list_changed", "notifications/cancelled", "result"]
        assert socket.messages[-2]["params"]["reason"] == reason


@pytest.mark.parametrize("reason", ["revoked", "token_expired"])
async def test_what_may_no_longer_be_heard_is_not_told_at_the_end(reason):
    stream, socket = make(), Socket()
    async with serving(stream, socket) as task:
        mark(stream, TOOLS)
        stream.end(reason)
        await asyncio.wait_for(task, 5)
        assert socket.methods[1:] == ["notifications/cancelled", "result"]


async def test_a_credential_that_expires_on_the_way_out_is_told_nothing_and_ends_all_the_same():
    """
    The stream has its ending already when its credential expires, and topics are still pending.
    """
    stream, socket = make(expires_in=0.0), Socket()
    mark(stream, TOOLS)
    stream.end("shutdown")
    task = asyncio.create_task(stream.serve(socket.write))
    await asyncio.wait_for(task, 5)
    assert socket.methods[1:] == ["notifications/cancelled", "result"]
    assert socket.messages[-2]["params"]["reason"] == "shutdown"


async def test_nothing_is_told_after_the_end():
    stream, socket = make(), Socket()
    async with serving(stream, socket) as task:
        stream.end("shutdown")
        mark(stream, TOOLS)
        await asyncio.wait_for(task, 5)
        assert socket.methods[1:] == ["notifications/cancelled", "result"]


async def test_a_client_that_left_is_told_nothing_more():
    stream, socket = make(), Socket()
    async with serving(stream, socket) as task:
        mark(stream, TOOLS)
        stream.end("client_closed")
        await asyncio.wait_for(task, 5)
        assert len(socket.writes) == 1


async def test_a_cancelled_stream_says_that_the_server_stops():
    stream, socket = make(), Socket()
    async with serving(stream, socket) as task:
        mark(stream, TOOLS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert socket.methods[-2:] == ["notifications/cancelled", "result"]
        assert socket.messages[-2]["params"]["reason"] == "shutdown"


async def test_a_write_that_fails_ends_its_stream_quietly():
    stream, socket = make(), Socket()
    async with serving(stream, socket) as task:
        socket.error = OSError("gone")
        mark(stream, TOOLS)
        await asyncio.wait_for(task, 5)
        assert stream.reason == "client_closed"


@pytest.mark.parametrize("broken", ["acknowledged", "notification"])
async def test_a_stream_whose_frame_can_not_be_built_ends_with_an_error_of_the_server(monkeypatch, caplog, broken):
    stream, socket = make(), Socket()
    if broken == "acknowledged":
        monkeypatch.setattr(frames, "acknowledged", lambda *args: 1 / 0)
    async with serving(stream, socket) as task:
        if broken == "notification":
            stream.mark(TOOLS, None)
            stream.wake()
        await asyncio.wait([task], timeout=5)
        assert stream.reason == "server_error"
        assert socket.methods[-2:] == ["notifications/cancelled", "result"]
        assert socket.messages[-2]["params"]["reason"] == "server_error"
    assert caplog.text.count("A stream of endpoint test failed") == 1


async def test_closing_frames_that_can_not_be_built_leave_the_reason_as_it_is(monkeypatch, caplog):
    monkeypatch.setattr(frames, "closing", lambda *args, **kwargs: 1 / 0)
    stream, socket = make(), Socket()
    async with serving(stream, socket) as task:
        stream.end("superseded")
        await asyncio.wait([task], timeout=5)
        assert task.exception() is None
        assert stream.reason == "superseded"
    assert "The end of a stream of endpoint test could not be written" in caplog.text


async def test_a_cancelled_stream_whose_socket_fails_is_cancelled_all_the_same():
    stream, socket = make(), Socket()
    async with serving(stream, socket) as task:
        socket.error = ConnectionResetError("gone")
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()
        assert stream.reason == "shutdown"


async def test_a_write_that_takes_too_long_is_given_up():
    stream, socket = make(send_timeout=10), Socket()
    async with serving(stream, socket) as task:
        socket.block()
        mark(stream, TOOLS)
        await settle()
        now = asyncio.get_running_loop().time()
        assert now < stream.tick(now) <= now + 10
        assert not task.done()
        stream.tick(now + 11)
        await asyncio.wait_for(task, 5)
        assert stream.reason == "client_closed"


async def test_a_stream_that_must_end_does_not_wait_for_its_socket_for_long():
    stream, socket = make(send_timeout=3600), Socket()
    async with serving(stream, socket) as task:
        socket.block()
        mark(stream, TOOLS)
        await settle()
        stream.end("superseded")
        stream.tick(asyncio.get_running_loop().time() + 2)
        await asyncio.wait_for(task, 5)
        assert stream.reason == "superseded"


async def test_keep_alives_are_due_after_silence_alone():
    stream, socket = make(keep_alive=10), Socket()
    async with serving(stream, socket):
        now = asyncio.get_running_loop().time()
        assert stream.tick(now) == pytest.approx(now + 10, abs=0.1)
        await settle()
        assert len(socket.writes) == 1
        stream.tick(now + 11)
        await settle()
        assert socket.writes[1:] == [frames.KEEP_ALIVE]


async def test_an_idle_stream_is_ended_when_a_keep_alive_is_due():
    stream, socket = make(keep_alive=10, idle=5), Socket()
    async with serving(stream, socket) as task:
        now = asyncio.get_running_loop().time()
        stream.tick(now + 6)
        assert stream.reason is None
        stream.tick(now + 11)
        await asyncio.wait_for(task, 5)
        assert socket.methods[1:] == ["notifications/cancelled", "result"]
        assert frames.KEEP_ALIVE not in socket.writes


@pytest.mark.parametrize(
    ("options", "reason"), [({"lifetime": 5}, "max_lifetime"), ({"expires_in": 5}, "token_expired")]
)
async def test_a_deadline_ends_the_stream(options, reason):
    stream, socket = make(**options), Socket()
    async with serving(stream, socket) as task:
        now = asyncio.get_running_loop().time()
        assert stream.tick(now) == pytest.approx(now + 5, abs=0.1)
        stream.tick(now + 5.1)
        await asyncio.wait_for(task, 5)
        assert stream.reason == reason


async def test_what_counts_from_the_acknowledgment_does_not_begin_before_it():
    stream, socket = make(lifetime=5, idle=1, keep_alive=1), Socket()
    now = asyncio.get_running_loop().time()
    assert stream.tick(now + 60) > now + 60
    assert stream.reason is None
    async with serving(stream, socket):
        stream.tick(now + 0.5)
        assert stream.reason is None


async def test_a_credential_may_expire_while_its_stream_is_let_in():
    stream = make(expires_in=1)
    now = asyncio.get_running_loop().time()
    assert stream.tick(now) == pytest.approx(now + 1, abs=0.1)
    stream.tick(now + 1.1)
    assert stream.reason == "token_expired"


async def test_an_expired_credential_hears_nothing_even_before_the_sweep():
    stream, socket = make(expires_in=0.0), Socket()
    async with serving(stream, socket) as task:
        mark(stream, TOOLS)
        await asyncio.wait_for(task, 5)
        assert socket.methods[1:] == ["notifications/cancelled", "result"]


async def test_signals_tell_of_start_and_stop_without_uris():
    seen = []

    def started(sender, signal, **kwargs):
        seen.append(kwargs)

    signals.stream_started.connect(started)
    signals.stream_stopped.connect(started)
    stream, socket = make(Filter(frozenset({"tools"}), ("note://secret",))), Socket()
    try:
        async with serving(stream, socket) as task:
            mark(stream, TOOLS)
            stream.end("superseded")
            await asyncio.wait_for(task, 5)
        assert telemetry.flush(5)
    finally:
        signals.stream_started.disconnect(started)
        signals.stream_stopped.disconnect(started)
    begun, ended = seen
    kinds = ("toolsListChanged", "resourceSubscriptions")
    assert begun.pop("at") <= ended.pop("at")
    assert begun == {"endpoint": "test", "kinds": kinds}
    assert ended.pop("duration") >= 0
    assert ended == {"endpoint": "test", "kinds": kinds, "reason": "superseded", "delivered": 1}
    assert "secret" not in str(seen)


async def test_receivers_that_raise_or_block_do_no_harm():
    may_go_on, told = threading.Event(), []

    def blocking(sender, **kwargs):
        may_go_on.wait(10)

    def raising(sender, **kwargs):
        raise RuntimeError("mine")

    def last(sender, **kwargs):
        told.append(kwargs.get("reason"))

    receivers = [blocking, raising, last]
    for receiver in receivers:
        signals.stream_started.connect(receiver)
        signals.stream_stopped.connect(receiver)
    stream, socket = make(), Socket()
    try:
        async with serving(stream, socket) as task:
            mark(stream, TOOLS)
            stream.end("shutdown")
            await asyncio.wait_for(task, 5)
            assert socket.methods[-2:] == ["notifications/cancelled", "result"]
        assert told == []
        may_go_on.set()
        assert telemetry.flush(5)
        assert told == [None, "shutdown"]
    finally:
        may_go_on.set()
        for receiver in receivers:
            signals.stream_started.disconnect(receiver)
            signals.stream_stopped.disconnect(receiver)


async def test_a_wait_is_not_cut_short_by_what_is_to_be_told():
    stream = make()
    waiting = asyncio.create_task(stream.ends_within(0.2))
    started = asyncio.get_running_loop().time()
    await settle()
    mark(stream, TOOLS)
    async with asyncio.timeout(5):
        assert not await waiting
    assert asyncio.get_running_loop().time() - started >= 0.2


async def test_a_wait_is_over_when_the_stream_ends():
    stream = make()
    waiting = asyncio.create_task(stream.ends_within(60))
    await settle()
    stream.end("client_closed")
    async with asyncio.timeout(5):
        assert await waiting
        assert await stream.ends_within(60)


async def test_a_client_that_takes_some_of_a_write_has_more_time_and_one_that_takes_nothing_is_stalled():
    stream, socket, tube = make(send_timeout=10), Socket(), Tube()
    async with serving(stream, socket, tube) as task:
        tube.open.clear()
        mark(stream, TOOLS)
        await settle()
        begun = asyncio.get_running_loop().time()
        stream.tick(begun + 1.3)
        for second in (9.9, 14, 18):
            tube.bytes += 1
            stream.tick(begun + second)
        stream.tick(begun + 22.9)
        await settle()
        assert not task.done()
        stream.tick(begun + 23.1)
        await asyncio.wait_for(task, 5)
        assert stream.is_stalled
        assert stream.reason == "client_closed"


async def test_taking_some_early_does_not_end_a_write_sooner_nor_later():
    stream, socket, tube = make(send_timeout=10), Socket(), Tube()
    async with serving(stream, socket, tube) as task:
        tube.open.clear()
        mark(stream, TOOLS)
        await settle()
        begun = asyncio.get_running_loop().time()
        stream.tick(begun + 1.3)
        tube.bytes += 1
        stream.tick(begun + 3)
        stream.tick(begun + 9.9)
        await settle()
        assert not task.done()
        stream.tick(begun + 10.1)
        await asyncio.wait_for(task, 5)
        assert stream.is_stalled


async def test_an_ended_stream_closes_in_time_however_many_writes_it_takes():
    stream, socket, tube = make(), Socket(), Tube(piece=1)
    async with serving(stream, socket, tube) as task:
        tube.open.clear()
        mark(stream, *map(resource, "abc"))
        await settle()
        stream.end("superseded")
        ended = asyncio.get_running_loop().time()
        stream.tick(ended + CLOSING_TIME - 0.2)
        socket.block()
        tube.open.set()
        await settle()
        # It has begun another write, and takes bytes as well.
        assert len(socket.writes) == 2
        tube.bytes += 1
        stream.tick(ended + CLOSING_TIME + 0.1)
        await asyncio.wait_for(task, 5)
        assert stream.is_stalled
        assert stream.reason == "superseded"


@pytest.mark.parametrize(
    "forbid", [Stream.hold, lambda stream: stream.end("revoked"), lambda stream: stream.lose({TOOLS})]
)
async def test_what_may_no_longer_be_heard_when_the_socket_is_free_again_is_not_told(forbid):
    stream, socket, tube = make(), Socket(), Tube()
    async with serving(stream, socket, tube):
        tube.open.clear()
        mark(stream, TOOLS)
        await settle()
        forbid(stream)
        tube.open.set()
        await settle()
        assert "notifications/tools/list_changed" not in socket.methods
        assert stream.delivered == 0
