"""
The consumer as an ASGI application, driven by hand: what servers and middleware do to it.
"""

import asyncio
import json

import pytest
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.urls import path

from mcp_channels import MCPConsumer, MCPServer
from mcp_channels.listen.hub import Hub
from tests.support.http import META, asgi_scope, listen_body

server = MCPServer("driven")


@server.resource("thing:{+name}")
async def thing(name: str) -> str:
    return name


@pytest.fixture
def application():
    return URLRouter([path("mcp", MCPConsumer.as_asgi(server=server, allow_anonymous=True))])


@pytest.fixture(autouse=True)
async def no_hub_is_left():
    yield
    await Hub.current(get_channel_layer()).close()


def scope(**changes):
    return {**asgi_scope(), **changes}


class Connection:
    """
    One request: what the application receives, and what it sent.
    """

    def __init__(self, application, *messages, **changes) -> None:
        self.incoming: asyncio.Queue = asyncio.Queue()
        for message in messages:
            self.incoming.put_nowait(message)
        self.sent: asyncio.Queue = asyncio.Queue()
        self.all: list[dict] = []
        self.task = asyncio.create_task(application(scope(**changes), self.incoming.get, self._send))

    async def _send(self, message) -> None:
        self.all.append(message)
        self.sent.put_nowait(message)

    async def next(self) -> dict:
        async with asyncio.timeout(5):
            return await self.sent.get()

    async def message(self) -> dict:
        body = (await self.next())["body"]
        return json.loads(body.decode().split("data: ", 1)[1].split("\r\n")[0])

    async def leave(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(5):
            await self.task


def body(notifications=None, **options):
    data = listen_body({"toolsListChanged": True} if notifications is None else notifications, **options)
    return {"type": "http.request", "body": data, "more_body": False}


async def opened(connection: Connection) -> dict:
    start = await connection.next()
    assert start["status"] == 200
    return await connection.message()


@pytest.mark.django_db(transaction=True)
async def test_a_stream_opens_hears_and_ends_with_its_client(application):
    before = asyncio.all_tasks()
    connection = Connection(application, body())
    assert (await opened(connection))["method"] == "notifications/subscriptions/acknowledged"
    server.add_tool(lambda: 1, name="late")
    assert (await connection.message())["method"] == "notifications/tools/list_changed"
    server.remove_tool("late")
    await connection.message()
    await connection.leave()
    assert connection.all[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    await Hub.current(get_channel_layer()).close()
    await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - before if "upstream" not in task.get_name()} == set()


@pytest.mark.django_db(transaction=True)
async def test_an_invented_disconnect_ends_cleanly(application, caplog):
    connection = Connection(application, body(), {"type": "http.disconnect"})
    async with asyncio.timeout(5):
        await connection.task
    assert connection.all[-1]["more_body"] is False
    assert "Traceback" not in caplog.text


@pytest.mark.django_db(transaction=True)
async def test_a_client_that_leaves_before_its_body_is_whole_gets_nothing(application):
    part = {"type": "http.request", "body": b"{", "more_body": True}
    connection = Connection(application, part, {"type": "http.disconnect"})
    async with asyncio.timeout(5):
        await connection.task
    assert connection.all == []


@pytest.mark.django_db(transaction=True)
async def test_a_cancelled_application_says_that_it_stops_and_ends_its_body(application):
    connection = Connection(application, body())
    await opened(connection)
    connection.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connection.task
    data = b"".join(message.get("body", b"") for message in connection.all)
    assert b'"reason":"shutdown"' in data
    assert connection.all[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.django_db(transaction=True)
async def test_a_process_that_shuts_down_refuses_listens_and_answers_the_rest(application):
    Hub.current(get_channel_layer()).drain()
    refused = Connection(application, body())
    start = await refused.next()
    assert start["status"] == 503
    assert int(dict(start["headers"])[b"retry-after"]) > 0
    assert b"shutting down" in (await refused.next())["body"]
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
    listed = {"type": "http.request", "body": json.dumps(message).encode(), "more_body": False}
    served = Connection(application, listed, headers=asgi_scope(**{"Mcp-Method": "tools/list"})["headers"])
    assert (await served.next())["status"] == 200
    async with asyncio.timeout(5):
        await served.task


@pytest.mark.django_db(transaction=True)
async def test_without_a_layer_a_listen_is_refused_clearly(application, settings):
    settings.MCP_CHANNELS = {"CHANNEL_LAYER": "missing"}
    connection = Connection(application, body())
    start, end = await connection.next(), await connection.next()
    assert start["status"] == 503
    assert "No channel layer 'missing'" in json.loads(end["body"])["error"]["message"]


@pytest.mark.django_db(transaction=True)
async def test_an_error_of_ours_is_logged_and_not_shown(application, monkeypatch, caplog):
    async def broken(*args, **kwargs):
        raise RuntimeError("a secret")

    monkeypatch.setattr(server, "readable", broken)
    connection = Connection(application, body({"resourceSubscriptions": ["thing:a"]}))
    start, end = await connection.next(), await connection.next()
    assert start["status"] == 500
    assert json.loads(end["body"])["error"] == {"code": -32603, "message": "Internal error"}
    assert "a secret" in caplog.text


@pytest.mark.django_db(transaction=True)
async def test_an_allowed_origin_gets_cors_headers(application, settings):
    settings.MCP_CHANNELS = {"ALLOWED_ORIGINS": ["https://app.example.com"]}
    headers = [*scope()["headers"], (b"origin", b"https://app.example.com")]
    preflight = Connection(application, method="OPTIONS", headers=headers)
    start = await preflight.next()
    assert start["status"] == 204
    assert (b"access-control-allow-origin", b"https://app.example.com") in start["headers"]
    connection = Connection(application, body(), headers=headers)
    start = await connection.next()
    assert (b"access-control-allow-origin", b"https://app.example.com") in start["headers"]
    await connection.leave()
    other = Connection(application, body(), headers=[*scope()["headers"], (b"origin", b"https://app.example.com.evil")])
    assert (await other.next())["status"] == 403


async def test_only_http_is_served(application):
    with pytest.raises(ValueError, match="websocket"):
        await MCPConsumer.as_asgi(server=server)({"type": "websocket"}, None, None)


def test_a_server_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="MCPServer"):
        MCPConsumer.as_asgi(server=object())


@pytest.mark.django_db(transaction=True)
async def test_a_user_whom_channels_middleware_found_may_sign_in_with_drfs_session(settings):
    from asgiref.sync import sync_to_async
    from django.contrib.auth import get_user_model

    settings.ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
    user = await sync_to_async(get_user_model().objects.create_user)("alice", password="x")
    application = MCPConsumer.as_asgi(
        server=server, authentication_classes=["rest_framework.authentication.SessionAuthentication"]
    )
    length = (b"content-length", str(len(body()["body"])).encode())
    without_csrf = Connection(application, body(), user=user, headers=[*scope()["headers"], length])
    assert (await without_csrf.next())["status"] == 403
    token = "x" * 32
    headers = [
        *scope()["headers"],
        length,
        (b"cookie", f"csrftoken={token}".encode()),
        (b"x-csrftoken", token.encode()),
    ]
    connection = Connection(application, body(), user=user, headers=headers)
    assert (await opened(connection))["method"] == "notifications/subscriptions/acknowledged"
    await connection.leave()
    nobody = Connection(application, body())
    assert (await nobody.next())["status"] == 401


@pytest.mark.django_db(transaction=True)
async def test_requests_that_arrive_together_share_the_databases_work(application, monkeypatch, settings):
    settings.MCP_CHANNELS = {"MAX_LISTENS_PER_PRINCIPAL": 1000}
    from mcp_channels.endpoint import endpoint

    batches = []
    decide = endpoint.Endpoint._decide

    def counting(self, batch):
        batches.append(len(batch))
        return decide(self, batch)

    monkeypatch.setattr(endpoint.Endpoint, "_decide", counting)
    application = URLRouter([path("mcp", MCPConsumer.as_asgi(server=server, allow_anonymous=True))])
    connections = [Connection(application, body(id=number)) for number in range(100)]
    for number, connection in enumerate(connections):
        message = await opened(connection)
        assert message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == number
    assert sum(batches) == 100
    assert len(batches) < 20
    for connection in connections:
        await connection.leave()


@pytest.mark.django_db(transaction=True)
async def test_a_client_that_leaves_while_it_waits_takes_nobody_along(application, monkeypatch):
    connections = [Connection(application, body(id=number)) for number in range(10)]
    await asyncio.sleep(0)
    connections[0].task.cancel()
    for connection in connections[1:]:
        await opened(connection)
        await connection.leave()
    with pytest.raises(asyncio.CancelledError):
        await connections[0].task


@pytest.mark.django_db(transaction=True)
async def test_one_that_is_refused_refuses_no_other_of_its_batch(settings):
    application = URLRouter([path("mcp", MCPConsumer.as_asgi(server=server, allow_anonymous=True))])
    bad = [*scope()["headers"], (b"authorization", b"Bearer mcp_wrong")]
    connections = [
        Connection(application, body(id=number), **({"headers": bad} if number % 2 else {})) for number in range(10)
    ]
    for number, connection in enumerate(connections):
        assert (await connection.next())["status"] == (401 if number % 2 else 200)
    for connection in connections[::2]:
        await connection.leave()


@pytest.mark.django_db(transaction=True)
async def test_a_middleware_that_answers_for_ever_does_not_block_the_loop(application):
    sent = []

    async def receive():
        return body()

    async def send(message):
        sent.append(message)

    task = asyncio.create_task(application(scope(), receive, send))
    async with asyncio.timeout(5):
        while len(sent) < 2:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_tools_scope_is_kept_however_its_name_is_given():
    scoped = MCPServer("scoped")

    @scoped.tool(None, "A title", scope="secret")
    async def plain() -> str:
        return "x"

    @scoped.tool("named", scope="secret")
    async def other() -> str:
        return "x"

    @scoped.tool(name="keyword", scope="secret")
    async def third() -> str:
        return "x"

    assert set(scoped._scopes) == {("tool", "plain"), ("tool", "named"), ("tool", "keyword")}
