"""
Who hears of a change, and when.
"""

import asyncio
import logging

import pytest
from mcp.client import CacheConfig, InMemoryResponseCacheStore

from mcp_channels.client import Acknowledged, ListenClient, ListenError, Notification, Resynchronised
from mcp_channels.client.backlog import Backlog
from tests.client.conftest import QUICK
from tests.client.scripted import Scripted

TOOLS = {"toolsListChanged": True}
CHANGED = "notifications/tools/list_changed"


def tool(name: str) -> dict:
    return {"name": name, "inputSchema": {"type": "object"}}


async def test_a_list_that_is_asked_for_again_is_not_the_stale_one(no_task_is_left, server):
    version = 0
    server.answers["tools/list"] = lambda request: {
        "tools": [tool(f"version-{version}")],
        "resultType": "complete",
        "ttlMs": 600_000,
        "cacheScope": "private",
    }
    order: list[str] = []
    seen: list[str] = []
    done = asyncio.Event()

    async def consume(event) -> None:
        if isinstance(event, Notification | Resynchronised):
            order.append("consumer")
            seen.append((await client.list_tools()).tools[0].name)
            done.set()

    async with ListenClient(
        server.url,
        relisten=QUICK,
        on_invalidate=lambda event: order.append("hook"),
        on_event=lambda event: order.append("general"),
    ) as client:
        assert [(await client.list_tools()).tools[0].name for _ in range(2)] == ["version-0", "version-0"]
        assert server.log.count("tools/list") == 1
        async with await _opened(client, server, consume):
            request = server.current
            for _ in range(20):
                version += 1
                done.clear()
                request.send(request.tagged(CHANGED))
                await asyncio.wait_for(done.wait(), 5)
                assert seen[-1] == f"version-{version}"
            # After a gap anything may have changed.
            version += 1
            done.clear()
            request.abort()
            (await server.listening()).acknowledge()
            await asyncio.wait_for(done.wait(), 5)
            assert seen[-1] == f"version-{version}"
    assert order[:4] == ["general", "hook", "consumer", "general"]
    assert server.log.count("tools/list") == 22


async def _opened(client: ListenClient, server: Scripted, callback):
    subscription = await client.listen(TOOLS, on_event=callback)
    server.current = await server.listening()
    server.current.acknowledge()
    await subscription.wait_acknowledged()
    return subscription


async def test_a_store_that_outlives_the_connection_is_not_stale_afterwards(no_task_is_left, server):
    version = 0
    server.answers["tools/list"] = lambda request: {
        "tools": [tool(f"version-{version}")],
        "resultType": "complete",
        "ttlMs": 600_000,
        "cacheScope": "private",
    }
    config = CacheConfig(store=InMemoryResponseCacheStore(), partition="me")
    async with ListenClient(server.url, relisten=QUICK, cache=config) as client:
        await client.list_tools()
        subscription = await _opened(client, server, None)
        await client._peer._connection.close()
        version += 1
        server.current.send(server.current.tagged(CHANGED))
        assert isinstance(await anext(subscription), Acknowledged)
        assert (await anext(subscription)).method == CHANGED
        assert (await client.list_tools()).tools[0].name == "version-1"


async def test_a_callback_that_raises_or_blocks_holds_up_nobody(no_task_is_left, server, caplog):
    heard: asyncio.Queue = asyncio.Queue()
    never = asyncio.Event()

    async def blocks(event) -> None:
        await never.wait()

    def fails(event) -> None:
        heard.put_nowait(event)
        raise RuntimeError("a fault of its own")

    def hook(event) -> None:
        raise RuntimeError("a fault of the hook")

    async with ListenClient(server.url, relisten=QUICK, on_event=blocks, on_invalidate=hook) as client:
        stuck = await _opened(client, server, blocks)
        first = server.current
        await _opened(client, server, fails)
        iterated = await _opened(client, server, None)
        for request in (first, *[entry for entry in server.requests if entry.message.get("id") == iterated.id]):
            request.send(request.tagged(CHANGED))
        assert isinstance(await heard.get(), Acknowledged)
        for number in range(3):
            server.requests[-2].send(server.requests[-2].tagged(CHANGED, number=number))
            assert (await asyncio.wait_for(heard.get(), 5)).params["number"] == number
        assert isinstance(await anext(iterated), Acknowledged)
        assert (await asyncio.wait_for(anext(iterated), 5)).method == CHANGED
        assert stuck.state == "active"
        # Its backlog is the one list that it listens for.
        assert len(stuck._consumer.backlog) == 1
    assert "a fault of its own" in caplog.text
    assert "a fault of the hook" in caplog.text


async def test_a_callback_may_close_its_own_subscription(client, server):
    closed = asyncio.Event()

    async def consume(event) -> None:
        if isinstance(event, Notification):
            await subscription.close()
            closed.set()

    subscription = await _opened(client, server, consume)
    server.current.send(server.current.tagged(CHANGED))
    await asyncio.wait_for(closed.wait(), 5)
    await server.current.left()


async def test_iterating_that_is_broken_off_or_cancelled_leaves_nothing_and_loses_nothing(client, server):
    opening = asyncio.create_task(_opened(client, server, None))
    subscription = await opening
    request = server.current
    async with subscription:
        assert isinstance(await anext(subscription), Acknowledged)
        waiting = asyncio.create_task(anext(subscription))
        await asyncio.sleep(0)
        request.send(request.tagged(CHANGED))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async for event in subscription:
            assert event.method == CHANGED
            break
    await request.left()


async def test_more_than_a_filter_names_becomes_one_word_to_read_everything():
    backlog = Backlog(limit=10)
    honoured = {"resourceSubscriptions": ["file:///"]}
    backlog.put(Acknowledged(honoured))
    for number in range(1000):
        backlog.put(Notification("notifications/resources/updated", {"uri": f"file:///{number}"}))
        assert len(backlog) <= 12
    events = [await backlog.get() for _ in range(len(backlog))]
    assert Resynchronised(honoured) in events


@pytest.mark.parametrize("when", ["pending", "active", "reconnecting"])
async def test_leaving_the_client_closes_whatever_is_open(no_task_is_left, server, when, caplog):
    caplog.set_level(logging.WARNING)
    async with ListenClient(server.url) as client:
        subscription = await client.listen(TOOLS)
        request = await server.listening()
        if when != "pending":
            request.acknowledge()
            await subscription.wait_acknowledged()
        if when == "reconnecting":
            request.abort()
            while subscription.state != when:
                await asyncio.sleep(0)
        watching = asyncio.create_task(client.watch("a:1"))
        await server.listening()
    assert (subscription.state, subscription.reason) == ("closed", "client_closed")
    await request.left()
    with pytest.raises(ListenError, match="closed"):
        await watching
    with pytest.raises(RuntimeError, match="closed"):
        await client.listen(TOOLS)
    assert caplog.text == ""
