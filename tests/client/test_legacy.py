"""
Listeners on legacy sessions that are lost, refused, slow, or say what nobody asked for.
"""

import asyncio

import pytest
from mcp import MCPError

from mcp_channels.client import Closed, ListenClient, Reconnected, Relisten, SubscribeFailed, UseListen
from mcp_channels.client.references import References
from tests.client.conftest import QUICK
from tests.client.scripted import Request

UPDATED = "notifications/resources/updated"
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"


def told(method: str, **params) -> dict:
    return {"jsonrpc": "2.0", "method": method, "params": params}


async def upcoming(handle):
    async with asyncio.timeout(5):
        return await anext(handle)


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def fail(uri: str):
    """
    An answer to resources/subscribe that refuses one URI.
    """

    def answer(request: Request):
        if request.message["params"]["uri"] == uri:
            request.refuse(200, -32002, "No such resource")
            return None
        return {}

    return answer


async def test_a_listener_hears_what_it_listens_for_and_nothing_else(legacy_client, legacy_server):
    client, server = legacy_client, legacy_server
    asked = {"tools_list_changed": True, "resourceSubscriptions": ["a:1", "a:2"]}
    listener = await client.subscribe_notifications(asked)
    assert client.protocol_version == "2025-11-25"
    # The stream is there before the first request that may be answered on it.
    handshake = ["server/discover", "initialize", "notifications/initialized", "GET", SUBSCRIBE, SUBSCRIBE]
    assert server.log == handshake
    stream = await server.stream()
    heard: asyncio.Queue = asyncio.Queue()
    other = await client.subscribe_notifications({"prompts_list_changed": True}, on_event=heard.put)
    # Each comes through a task of its own in the SDK, so the order among them is not kept.
    stream.send(told(PROMPTS), told(UPDATED, uri="a:3"), told(UPDATED, uri="a:1/below"), told(UPDATED, uri="a:2"))
    assert (await upcoming(listener)).params == {"uri": "a:2"}
    assert (await heard.get()).method == PROMPTS
    stream.send(told(TOOLS))
    assert (await upcoming(listener)).method == TOOLS
    assert len(listener._consumer.backlog) == 0
    assert heard.empty()
    await other.close()
    await listener.close()
    assert sorted(server.said(UNSUBSCRIBE)) == ["a:1", "a:2"]
    assert [event async for event in listener] == []
    with pytest.raises(ValueError, match="task_ids"):
        client.subscribe_notifications({"taskIds": ["1"]})


async def test_nothing_is_subscribed_to_before_the_stream_is_there(legacy_client, legacy_server):
    asked: asyncio.Queue = asyncio.Queue()
    legacy_server.answers["GET"] = asked.put_nowait
    opening = asyncio.create_task(_await(legacy_client.subscribe_notifications({"resourceSubscriptions": ["a:1"]})))
    stream = await asyncio.wait_for(asked.get(), 5)
    await asyncio.sleep(0.1)
    assert legacy_server.said(SUBSCRIBE) == []
    stream.head()
    await asyncio.wait_for(opening, 5)
    assert legacy_server.said(SUBSCRIBE) == ["a:1"]


async def test_a_modern_server_is_to_be_listened_at(client):
    with pytest.raises(UseListen, match=r"2026-07-28.*listen\(\)"):
        await client.subscribe_notifications({"toolsListChanged": True})


async def test_a_uri_is_subscribed_to_once_and_unsubscribed_from_with_its_last_listener(legacy_client, legacy_server):
    running = most = 0

    async def slowly(request: Request) -> None:
        nonlocal running
        await asyncio.sleep(0.02)
        running -= 1
        request.result({})

    def answer(request: Request) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        tasks.append(asyncio.create_task(slowly(request)))

    tasks: list[asyncio.Task] = []
    legacy_server.answers[SUBSCRIBE] = legacy_server.answers[UNSUBSCRIBE] = answer
    filters = [{"resourceSubscriptions": uris} for uris in (["a:1", "a:2"], ["a:2", "a:3"], ["a:3", "a:1"])]
    opened = [legacy_client.subscribe_notifications(asked, owner=None) for asked in filters]
    one, two, three = await asyncio.gather(*(_await(opening) for opening in opened))
    assert sorted(legacy_server.said(SUBSCRIBE)) == ["a:1", "a:2", "a:3"]
    stream = await legacy_server.stream()
    stream.send(told(UPDATED, uri="a:2"))
    assert (await upcoming(one)).params == (await upcoming(two)).params == {"uri": "a:2"}
    await one.close()
    assert legacy_server.said(UNSUBSCRIBE) == []
    await asyncio.gather(two.close(), three.close())
    assert sorted(legacy_server.said(UNSUBSCRIBE)) == ["a:1", "a:2", "a:3"]
    assert most == 1
    await asyncio.gather(*tasks)


async def _await(opening):
    return await opening


async def test_a_refused_uri_fails_the_registration_which_takes_back_only_its_own(legacy_client, legacy_server):
    client, server = legacy_client, legacy_server
    kept = await client.subscribe_notifications({"resourceSubscriptions": ["a:1"]})
    server.answers[SUBSCRIBE] = fail("a:bad")
    with pytest.raises(SubscribeFailed, match="'a:bad': No such resource") as caught:
        await client.subscribe_notifications({"resourceSubscriptions": ["a:1", "a:2", "a:bad", "a:3"]})
    assert (caught.value.uri, caught.value.reason) == ("a:bad", "No such resource")
    assert server.said(SUBSCRIBE) == ["a:1", "a:2", "a:bad"]
    assert server.said(UNSUBSCRIBE) == ["a:2"]
    stream = await server.stream()
    stream.send(told(UPDATED, uri="a:1"))
    assert (await upcoming(kept)).params == {"uri": "a:1"}
    assert list(client._listeners._listeners) == [kept]


async def test_a_registration_that_is_cancelled_takes_back_what_it_acquired(legacy_client, legacy_server):
    asked = asyncio.Event()
    legacy_server.answers[SUBSCRIBE] = lambda request: asked.set()
    registering = asyncio.create_task(_await(legacy_client.subscribe_notifications({"resourceSubscriptions": ["a:1"]})))
    await asyncio.wait_for(asked.wait(), 5)
    registering.cancel()
    await asyncio.wait([registering])
    await until(lambda: legacy_server.said(UNSUBSCRIBE) == ["a:1"])


async def test_a_listener_ends_with_the_task_or_the_context_that_owns_it(legacy_client, legacy_server):
    client, server = legacy_client, legacy_server

    async def own() -> None:
        await client.subscribe_notifications({"resourceSubscriptions": ["a:1"]})

    await asyncio.create_task(own())
    await until(lambda: server.said(UNSUBSCRIBE) == ["a:1"])
    async with client.subscribe_notifications({"resourceSubscriptions": ["a:2"]}) as listener:
        assert listener.reason is None
    assert server.said(UNSUBSCRIBE) == ["a:1", "a:2"]
    # Direct calls are not counted.
    async with client.subscribe_notifications({"resourceSubscriptions": ["a:3"]}):
        await client.subscribe_resource("a:3")
        await client.unsubscribe_resource("a:3")
    assert server.said(UNSUBSCRIBE) == ["a:1", "a:2", "a:3", "a:3"]


@pytest.mark.parametrize("loss", ["stream", "session", "server"])
async def test_listeners_survive_a_lost_session_and_are_told(legacy_client, legacy_server, loss):
    client, server = legacy_client, legacy_server
    heard: asyncio.Queue = asyncio.Queue()
    listener = await client.subscribe_notifications({"resourceSubscriptions": ["a:1", "a:2"]})
    lists = await client.subscribe_notifications({"toolsListChanged": True}, on_event=heard.put)
    stream = await server.stream()
    server.answers[SUBSCRIBE] = fail("a:2")
    if loss == "stream":
        stream.abort()
    elif loss == "session":
        # As after a restart: the session's id means nothing to the server.
        server.answers["tools/call"] = lambda request: request.answer(404, "Not Found")
        with pytest.raises(MCPError):
            await client.call_tool("none")
    else:
        await server.stop()
        await asyncio.sleep(0.1)
        await server.start()
    assert await upcoming(listener) == Reconnected(("a:1",), (("a:2", "No such resource"),))
    assert await heard.get() == Reconnected((), ())
    renewed = await server.stream()
    assert "mcp-session-id" not in [entry for entry in server.requests if _is(entry, "initialize")][-1].headers
    # What the former session still says is nobody's, and does not end the other.
    renewed.send(told(UPDATED, uri="a:1"), told(TOOLS))
    assert (await upcoming(listener)).params == {"uri": "a:1"}
    assert (await heard.get()).method == TOOLS
    assert server.sessions == 2
    # What failed is tried again with the next session.
    del server.answers[SUBSCRIBE]
    renewed.abort()
    assert await upcoming(listener) == Reconnected(("a:1", "a:2"), ())
    await listener.close()
    await lists.close()
    assert server.said(UNSUBSCRIBE) == ["a:1", "a:2"]


def _is(request: Request, method: str) -> bool:
    return request.message.get("method") == method


async def test_what_an_older_reconnection_finds_out_counts_for_nothing(legacy_client, legacy_server):
    client, server = legacy_client, legacy_server
    listener = await client.subscribe_notifications({"resourceSubscriptions": ["a:1"]})
    stream = await server.stream()
    held: asyncio.Queue = asyncio.Queue()
    server.answers[SUBSCRIBE] = held.put_nowait
    stream.abort()
    await asyncio.wait_for(held.get(), 5)
    # Lost again in the midst of the subscribing; someone else comes meanwhile.
    late = asyncio.create_task(_await(client.subscribe_notifications({"resourceSubscriptions": ["a:2"]}, owner=None)))
    (await server.stream()).abort()
    request = await asyncio.wait_for(held.get(), 5)
    del server.answers[SUBSCRIBE]
    # Nothing is delivered between the loss and the word of it.
    stream = await server.stream()
    handled = client._listeners.deliver
    delivered: asyncio.Queue = asyncio.Queue()
    client._peer.on_legacy = lambda event: (handled(event), delivered.put_nowait(event))
    stream.send(told(UPDATED, uri="a:1"))
    await asyncio.wait_for(delivered.get(), 5)
    request.result({})
    assert await upcoming(listener) == Reconnected(("a:1",), ())
    other = await asyncio.wait_for(late, 5)
    stream.send(told(UPDATED, uri="a:1"), told(UPDATED, uri="a:2"))
    assert (await upcoming(listener)).params == {"uri": "a:1"}
    assert len(listener._consumer.backlog) == 0
    event = await upcoming(other)
    while isinstance(event, Reconnected):
        event = await upcoming(other)
    assert event.params == {"uri": "a:2"}


async def ending(listener) -> str:
    async with asyncio.timeout(5):
        *_, last = [event async for event in listener]
    assert last == Closed(listener.reason, graceful=False, final=True)
    return last.reason


async def test_the_ends_of_a_listener_have_names(no_task_is_left, legacy_server):
    server, asked = legacy_server, {"toolsListChanged": True}
    async with ListenClient(server.url, relisten=None) as client:
        listener = await client.subscribe_notifications(asked)
        (await server.stream()).abort()
        assert await ending(listener) == "transport_closed"
        listener = await client.subscribe_notifications(asked)
        await server.stream()
        await client.disconnect()
        assert await ending(listener) == "disconnected"
    heard: list = []
    async with ListenClient(server.url, relisten=Relisten(first_delay=0.01, attempts=3)) as client:
        leaving = await client.subscribe_notifications(asked, on_event=heard.append)
        await server.stream()
    assert heard == [Closed("shutdown", graceful=False, final=True)]
    assert leaving.reason == "shutdown"
    # Each session is ended, also one whose stream is lost.
    assert server.log.count("DELETE") == 3
    async with ListenClient(server.url, relisten=QUICK) as client:
        listener = await client.subscribe_notifications(asked)
        server.legacy = False
        (await server.stream()).abort()
        assert await ending(listener) == "era_changed"
        server.legacy = True
    async with ListenClient(server.url, relisten=Relisten(first_delay=0.01, attempts=3)) as client:
        listener = await client.subscribe_notifications(asked)
        await server.stop()
        assert await ending(listener) == "reconnect_exhausted"


async def test_a_stream_whose_messages_have_ids_goes_on_in_its_session(legacy_client, legacy_server):
    listener = await legacy_client.subscribe_notifications({"resourceSubscriptions": ["a:1"]})
    stream = await legacy_server.stream()
    stream._writer.write(b"i")
    await asyncio.sleep(0.05)
    stream._writer.write(b"d: 7\r\nretry: 10\r\n")
    stream.send(told(UPDATED, uri="a:1"))
    assert (await upcoming(listener)).params == {"uri": "a:1"}
    stream.end()
    again = await legacy_server.stream()
    assert (again.headers["last-event-id"], again.headers["mcp-session-id"]) == ("7", "session-1")
    again.send(told(UPDATED, uri="a:1"))
    assert (await upcoming(listener)).params == {"uri": "a:1"}
    # Without one there is no going on.
    again.end()
    assert await upcoming(listener) == Reconnected(("a:1",), ())
    assert legacy_server.sessions == 2


async def test_a_stream_that_ends_at_once_is_no_reason_to_come_back_at_once(no_task_is_left, legacy_server):
    legacy_server.answers["GET"] = lambda request: (request.head(), request.end())
    async with ListenClient(legacy_server.url, relisten=Relisten(first_delay=0.1, longest_delay=60.0)) as client:
        listener = await client.subscribe_notifications({"toolsListChanged": True})
        await asyncio.sleep(2.0)
        assert listener.reason is None
    assert 2 <= legacy_server.sessions <= 12


async def test_a_server_without_a_stream_is_not_asked_for_another_session(legacy_client, legacy_server):
    legacy_server.answers["GET"] = lambda request: request.answer(405)
    listener = await legacy_client.subscribe_notifications({"resourceSubscriptions": ["a:1"]})
    await until(lambda: legacy_server.log.count("GET") == 2)
    await listener.close()
    assert legacy_server.sessions == 1


def test_references_are_counted_by_holder():
    references = References()
    assert references.acquire("one", "a:1")
    assert not references.acquire("two", "a:1")
    assert not references.release("three", "a:1")
    assert not references.release("one", "a:1")
    assert not references.release("one", "a:1")
    references.lose_session()
    assert references.missing(["two"]) == ["a:1"]
    assert references.missing(["one"]) == []
    # There is nothing to unsubscribe from in a session that was never asked.
    assert not references.release("two", "a:1")
    assert len(references) == 0
