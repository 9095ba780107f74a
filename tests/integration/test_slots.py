"""
Every stream that ends gives its slot back, and leaves one entry in the log: clients that leave, cancelled requests,
clients that are lost, and streams that supersede each other over servers of every kind.
"""

import asyncio
import json
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.integration.test_endings import check_closing
from tests.support.http import listen, listening
from tests.support.processes import SERVERS
from tests.support.project import LAYERS

TOOLS = {"toolsListChanged": True}

ROWS = """
result = list(models.LiveStream.objects.exclude(state="ending").order_by("pk").values_list("uri_count", flat=True))
"""

EVERY_ROW = "result = models.LiveStream.objects.count()"


async def until(look, expected, *, seconds: float) -> None:
    """
    Wait until a look in another thread gives what is expected.
    """
    deadline = time.monotonic() + seconds
    while (found := await asyncio.to_thread(look)) != expected:
        assert time.monotonic() < deadline, f"still {found} and not {expected}"
        await asyncio.sleep(0.05)


def endings(server) -> list[str]:
    """
    The reasons of the streams' ends in the server's log.
    """
    return re.findall(r"mcp_channels\.streams: A stream of endpoint \S+ ended: (\w+), ", server.read_log())


@pytest.mark.parametrize(
    ("kind", "layer", "groups"), [("daphne", "pubsub", 12), ("daphne", "core", 1), ("uvicorn", "core", 1)]
)
async def test_streams_that_clients_leave_or_servers_end_leave_nothing(make_project, own_redis, kind, layer, groups):
    import redis

    project = make_project(REDIS_URL=own_redis.url, **LAYERS[layer])
    server = project.serve(kind)
    token = project.token()
    notes = [project.note() for _ in range(10)]
    store = redis.Redis(port=own_redis.port)

    def memberships() -> int:
        if layer == "pubsub":
            return len(store.pubsub_channels("*__group__*"))
        return sum(store.zcard(key) for key in store.keys("*:group:*"))

    async with AsyncExitStack() as staying:
        async with AsyncExitStack() as leaving:
            for pk in notes:
                asked = {"resourceSubscriptions": [f"note://{pk}"]}
                await leaving.enter_async_context(listening(server.port, asked, token=token))
                await staying.enter_async_context(listening(server.port, TOOLS, token=token))
            assert project.worker.run(EVERY_ROW) == 20
            # The hub's own, and where its queue can't overflow, that of the tools and one for each note.
            assert memberships() == groups
        await until(lambda: project.worker.run(EVERY_ROW), 10, seconds=2)
        await until(memberships, min(groups, 2), seconds=8)
        assert endings(server) == ["client_closed"] * 10
        # Daphne cancels its applications; uvicorn waits for them.
        server.terminate()
        async with asyncio.timeout(8):
            await asyncio.to_thread(server.process.wait)
        assert project.worker.run("result = [models.LiveStream.objects.count(), models.Node.objects.count()]") == [0, 0]
    assert endings(server) == ["client_closed"] * 10 + ["shutdown"] * 10
    log = server.read_log()
    for trouble in ("Task was destroyed", "never retrieved", "Traceback", token):
        assert trouble not in log
    assert memberships() == 0


async def test_a_cap_holds_over_servers_of_every_kind(make_project, own_redis):
    project = make_project(REDIS_URL=own_redis.url)
    servers = [project.serve(kind) for kind in SERVERS]
    token = project.token("alice", max_streams=2)
    notes = [f"note://{project.note()}" for _ in range(12)]
    async with AsyncExitStack() as stack:
        streams = []
        for number in range(12):
            # The number of URIs tells the rows apart.
            asked = {"resourceSubscriptions": notes[: number + 1]}
            started = time.monotonic()
            streams.append(
                await stack.enter_async_context(
                    listening(servers[number % 4].port, asked, token=token, id=f"stream {number}")
                )
            )
            if number >= 2:
                check_closing(await streams[number - 2].ending(), "superseded", f"stream {number - 2}")
            # Pacing begins behind the last.
            assert time.monotonic() - started < 2
        assert project.worker.run(ROWS) == [11, 12]
        await asyncio.to_thread(project.worker.run, "notify.notify_resource_updated(uri)", uri=notes[0])
        for stream in streams[-2:]:
            assert (await stream.message())["params"]["uri"] == notes[0]
    await until(lambda: project.worker.run(EVERY_ROW), 0, seconds=2)
    assert (
        sorted(reason for server in servers for reason in endings(server))
        == ["client_closed"] * 2 + ["superseded"] * 10
    )


class Proxy:
    """
    A way to a server that may lose everything from some moment on, without a word to either side.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.flows = asyncio.Event()
        self.flows.set()
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**12)
        self._writers += [writer, far_writer]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass_on(reader, far_writer))
            group.create_task(self._pass_on(far_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self.flows.wait()
            data = await reader.read(4096)
            if not data:
                return
            await self.flows.wait()
            writer.write(data)
            await writer.drain()

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def lossy(port: int):
    """
    A proxy before a server, and its port.
    """
    proxy = Proxy(port)
    running: set[asyncio.Task] = set()

    async def connected(reader, writer):
        task = asyncio.current_task()
        running.add(task)
        try:
            await proxy.connect(reader, writer)
        except* OSError:
            pass
        finally:
            running.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        proxy.flows.set()
        proxy.close()
        if running:
            await asyncio.wait(running, timeout=5)


@pytest.mark.parametrize("is_stalled", [False, True], ids=["quiet", "stalled"])
@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_client_that_lost_its_network_comes_back_at_once(make_project, own_redis, kind, is_stalled):
    """
    Its old stream is superseded, though no packet reaches it, and its socket may take no more.
    """
    project = make_project(REDIS_URL=own_redis.url)
    servers = [project.serve(kind), project.serve("uvicorn")]
    token = project.token("alice", max_streams=1)
    uris = [f"note://{project.note()}" for _ in range(100)]
    asked = {"resourceSubscriptions": uris}
    async with lossy(servers[0].port) as (proxy, port), listening(port, asked, token=token):
        proxy.flows.clear()
        if is_stalled:
            publish = "for _ in range(20):\n  for uri in uris:\n    notify.notify_resource_updated(uri)"
            for _ in range(40):
                await asyncio.to_thread(project.worker.run, publish, uris=uris)
        # Through the process that holds the old stream, and through another.
        for server in (servers[1], servers[0]):
            started = time.monotonic()
            async with listening(server.port, asked, token=token):
                assert time.monotonic() - started < 5
                assert project.worker.run(ROWS) == [100]
        await until(lambda: project.worker.run(EVERY_ROW), 0, seconds=5)
    assert len(endings(servers[0])) == 2


async def test_every_refusal_leaves_a_line_in_the_log(make_project, own_redis):
    project = make_project(REDIS_URL=own_redis.url, MCP_CHANNELS_JSON=json.dumps({"MAX_STREAMS": 1}))
    server = project.serve("uvicorn")
    token, capped = project.token("alice"), project.token("none", max_streams=0)
    async with listen(server.port, TOOLS, token="mcp_wrong") as refused:
        assert refused.status == 401
    async with listen(server.port, TOOLS, token=token, origin="https://evil.example") as refused:
        assert refused.status == 403
    async with listen(server.port, {"toolsListChanged": "yes"}, token=token) as refused:
        assert refused.status == 400
    async with listen(server.port, TOOLS, token=capped) as refused:
        assert refused.status == 403
        assert (await refused.json())["error"]["message"] == "This principal may hold no listen streams."
    async with listening(server.port, TOOLS, token=token):
        async with listen(server.port, TOOLS, token=token) as refused:
            assert refused.status == 503
    log = server.read_log()
    refusals = re.findall(r"INFO mcp_channels\.endpoint: A request to endpoint notes was refused: (\d+) ", log)
    assert refusals == ["401", "403", "400", "403", "503"]
    for secret in (token, capped, "mcp_wrong"):
        assert secret not in log
