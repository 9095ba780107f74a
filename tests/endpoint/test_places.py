"""
The places of a process: what takes one, who is refused when none is left, and that each is given back.
"""

import asyncio
import json

import pytest
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.urls import path
from mcp.server.mcpserver import Context

from mcp_channels import MCPConsumer, MCPServer
from mcp_channels.listen.hub import Hub
from mcp_channels.listen.places import places
from tests.endpoint.test_consumer import Connection, body, opened
from tests.support.http import META, asgi_scope

server = MCPServer("places")
gate: list[asyncio.Event] = []


@server.tool()
async def work(ctx: Context) -> str:
    await ctx.report_progress(0, 1)
    await gate[0].wait()
    return "done"


@pytest.fixture
def application(settings, transactional_db):
    settings.MCP_CHANNELS = {**settings.MCP_CHANNELS, "MAX_STREAMS": 1, "SEND_TIMEOUT": 0.3}
    return URLRouter([path("mcp", MCPConsumer.as_asgi(server=server, allow_anonymous=True))])


@pytest.fixture(autouse=True)
async def all_places_are_given_back():
    before = places.taken
    gate[:] = [asyncio.Event()]
    yield
    await Hub.current(get_channel_layer()).close()
    assert places.taken == before


def request(application, method: str, *, id=1, send=None, **params) -> Connection:
    headers = {"Mcp-Method": method}
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    params["_meta"] = {**META, "progressToken": "t"}
    message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    data = {"type": "http.request", "body": json.dumps(message).encode(), "more_body": False}
    return Connection(application, data, headers=asgi_scope(**headers)["headers"])


async def answered(connection: Connection) -> tuple[dict, dict]:
    start = await connection.next()
    async with asyncio.timeout(5):
        await connection.task
    head = {name.decode(): value.decode() for name, value in start["headers"]}
    return {"status": start["status"], **head}, json.loads(b"".join(m.get("body", b"") for m in connection.all[1:]))


async def test_a_full_process_refuses_calls_that_may_stream_and_nothing_else(application):
    listening = Connection(application, body())
    await opened(listening)
    head, answer = await answered(request(application, "tools/call", name="work", arguments={}))
    assert head["status"] == 503
    assert int(head["retry-after"]) > 0
    assert answer["error"]["code"] == -32603
    head, answer = await answered(request(application, "tools/list"))
    assert head["status"] == 200
    assert answer["result"]["tools"][0]["name"] == "work"
    await listening.leave()


async def test_a_streamed_call_holds_its_place_until_it_has_ended(application):
    call = request(application, "tools/call", name="work", arguments={})
    assert (await call.next())["status"] == 200
    head, _ = await answered(Connection(application, body()))
    assert head["status"] == 503
    gate[0].set()
    async with asyncio.timeout(5):
        await call.task
    assert b'"done"' in call.all[-1]["body"]
    listening = Connection(application, body())
    await opened(listening)
    await listening.leave()


async def test_a_caller_that_leaves_gives_its_place_back(application):
    call = request(application, "tools/call", name="work", arguments={})
    assert (await call.next())["status"] == 200
    await call.leave()
    listening = Connection(application, body())
    await opened(listening)
    await listening.leave()


async def test_a_caller_that_takes_nothing_loses_its_place_after_the_send_timeout(application, caplog):
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "work", "arguments": {}, "_meta": {**META, "progressToken": "t"}},
    }
    received = asyncio.Queue()
    received.put_nowait({"type": "http.request", "body": json.dumps(message).encode(), "more_body": False})
    scope = asgi_scope(**{"Mcp-Method": "tools/call", "Mcp-Name": "work"})

    async def stalled(message) -> None:
        await asyncio.get_running_loop().create_future()

    async with asyncio.timeout(5):
        await application(scope, received.get, stalled)
    assert "Traceback" not in caplog.text


async def test_a_listener_that_does_not_even_take_the_head_loses_its_place_after_the_send_timeout(application, caplog):
    received = asyncio.Queue()
    received.put_nowait(body())

    async def stalled(message) -> None:
        await asyncio.get_running_loop().create_future()

    async with asyncio.timeout(5):
        await application(asgi_scope(), received.get, stalled)
    assert "Traceback" not in caplog.text
    listening = Connection(application, body())
    await opened(listening)
    await listening.leave()


@pytest.mark.parametrize("is_batch", [False, True])
async def test_the_call_of_an_older_revision_takes_a_place_too(application, is_batch):
    """
    It has no header that names its method.
    """
    listening = Connection(application, body())
    await opened(listening)
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "work", "arguments": {}}}
    data = json.dumps([message] if is_batch else message).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"host", b"127.0.0.1"),
    ]
    connection = Connection(application, {"type": "http.request", "body": data, "more_body": False}, headers=headers)
    head, _ = await answered(connection)
    assert head["status"] == 503
    await listening.leave()


async def test_a_stream_that_is_still_ending_its_response_holds_its_place_and_no_topic(application):
    received, sent = asyncio.Queue(), asyncio.Queue()
    received.put_nowait(body())
    let_go = asyncio.Event()

    async def send(message) -> None:
        sent.put_nowait(message)
        if message["type"] == "http.response.body" and not message["more_body"]:
            await let_go.wait()

    ending = asyncio.create_task(application(asgi_scope(), received.get, send))
    async with asyncio.timeout(5):
        while b"acknowledged" not in (await sent.get()).get("body", b""):
            pass
        received.put_nowait({"type": "http.disconnect"})
        assert (await sent.get())["more_body"] is False
    hub = Hub.current(get_channel_layer())
    assert not any(entry.streams for entry in hub._entries.values())
    head, _ = await answered(Connection(application, body()))
    assert head["status"] == 503
    let_go.set()
    await ending
    listening = Connection(application, body())
    await opened(listening)
    await listening.leave()
