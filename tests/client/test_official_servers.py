"""
The client against the official servers in both eras, and against this project's.
"""

import asyncio
from collections.abc import Iterator

import pytest

from mcp_channels.client import (
    Acknowledged,
    ListenClient,
    Notification,
    Reconnected,
    Resynchronised,
    SubscribeFailed,
    UseListen,
)
from tests.client.conftest import QUICK
from tests.client.official import Official, ProjectServer, Proxy, PythonServer, TypeScriptServer, text
from tests.support.project import Project

CHANGED = "notifications/tools/list_changed"


@pytest.fixture(scope="module", params=["python", "typescript", "project"])
def official(request, tmp_path_factory, migrated, redis) -> Iterator[Official]:
    if request.param == "python":
        server: Official = PythonServer()
    elif request.param == "typescript":
        server = TypeScriptServer(tmp_path_factory.mktemp("typescript"))
    else:
        server = ProjectServer(Project(tmp_path_factory.mktemp("project"), template=migrated, REDIS_URL=redis.url))
    yield server
    server.stop()


async def until(handle, kind: type, **params):
    """
    The next event of a kind, with these parameters.
    """
    async with asyncio.timeout(10):
        async for event in handle:
            if isinstance(event, kind) and (not params or params.items() <= event.params.items()):
                return event
    raise AssertionError(f"It ended before {kind}")


async def change(official: Official, what: str) -> None:
    await asyncio.to_thread(official.change, what)


async def test_a_modern_server_is_listened_at_and_watched_through_losses(official: Official, no_task_is_left):
    one, two = official.uris
    async with (
        Proxy(official.port) as proxy,
        ListenClient(
            f"http://127.0.0.1:{proxy.port}{official.modern}",
            token=official.token,
            relisten=QUICK,
            read_timeout=20,
        ) as client,
    ):
        with pytest.raises(UseListen):
            await client.subscribe_notifications({"toolsListChanged": True})
        async with client.listen({"tools_list_changed": True, "resource_subscriptions": [one]}) as subscription:
            assert client.protocol_version == "2026-07-28"
            honoured = {"toolsListChanged": True, "resourceSubscriptions": [one]}
            assert await until(subscription, Acknowledged) == Acknowledged(honoured)
            await change(official, "tools")
            await change(official, one)
            assert (await until(subscription, Notification, uri=one)).method == "notifications/resources/updated"

            watch = await client.watch(two)
            again = await client.watch(two)
            other = await client.watch(one)
            before = text(await client.read_resource(two))
            await change(official, two)
            for handle in (watch, again):
                await until(handle, Notification, uri=two)
            assert text(await client.read_resource(two)) != before

            proxy.cut()
            for handle in (subscription, watch, again, other):
                await until(handle, Resynchronised)
            assert subscription.honoured == honoured
            await change(official, two)
            await until(watch, Notification, uri=two)
            await change(official, one)
            await until(subscription, Notification, uri=one)
            await until(other, Notification, uri=one)
            assert await client.unwatch(two)
            await watch.close()
            await other.close()
            assert client._watches._streams == {}
        assert subscription.reason == "client_closed"


async def test_a_legacy_server_is_listened_at_through_lost_sessions(official: Official, no_task_is_left):
    one, two = official.uris
    async with (
        Proxy(official.port) as proxy,
        ListenClient(
            f"http://127.0.0.1:{proxy.port}{official.legacy}",
            token=official.token,
            mode="auto" if official.legacy != official.modern else "legacy",
            relisten=QUICK,
            read_timeout=20,
        ) as client,
    ):
        if isinstance(official, ProjectServer):
            # It serves legacy clients all but listening.
            with pytest.raises(SubscribeFailed):
                await client.subscribe_notifications({"resourceSubscriptions": [one]})
            return
        with pytest.raises(SubscribeFailed, match="No resource"):
            await client.subscribe_notifications({"resourceSubscriptions": [one, "note://none"]})
        assert client.protocol_version == "2025-11-25"
        both = await client.subscribe_notifications({"resourceSubscriptions": [one, two]})
        asked = {"toolsListChanged": True, "resourceSubscriptions": [one]}
        async with client.subscribe_notifications(asked) as listener:
            await change(official, two)
            await change(official, one)
            assert (await until(listener, Notification)).params["uri"] == one
            await until(both, Notification, uri=two)
            await change(official, "tools")
            assert (await until(listener, Notification)).method == CHANGED
            proxy.cut()
            assert await until(listener, Reconnected) == Reconnected((one,), ())
            assert (await until(both, Reconnected)).failed == ()
            await change(official, two)
            await until(both, Notification, uri=two)
        await both.close()
