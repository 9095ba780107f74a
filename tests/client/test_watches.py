"""
Watches over streams on a socket.
"""

import asyncio

import pytest

from mcp_channels.client import (
    AcknowledgmentTimeoutError,
    Closed,
    ListenClient,
    ListenRefusedError,
    Notification,
    Resynchronised,
    SubscriptionEndedError,
    WatchRefusedError,
)
from tests.client.conftest import QUICK
from tests.client.scripted import Request, Scripted

UPDATED = "notifications/resources/updated"


async def upcoming(handle):
    async with asyncio.timeout(5):
        return await anext(handle)


async def watching(client: ListenClient, server: Scripted, uri: str):
    """
    A watch that the server covers, and the request for its stream.
    """
    opening = asyncio.create_task(client.watch(uri))
    request = await server.listening()
    request.acknowledge()
    return await opening, request


async def silent(server: Scripted, *watches) -> None:
    """
    Check that nothing is left to be told, and no request came.
    """
    for watch in watches:
        assert len(watch._consumer.backlog) == 0
    assert server.listens.empty()


async def test_two_watches_of_a_uri_share_a_stream_and_each_hears_of_it(client, server):
    first = asyncio.create_task(client.watch("a:1"))
    second = asyncio.create_task(client.watch("a:1"))
    request = await server.listening()
    assert request.filter == {"resourceSubscriptions": ["a:1"]}
    assert not first.done()
    request.acknowledge()
    one, two = await first, await second
    three = await client.watch("a:1")
    request.send(request.updated("a:1"))
    for watch in (one, two, three):
        assert (await upcoming(watch)).params["uri"] == "a:1"
    await silent(server, one, two, three)
    assert await client.unwatch("a:1")
    await two.close()
    request.send(request.updated("a:1"))
    assert (await upcoming(one)).method == UPDATED
    assert await client.unwatch("a:1")
    await request.left()
    assert not await client.unwatch("a:1")
    assert [event async for event in one] == []


async def test_many_watches_are_packed_and_a_stream_is_replaced_without_a_gap(client, server):
    one, former = await watching(client, server, "a:1")
    opening = [asyncio.create_task(client.watch(f"a:{number}")) for number in range(2, 40)]
    request = await server.listening()
    # The former stream serves until the other is acknowledged, and is read on for a while.
    former.send(former.updated("a:1", number=1))
    assert (await upcoming(one)).params["number"] == 1
    request.acknowledge()
    async with asyncio.timeout(5):
        while sum(task.done() for task in opening) < len(request.filter["resourceSubscriptions"]) - 1:
            await asyncio.sleep(0)
    former.send(former.updated("a:1", number=2))
    await former.left()
    assert (await upcoming(one)).params["number"] == 2
    last = request
    if not all(task.done() for task in opening):
        last = await server.listening()
        last.acknowledge()
    watches = await asyncio.gather(*opening)
    assert len(last.filter["resourceSubscriptions"]) == 39
    last.send(last.updated("a:39"))
    assert (await upcoming(watches[-1])).params["uri"] == "a:39"
    await silent(server, one, *watches)
    assert len(client._watches._streams) <= 2


async def test_a_watch_that_the_server_leaves_out_is_refused_and_the_others_stay(client, server):
    one, _ = await watching(client, server, "a:1")
    refused = asyncio.create_task(client.watch("a:secret"))
    request = await server.listening()
    request.acknowledge({"resourceSubscriptions": ["a:1"]})
    with pytest.raises(WatchRefusedError, match="'a:secret'"):
        await refused
    request.send(request.updated("a:1"))
    assert (await upcoming(one)).params["uri"] == "a:1"


async def test_a_watch_that_can_not_be_had_says_why_and_the_next_call_asks_again(client, server):
    async def fails(error: type[Exception], match: str, **options) -> None:
        with pytest.raises(error, match=match):
            await client.watch("a:1", **options)

    failing = asyncio.create_task(fails(SubscriptionEndedError, "the stream: busy"))
    request = await server.listening()
    request.head()
    request.finish("busy")
    await failing
    failing = asyncio.create_task(fails(ListenRefusedError, "HTTP 400"))
    (await server.listening()).answer(400, "no")
    await failing
    failing = asyncio.create_task(fails(AcknowledgmentTimeoutError, r"'a:1' within 0\.2 s", timeout=0.2))
    await (await server.listening()).left()
    await failing
    failing = asyncio.create_task(client.watch("a:1"))
    request = await server.listening()
    failing.cancel()
    await request.left()
    assert client._watches._watches == {}
    watch, _ = await watching(client, server, "a:1")
    assert watch.error is None


async def test_a_watch_on_a_stream_that_is_coming_back_waits_for_its_acknowledgment(client, server):
    one, first = await watching(client, server, "a:1")
    two, both = await watching(client, server, "a:2")
    both.abort()
    request = await server.listening()
    waiting = [asyncio.create_task(client.watch(uri)) for uri in ("a:1", "a:2")]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    request.acknowledge({"resourceSubscriptions": ["a:1"]})
    # What was granted before counts for nothing.
    await waiting[0]
    with pytest.raises(WatchRefusedError):
        await waiting[1]
    assert await upcoming(one) == Resynchronised({"resourceSubscriptions": ["a:1"]})
    with pytest.raises(WatchRefusedError):
        assert [event async for event in two] == []
    assert isinstance(two.error, WatchRefusedError)
    assert first.id != request.id


async def test_a_stream_that_ends_for_good_ends_its_watches(client, server):
    watch, request = await watching(client, server, "a:1")
    request.send(request.updated("a:1"))
    request.finish("revoked")
    assert isinstance(await upcoming(watch), Notification)
    assert isinstance(await upcoming(watch), Closed)
    with pytest.raises(SubscriptionEndedError, match="revoked"):
        await upcoming(watch)
    again, _ = await watching(client, server, "a:1")
    assert again.error is None


async def test_no_more_uris_than_allowed_go_into_a_stream(no_task_is_left, server):
    async with ListenClient(server.url, relisten=QUICK, uris_per_stream=2) as client:
        requests: list[Request] = []
        for number in range(5):
            requests.append((await watching(client, server, f"a:{number}"))[1])
        assert all(len(request.filter["resourceSubscriptions"]) <= 2 for request in requests)
        assert requests[-1].filter == {"resourceSubscriptions": ["a:4"]}
    for request in requests:
        await request.left()
