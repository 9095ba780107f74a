"""
The official Python SDK's client against the example project, on each ASGI server.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    Subscription,
    SubscriptionLost,
    ToolsListChanged,
)
from mcp_types import METHOD_NOT_FOUND, SubscriptionFilter

from tests.support.http import listen_body, listen_headers, request
from tests.support.processes import SERVERS, Server
from tests.support.project import Project

DEADLINE = 10.0
ENDING_DEADLINE = 5.0
LEGACY_VERSION = "2025-11-25"


def started(project: Project, kind: str, **token: object) -> tuple[Server, str]:
    """
    A server of the project, and a token for it; ``token`` is what ``Project.token`` takes.
    """
    # The other process starts at the same time.
    _ = project.worker
    return project.serve(kind), project.token(**token)


@asynccontextmanager
async def connected(
    server: Server, token: str | None = None, *, path: str = "/mcp", mode: str = "auto"
) -> AsyncIterator[Client]:
    """
    A client of the endpoint at ``path``, with a bearer token if one is given.
    """
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # A listen stream may be silent for long; the client's own timeout bounds every other request.
    timeout = httpx2.Timeout(DEADLINE, read=None)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False) as http,
        Client(
            streamable_http_client(server.url + path, http_client=http), mode=mode, read_timeout_seconds=DEADLINE
        ) as client,
    ):
        yield client


async def heard(subscription: Subscription, expected: ServerEvent) -> None:
    """
    Return once ``expected`` came. Others may come before it: a note that was made just before is a change as well.
    """
    async with asyncio.timeout(DEADLINE):
        async for event in subscription:
            if event == expected:
                return
    raise AssertionError(f"The subscription ended before {expected}")


async def heard_and_read(client: Client, subscription: Subscription, uri: str, *, body: str) -> None:
    """
    Return once an event came, after which the note has this body; there is nothing else in the filter.
    """
    async with asyncio.timeout(DEADLINE):
        async for event in subscription:
            assert event == ResourceUpdated(uri=uri)
            if (await content(client, uri))["body"] == body:
                return
    raise AssertionError(f"The subscription ended before the note was {body!r}")


async def ending(subscription: Subscription) -> SubscriptionLost | None:
    """
    How the subscription ends: the error that its iterator raises, or None if it just stops.
    """
    async with asyncio.timeout(ENDING_DEADLINE):
        try:
            async for _ in subscription:
                pass
        except SubscriptionLost as lost:
            return lost
    return None


async def content(client: Client, uri: str) -> dict:
    """
    A note as the client reads it.
    """
    (item,) = (await client.read_resource(uri)).contents
    assert (item.uri, item.mime_type) == (uri, "application/json")
    return json.loads(item.text)


async def tool(client: Client, tool_name: str, /, **arguments: object) -> str:
    """
    What a tool answers.
    """
    result = await client.call_tool(tool_name, arguments)
    assert not result.is_error, result.content
    return result.content[0].text


async def tool_names(client: Client) -> list[str]:
    """
    The names in tools/list.
    """
    return [item.name for item in (await client.list_tools()).tools]


async def stopped(server: Server) -> int:
    """
    The exit status of a server that was told to stop.
    """
    return await asyncio.to_thread(server.process.wait, ENDING_DEADLINE)


@pytest.mark.parametrize("kind", SERVERS)
async def test_the_client_negotiates_the_modern_version_and_sees_what_is_served(make_project, redis, kind: str) -> None:
    project = make_project(REDIS_URL=redis.url, MCP_CHANNELS_JSON=json.dumps({"RESOURCE_PAGE_SIZE": 2}))
    server, token = started(project, kind)
    pks = [project.note(title=title, body="text") for title in ("one", "two", "three")]
    uris = [f"note://{pk}" for pk in pks]
    async with connected(server, token) as client:
        assert client.protocol_version == "2026-07-28"
        assert client.server_info.name == "notes"
        capabilities = client.server_capabilities
        assert capabilities.tools.list_changed
        assert capabilities.prompts.list_changed
        assert capabilities.resources.list_changed
        assert capabilities.resources.subscribe

        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "note://{pk}"
        first = await client.list_resources()
        assert [(item.uri, item.name) for item in first.resources] == [(uris[0], "one"), (uris[1], "two")]
        second = await client.list_resources(cursor=first.next_cursor)
        assert [(item.uri, item.name) for item in second.resources] == [(uris[2], "three")]
        assert second.next_cursor is None
        note = {"id": pks[0], "title": "one", "body": "text", "shared": True, "tags": []}
        assert await content(client, uris[0]) == note

        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["summarise_note"]
        prompt = await client.get_prompt("summarise_note", {"title": "one"})
        assert "'one'" in prompt.messages[0].content.text
        assert {"create_note", "update_note", "delete_note", "add_tool", "remove_tool"} <= set(await tool_names(client))


@pytest.mark.parametrize("kind", SERVERS)
async def test_tools_write_change_and_delete_a_note(project: Project, kind: str) -> None:
    server, token = started(project, kind, user="alice")
    async with connected(server, token) as client:
        made = json.loads(await tool(client, "create_note", title="first", body="text"))
        assert (await content(client, made["uri"]))["title"] == "first"
        await tool(client, "update_note", id=made["id"], title="second")
        assert await content(client, made["uri"]) == {
            "id": made["id"],
            "title": "second",
            "body": "text",
            "shared": False,
            "tags": [],
        }
        await tool(client, "delete_note", id=made["id"])
        with pytest.raises(MCPError, match="Unknown resource"):
            await client.read_resource(made["uri"])
        assert (await client.call_tool("delete_note", {"id": made["id"]})).is_error


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_save_in_another_process_is_heard_and_read_again(project: Project, kind: str) -> None:
    server, token = started(project, kind)
    pk, hidden = project.note(body="before"), project.note(shared=False)
    uri = f"note://{pk}"
    wanted = [uri, f"note://{hidden}", "note://999999"]
    async with connected(server, token) as client:
        assert (await content(client, uri))["body"] == "before"
        async with client.listen(resource_subscriptions=wanted) as subscription:
            # What the caller may not read and what isn't there are left out alike.
            assert subscription.honored == SubscriptionFilter(resource_subscriptions=[uri])
            for body in ("before.", "before.."):
                project.save(pk)
                await heard_and_read(client, subscription, uri, body=body)


@pytest.mark.parametrize("kind", SERVERS)
async def test_changes_of_every_list_are_heard_and_listed_again(project: Project, kind: str) -> None:
    server, token = started(project, kind)
    pk = project.note()
    uri = f"note://{pk}"
    async with (
        connected(server, token) as client,
        client.listen(
            resource_subscriptions=[uri],
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
        ) as subscription,
    ):
        assert subscription.honored == SubscriptionFilter(
            resource_subscriptions=[uri],
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
        )

        await tool(client, "add_tool", name="extra")
        await heard(subscription, ToolsListChanged())
        assert "extra" in await tool_names(client)
        assert await tool(client, "extra") == "extra"

        await tool(client, "remove_tool", name="extra")
        await heard(subscription, ToolsListChanged())
        assert "extra" not in await tool_names(client)

        made = json.loads(await tool(client, "create_note", title="new"))
        await heard(subscription, ResourcesListChanged())
        assert made["uri"] in [item.uri for item in (await client.list_resources()).resources]

        await tool(client, "update_note", id=pk, body="changed")
        await heard(subscription, ResourceUpdated(uri=uri))
        assert (await content(client, uri))["body"] == "changed"

        project.worker.run("notify.notify_prompts_changed()")
        await heard(subscription, PromptsListChanged())


async def test_a_kind_that_the_server_does_not_offer_is_not_honoured(project: Project) -> None:
    server = project.serve("daphne")
    async with (
        connected(server, path="/open/mcp") as client,
        client.listen(prompts_list_changed=True, tools_list_changed=True) as subscription,
    ):
        assert client.server_capabilities.prompts is None
        assert subscription.honored == SubscriptionFilter(tools_list_changed=True)


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_server_that_dies_is_a_lost_subscription(project: Project, kind: str) -> None:
    server, token = started(project, kind)
    async with (
        connected(server, token) as client,
        client.listen(tools_list_changed=True) as subscription,
    ):
        server.process.kill()
        end = await ending(subscription)
        assert isinstance(end, SubscriptionLost)
        assert isinstance(end.__cause__, MCPError)


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_restart_ends_the_subscription_and_the_client_listens_again(project: Project, kind: str) -> None:
    server, token = started(project, kind)
    pk = project.note(body="before")
    uri = f"note://{pk}"
    async with connected(server, token) as client:
        async with client.listen(resource_subscriptions=[uri]) as subscription:
            server.terminate()
            end = await ending(subscription)
            # The SDK takes notifications/cancelled for a lost stream; of one that just broke off, it names the cause.
            assert end is None or end.__cause__ is None
            assert await stopped(server) in (0, -signal.SIGTERM)
        project.save(pk)
        project.serve(kind, port=server.port)
        async with client.listen(resource_subscriptions=[uri]) as subscription:
            assert subscription.honored == SubscriptionFilter(resource_subscriptions=[uri])
            assert (await content(client, uri))["body"] == "before."
            project.save(pk)
            await heard_and_read(client, subscription, uri, body="before..")


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_legacy_client_is_served_all_but_listening(project: Project, kind: str) -> None:
    server, token = started(project, kind)
    pk = project.note(title="old")
    uri = f"note://{pk}"
    async with connected(server, token, mode="legacy") as client:
        assert client.protocol_version == LEGACY_VERSION
        assert client.server_info.name == "notes"
        assert "create_note" in await tool_names(client)
        assert [item.uri for item in (await client.list_resources()).resources] == [uri]
        assert (await content(client, uri))["title"] == "old"
        made = json.loads(await tool(client, "create_note", title="new"))
        assert (await content(client, made["uri"]))["title"] == "new"
        with pytest.raises(ListenNotSupportedError):
            async with client.listen(tools_list_changed=True):
                pass
        # The same without the client's own guard, as it is and as a client that sends no version.
        for version in (LEGACY_VERSION, None):
            headers = listen_headers(mcp_protocol_version=version, mcp_method=None)
            body = listen_body({"toolsListChanged": True}, id="old", meta=None)
            async with request(server.port, headers=headers, body=body, token=token) as response:
                answer = await response.json()
            assert (answer["id"], answer["error"]["code"]) == ("old", METHOD_NOT_FOUND)
