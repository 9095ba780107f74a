"""
Subscriptions against a server that does what no good one does.
"""

import asyncio
import logging

import pytest
from django.core.management import CommandError, call_command
from mcp import MCPError

from mcp_channels.client import (
    Acknowledged,
    AcknowledgmentTimeoutError,
    Closed,
    ConnectionLostError,
    InvalidResultError,
    LegacyPeerError,
    ListenClient,
    ListenRefusedError,
    Notification,
    Reconnecting,
    Relisten,
    Resynchronised,
    SubscriptionEndedError,
)
from tests.client.conftest import QUICK
from tests.client.scripted import Scripted

TOOLS = {"toolsListChanged": True}
CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"


async def upcoming(handle):
    async with asyncio.timeout(5):
        return await anext(handle)


async def rest(handle) -> list:
    """
    All events up to the end.
    """
    async with asyncio.timeout(5):
        return [event async for event in handle]


async def opened(client: ListenClient, server: Scripted, asked=None, honoured=None, **options):
    """
    A subscription that has been acknowledged, and its request.
    """
    subscription = await client.listen(TOOLS if asked is None else asked, **options)
    request = await server.listening()
    request.acknowledge(honoured)
    assert isinstance(await upcoming(subscription), Acknowledged)
    return subscription, request


async def test_a_subscription_tells_what_was_granted_and_what_was_not(client, server, caplog):
    asked = {"tools_list_changed": True, "promptsListChanged": True, "resource_subscriptions": ["a:1", "a:2", "a:1"]}
    subscription = await client.listen(asked)
    assert (subscription.state, subscription.honoured, subscription.unsupported) == ("pending", None, {})
    request = await server.listening()
    wire = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["a:1", "a:2"]}
    assert request.filter == subscription.requested == wire
    assert request.headers["mcp-method"] == "subscriptions/listen"
    assert request.message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    waiter = asyncio.create_task(subscription.wait_acknowledged())
    granted = {"toolsListChanged": True, "resourceSubscriptions": ["a:1"], "extension": 1}
    request.acknowledge(granted)
    assert await upcoming(subscription) == Acknowledged(granted)
    assert await waiter == subscription.honoured == granted
    assert subscription.state == "active"
    assert subscription.unsupported == {"promptsListChanged": True, "resourceSubscriptions": ["a:2"]}
    assert "acknowledged without {'promptsListChanged': True, 'resourceSubscriptions': ['a:2']}" in caplog.text
    request.send(request.tagged(CHANGED), request.updated("a:1"))
    assert (await upcoming(subscription)).method == CHANGED
    assert (await upcoming(subscription)).params["uri"] == "a:1"
    await subscription.close()
    assert (subscription.state, subscription.reason, subscription.closed_gracefully) == (
        "closed",
        "client_closed",
        False,
    )
    await request.left()
    assert await rest(subscription) == []
    await subscription.close()


async def test_a_callback_gets_the_events_and_async_with_waits_and_closes(client, server):
    heard: asyncio.Queue = asyncio.Queue()
    opening = client.listen(TOOLS, on_event=heard.put)
    entering = asyncio.create_task(opening.__aenter__())
    request = await server.listening()
    request.acknowledge()
    subscription = await entering
    assert subscription.state == "active"
    request.send(request.tagged(CHANGED))
    assert isinstance(await heard.get(), Acknowledged)
    assert (await heard.get()).method == CHANGED
    with pytest.raises(RuntimeError):
        await anext(subscription)
    await opening.__aexit__(None, None, None)
    await request.left()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"toolsListChanged": 1}, TypeError),
        ({"resource_subscriptions": "a:1"}, TypeError),
        ({"resourceSubscriptions": ["a:1", 2]}, TypeError),
        ({"tools": True}, ValueError),
        ({"toolsListChanged": True, "tools_list_changed": True}, ValueError),
        (["toolsListChanged"], TypeError),
    ],
)
async def test_a_wrong_filter_is_an_error_before_anything_is_sent(client, server, wrong, error):
    with pytest.raises(error):
        client.listen(wrong)
    with pytest.raises(error):
        client.subscribe_notifications(wrong)
    assert server.requests == []


@pytest.mark.parametrize("head", [True, False])
async def test_a_request_that_is_not_acknowledged_is_cancelled_and_closes_the_handle(client, server, head):
    subscription = await client.listen(TOOLS, ack_timeout=0.3)
    request = await server.listening()
    if head:
        request.head()
        # Keep-alives, an answer to another request, and changes are no acknowledgment.
        request.send(request.tagged(CHANGED), request.complete(id=1), request.tagged(CHANGED, tag="x"))
    await request.left()
    with pytest.raises(AcknowledgmentTimeoutError, match=r"within 0\.3 s"):
        await subscription.wait_acknowledged()
    assert isinstance(subscription.error, TimeoutError)
    with pytest.raises(AcknowledgmentTimeoutError):
        await rest(subscription)


async def test_a_deadline_belongs_to_its_request_and_each_request_has_one(client, server):
    subscription, first = await opened(client, server, ack_timeout=1.5)
    # The first request's deadline would be over in the middle of the second request.
    first.abort()
    second = await server.listening()
    await asyncio.sleep(0.8)
    second.acknowledge()
    assert [type(await upcoming(subscription)) for _ in range(3)] == [Closed, Reconnecting, Resynchronised]
    await asyncio.sleep(0.9)
    assert subscription.state == "active"
    second.abort()
    third = await server.listening()
    await third.left()
    await subscription.wait_closed()
    assert isinstance(subscription.error, AcknowledgmentTimeoutError)


async def test_without_a_deadline_the_first_acknowledgment_is_waited_for_and_later_ones_are_not(server):
    async with ListenClient(server.url, relisten=QUICK, read_timeout=1.0) as client:
        subscription = await client.listen(TOOLS, ack_timeout=False)
        other = await client.listen(TOOLS)
        first, second = await server.listening(), await server.listening()
        await other.wait_closed()
        assert isinstance(other.error, AcknowledgmentTimeoutError)
        await second.left()
        assert subscription.state == "pending"
        first.acknowledge()
        await subscription.wait_acknowledged()
        first.abort()
        await (await server.listening()).left()
        await subscription.wait_closed()
        assert isinstance(subscription.error, AcknowledgmentTimeoutError)


async def test_what_precedes_the_result_is_delivered_first_and_the_end_is_graceful(client, server):
    subscription, request = await opened(client, server, {"resource_subscriptions": ["a:1", "a:2"]})
    events = [request.updated("a:1"), request.updated("a:2")]
    request.send(*events, request.cancelled("superseded"), request.updated("a:1"), request.complete())
    assert await rest(subscription) == [
        *(Notification(UPDATED, event["params"]) for event in events),
        Closed("superseded", graceful=True, final=True),
    ]
    assert (subscription.closed_gracefully, subscription.reason, subscription.error) == (True, "superseded", None)
    await request.left()
    with pytest.raises(SubscriptionEndedError, match="superseded"):
        await subscription.wait_acknowledged()


@pytest.mark.parametrize("reason", ["superseded", "revoked"])
async def test_a_cancellation_alone_ends_the_stream_with_its_reason(client, server, reason):
    subscription, request = await opened(client, server)
    request.send(request.cancelled(reason))
    request.end()
    assert await rest(subscription) == [Closed(reason, graceful=False, final=True)]
    assert (subscription.closed_gracefully, subscription.reason) == (False, reason)


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"resultType": "input_required", "inputRequests": {}},
        {"resultType": "other"},
        {"resultType": ["complete"]},
        "complete",
        7,
        ["complete"],
    ],
)
async def test_any_result_but_complete_is_invalid_and_closes_the_handle(client, server, result):
    subscription, request = await opened(client, server)
    request.send({"jsonrpc": "2.0", "id": request.id, "result": result})
    with pytest.raises(InvalidResultError):
        await rest(subscription)
    assert (subscription.state, subscription.closed_gracefully) == ("closed", False)
    await request.left()


async def test_an_error_closes_the_handle_with_it(client, server):
    subscription, request = await opened(client, server)
    request.send({"jsonrpc": "2.0", "id": request.id, "error": {"code": -32603, "message": "No more."}})
    with pytest.raises(ListenRefusedError, match="-32603: No more") as caught:
        await rest(subscription)
    assert caught.value.code == -32603
    refused = await client.listen(TOOLS)
    (await server.listening()).refuse(400, -32602, "No such filter")
    with pytest.raises(ListenRefusedError, match="HTTP 400, -32602: No such filter"):
        await refused.wait_acknowledged()


async def test_what_is_malformed_or_of_another_request_reaches_nobody(client, server, caplog):
    caplog.set_level(logging.DEBUG, "mcp_channels.client")
    # An id that a careless client would take for a text, a truth or a fraction.
    client._peer.new_id = lambda: 1
    subscription = await client.listen({**TOOLS, "resourceSubscriptions": ["a:1"]})
    request = await server.listening()
    request.head()
    request.send(
        request.tagged(CHANGED),
        request.tagged("notifications/subscriptions/acknowledged", notifications=[]),
        {**request.acknowledgment(), "id": 4},
        request.tagged("notifications/subscriptions/acknowledged", tag="1", notifications={}),
        request.tagged("notifications/subscriptions/acknowledged", tag=1.0, notifications={}),
        request.acknowledgment(TOOLS),
        request.acknowledgment({**TOOLS, "resourceSubscriptions": ["a:1"]}),
        "no JSON",
        "[" * 100_000,
        "[]",
        "1",
        {"jsonrpc": "2.0", "method": CHANGED},
        {"jsonrpc": "2.0", "method": CHANGED, "params": [1]},
        {"jsonrpc": "2.0", "method": CHANGED, "params": {"_meta": 1}},
        request.tagged(CHANGED, tag="1"),
        request.tagged(CHANGED, tag=True),
        request.tagged(CHANGED, tag=10),
        request.tagged(CHANGED, tag={"id": 1}),
        request.updated("a:1"),
        request.tagged("notifications/prompts/list_changed"),
        request.cancelled(requestId="1"),
        request.cancelled(requestId=True),
        request.cancelled(requestId=None),
        request.cancelled(reason=1),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [1]},
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        request.complete(id="1"),
        request.complete(id=8),
        {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "whose?"}},
        request.tagged(CHANGED, mark=1),
    )
    assert await upcoming(subscription) == Acknowledged(TOOLS)
    assert (await upcoming(subscription)).params["mark"] == 1
    assert subscription.state == "active"
    assert caplog.text.count("was ignored") == 28
    request.finish("superseded")
    assert await rest(subscription) == [Closed("superseded", graceful=True, final=True)]


async def test_a_lost_stream_is_asked_for_again_and_late_events_of_the_former_are_ignored(client, server, caplog):
    asked = {**TOOLS, "promptsListChanged": True, "resourceSubscriptions": ["a:1", "a:2"]}
    subscription, first = await opened(client, server, asked)
    first.abort()
    second = await server.listening()
    assert second.filter == asked
    assert second.id != first.id
    assert subscription.state == "reconnecting"
    assert subscription.honoured is None
    second.head()
    second.send(
        second.tagged(CHANGED, tag=first.id), second.acknowledgment({**TOOLS, "resourceSubscriptions": ["a:2"]})
    )
    second.send(second.tagged(CHANGED, tag=first.id), second.updated("a:2"))
    closed, reconnecting, again, event = [await upcoming(subscription) for _ in range(4)]
    assert (closed.graceful, closed.final) == (False, False)
    assert 0 < reconnecting.delay <= QUICK.first_delay
    assert again == Resynchronised(
        {**TOOLS, "resourceSubscriptions": ["a:2"]},
        narrowed={"promptsListChanged": True, "resourceSubscriptions": ["a:1"]},
    )
    assert event.params["uri"] == "a:2"
    second.finish("shutdown")
    third = await server.listening()
    third.acknowledge()
    assert [await upcoming(subscription) for _ in range(3)][::2] == [
        Closed("shutdown", graceful=True),
        Resynchronised(asked),
    ]


async def test_a_refusal_that_passes_is_waited_out_as_long_as_the_server_says(client, server):
    subscription, request = await opened(client, server)
    request.abort()
    (await server.listening()).answer(503, "busy", Retry_After="1")
    events = [await upcoming(subscription) for _ in range(4)]
    assert [type(event) for event in events] == [Closed, Reconnecting, Closed, Reconnecting]
    assert events[2].reason == "HTTP 503"
    assert 1 < events[3].delay <= 1.1
    (await server.listening()).refuse(404, -32601, "gone")
    with pytest.raises(ListenRefusedError, match="HTTP 404, -32601: gone"):
        await rest(subscription)
    # What was served before and isn't now may be another server: it was asked.
    assert server.log.count("server/discover") == 2


@pytest.mark.parametrize("end", ["abort", "refuse", "finish"])
async def test_the_first_request_fails_at_once_unless_it_is_to_be_repeated(client, server, end):
    def fail(request):
        {
            "abort": request.abort,
            "refuse": lambda: request.answer(503),
            "finish": lambda: (request.head(), request.finish()),
        }[end]()

    once = await client.listen(TOOLS)
    fail(await server.listening())
    await once.wait_closed()
    assert isinstance(
        once.error, {"abort": ConnectionLostError, "refuse": ListenRefusedError, "finish": type(None)}[end]
    )
    again = await client.listen(TOOLS, relisten=Relisten(first_delay=0.02, first=True, attempts=2))
    for _ in range(3):
        assert again.state != "closed"
        fail(await server.listening())
    await again.wait_closed()


async def test_ends_at_once_are_no_reason_to_come_back_at_once_however_polite(no_task_is_left, server):
    policy = Relisten(first_delay=0.1, longest_delay=60.0, first=True)
    attempts = {"polite": 0, "silent": 0}

    async def serve() -> None:
        while True:
            request = await server.listening(60)
            kind = "polite" if request.filter == TOOLS else "silent"
            attempts[kind] += 1
            request.head()
            if kind == "polite":
                request.send(request.acknowledgment())
                request.finish()
            else:
                request.end()

    serving = asyncio.create_task(serve())
    async with ListenClient(server.url, relisten=policy) as client:
        subscriptions = [await client.listen(TOOLS), await client.listen({"promptsListChanged": True})]
        await asyncio.sleep(2.0)
        assert [subscription.state for subscription in subscriptions] == ["reconnecting"] * 2
    serving.cancel()
    # There is room for about six delays that double, and for hundreds of a client that takes each for a success.
    assert all(2 <= count <= 12 for count in attempts.values()), attempts


async def test_a_half_open_connection_is_noticed_by_its_silence(no_task_is_left, server):
    async with ListenClient(server.url, relisten=QUICK, silence_timeout=1.0) as client:
        subscription, request = await opened(client, server)
        for _ in range(6):
            await asyncio.sleep(0.25)
            request._writer.write(b":\r\n\r\n")
        assert subscription.state == "active"
        (await server.listening()).acknowledge()
        assert [type(await upcoming(subscription)) for _ in range(3)] == [Closed, Reconnecting, Resynchronised]


async def test_a_server_that_dies_takes_down_no_task_of_the_program(no_task_is_left, server):
    async with ListenClient(server.url, relisten=QUICK) as client:
        subscription, _ = await opened(client, server)
        await server.stop()
        with pytest.raises(ConnectionLostError):
            while True:
                await client.connect()
                # What the SDK says of the connection that breaks; the next call makes another, or says that it can't.
                with pytest.raises(MCPError, match="onnect"):
                    await client.call_tool("none")
        await server.start()
        server.answers["tools/list"] = lambda request: {
            "tools": [],
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
        }
        assert (await client.list_tools()).tools == []
        (await server.listening()).acknowledge()
        while not isinstance(await upcoming(subscription), Resynchronised):
            pass


async def test_the_backlog_of_a_consumer_that_sleeps_is_a_set(client, server):
    uris = ["a:1", "a:2"]
    subscription, request = await opened(client, server, {**TOOLS, "resourceSubscriptions": uris})
    for number in range(500):
        request.send(request.updated("a:1", number=number), request.tagged(CHANGED), request.updated("a:2"))
    request.finish("superseded")
    await subscription.wait_closed()
    events = await rest(subscription)
    assert [getattr(event, "method", None) for event in events] == [UPDATED, CHANGED, UPDATED, None]
    assert events[0].params["number"] == 499


async def test_a_server_that_has_become_a_legacy_one_is_told_from_one_that_refuses(client, server):
    subscription, request = await opened(client, server)
    server.legacy = True
    request.abort()
    request = await server.listening()
    request.head()
    request.send({"jsonrpc": "2.0", "id": request.id, "error": {"code": -32601, "message": "Method not found"}})
    with pytest.raises(LegacyPeerError):
        await rest(subscription)


async def test_leaving_waits_for_no_server_that_does_not_answer(no_task_is_left, server):
    asked = asyncio.Event()
    server.answers["server/discover"] = lambda request: asked.set()
    async with ListenClient(server.url) as client:
        connecting = asyncio.create_task(client.connect())
        await asked.wait()
        async with asyncio.timeout(5):
            await client.disconnect()
    with pytest.raises(ConnectionLostError):
        await connecting
    async with ListenClient(server.url, read_timeout=0.2) as client:
        with pytest.raises(ConnectionLostError, match=r"negotiate within 0\.2 s"):
            await client.connect()


async def test_the_command_tells_a_missing_acknowledgment_from_its_own_end(server, monkeypatch):
    monkeypatch.setattr("mcp_channels.management.commands.mcp_listen.ACK_TIMEOUT", 0.1)
    with pytest.raises(CommandError, match="not acknowledged"):
        await asyncio.to_thread(call_command, "mcp_listen", server.url, "--tools", "--timeout", "30")


async def test_on_a_legacy_server_listening_is_an_error_that_says_what_to_use(legacy_client):
    for asking in (legacy_client.listen(TOOLS), legacy_client.watch("a:1")):
        with pytest.raises(LegacyPeerError, match=r"2025-11-25.*subscribe_notifications"):
            await asking
    pending = await legacy_client.listen(TOOLS, relisten=Relisten(first=True))
    with pytest.raises(LegacyPeerError):
        await pending.wait_acknowledged()
