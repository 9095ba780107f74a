"""
The server itself, called in process: nobody signs in there, and nobody can listen.
"""

import pytest
from django.core.exceptions import ImproperlyConfigured
from mcp import Client
from mcp.shared.exceptions import MCPError

from example_project.notes.mcp import NoteResource, open_server, server
from example_project.notes.models import Note
from mcp_channels import MCPServer, topics
from mcp_channels.publisher import publisher

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def left(monkeypatch):
    published = []
    monkeypatch.setattr(publisher, "publish", published.extend)
    return published


async def test_a_listen_in_process_needs_a_streaming_transport():
    async with Client(server) as client:
        with pytest.raises(MCPError, match="requires a streaming transport") as refused:
            async with client.listen(tools_list_changed=True):
                pass
        assert refused.value.error.code == -32601


async def test_no_notification_is_promised_in_process():
    async with Client(server) as client:
        capabilities = client.server_capabilities
        assert not capabilities.tools.list_changed
        assert not capabilities.resources.subscribe


async def test_a_caller_in_process_has_no_scopes():
    shared = await Note.objects.acreate(title="x", shared=True)
    async with Client(server) as client:
        with pytest.raises(MCPError, match="Unknown resource"):
            await client.read_resource(f"note://{shared.pk}")
        result = await client.call_tool("create_note", {"title": "y"})
        assert result.is_error
    async with Client(open_server) as client:
        assert (await client.read_resource(f"note://{shared.pk}")).contents


async def test_what_a_server_does_not_offer_is_not_there():
    async with Client(open_server) as client:
        assert client.server_capabilities.prompts is None
        with pytest.raises(MCPError):
            await client.list_prompts()


def test_unknown_offers_and_a_bus_of_ones_own_are_refused():
    with pytest.raises(ValueError, match="files"):
        MCPServer("x", offers=("files",))
    with pytest.raises(TypeError, match="subscriptions"):
        MCPServer("x", subscriptions=False)
    with pytest.raises(ImproperlyConfigured, match="no resources"):
        MCPServer("x", offers=("tools",)).register(Note)(NoteResource)


async def test_what_a_tool_announces_goes_the_way_of_all_notifications(left):
    from mcp.server.mcpserver import Context

    announcing = MCPServer("announcing")

    @announcing.tool()
    async def announce(context: Context) -> str:
        await context.notify_tools_changed()
        await context.notify_prompts_changed()
        await context.notify_resources_changed()
        await context.notify_resource_updated("text://a")
        return "done"

    async with Client(announcing) as client:
        assert not (await client.call_tool("announce", {})).is_error
    assert left == [topics.TOOLS, topics.PROMPTS, topics.RESOURCES, topics.resource("text://a")]


def test_what_comes_or_goes_is_told_once_the_server_is_served(left):
    changing = MCPServer("changing")
    changing.add_tool(lambda: 1, name="early")
    assert left == []
    changing.is_served = True
    changing.add_tool(lambda: 1, name="late")
    changing.remove_tool("late")
    assert left == [topics.TOOLS] * 2
    left.clear()

    @changing.prompt()
    def ask() -> str:
        return "?"

    changing.remove_prompt("ask")
    assert left == [topics.PROMPTS] * 2
    left.clear()

    @changing.resource("text://one")
    def one() -> str:
        return "1"

    @changing.resource("text://{name}")
    def any_of(name: str) -> str:
        return name

    assert set(left) == {topics.RESOURCES}
    assert len(left) >= 2


async def test_descriptions_lose_the_indentation_of_their_docstrings():
    async with Client(server) as client:
        tools = {tool.name: tool.description for tool in (await client.list_tools()).tools}
        assert tools["delete_note"] == "Delete a note."
        [prompt] = (await client.list_prompts()).prompts
        assert prompt.description == "Ask for a summary of a note."


def test_making_a_server_leaves_the_projects_logging_alone():
    import logging

    before = (list(logging.getLogger().handlers), logging.getLogger().level)
    MCPServer("quiet")
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before
