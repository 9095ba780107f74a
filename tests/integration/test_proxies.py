"""
Two servers behind nginx, with the configuration that the documentation shows.
"""

import asyncio
import json
import re
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from tests.integration.test_endings import check_closing
from tests.support.http import Response, listen, listening, request
from tests.support.processes import Server
from tests.support.project import Project
from tests.support.proxies import DEPLOY, Nginx, Unit, http2_client, listening_http2

TOOLS = {"toolsListChanged": True}
MAX_STREAMS = 8


class Front:
    """
    The Daphne of the systemd unit and a uvicorn, of one project, and an nginx before them. Silence is cut after two
    seconds.
    """

    def __init__(self, project: Project, directory: Path) -> None:
        self.project = project
        self.servers: list[Server] = [self.unit(None), project.serve("uvicorn")]
        self.nginx = Nginx(directory, [server.port for server in self.servers], read_timeout=2)
        self.port = self.nginx.port
        self.tls = self.nginx.tls
        """For clients that speak HTTP/1.1."""
        self.token = project.token()

    def unit(self, port: int | None) -> Unit:
        server = Unit(env=self.project.env, log=self.project.directory / "unit.log", port=port)
        self.project._running.append(server)
        return server

    def restart(self, index: int) -> None:
        port = self.servers[index].port
        self.servers[index] = self.project.serve("uvicorn", port=port) if index else self.unit(port)

    async def until(self, code: str, wanted: object) -> None:
        """
        Return when ``code``, run in the project, gives what is wanted.
        """
        async with asyncio.timeout(10):
            while await asyncio.to_thread(self.project.worker.run, f"result = {code}") != wanted:
                await asyncio.sleep(0.05)

    async def nobody(self) -> None:
        """
        Return when no stream is left.
        """
        await self.until("models.LiveStream.objects.count()", 0)


@pytest.fixture(scope="module")
def front(tmp_path_factory, migrated, redis):
    """
    One of it for all tests.
    """
    project = Project(
        tmp_path_factory.mktemp("front"),
        template=migrated,
        REDIS_URL=redis.url,
        BEHIND_TLS_PROXY="1",
        CHANNEL_LAYER_CONFIG=json.dumps({"prefix": "front"}),
        MCP_CHANNELS_JSON=json.dumps({"KEEP_ALIVE_INTERVAL": 1, "MAX_STREAMS": MAX_STREAMS}),
    )
    try:
        made = Front(project, tmp_path_factory.mktemp("nginx"))
        yield made
        made.nginx.stop()
    finally:
        project.stop()


async def arrival(stream: Response) -> float:
    assert (await stream.message())["method"] == "notifications/tools/list_changed"
    return time.perf_counter()


async def test_acknowledgments_and_notifications_come_through_within_a_tenth_of_a_second(front, record_property):
    ways = {"direct": {"port": front.servers[0].port}, "proxied": {"port": front.port, "tls": front.tls}}
    taken: dict[str, list[float]] = {name: [] for name in ("direct", "proxied", "HTTP/1.1", "HTTP/2")}
    for _ in range(20):
        for name, options in ways.items():
            started = time.perf_counter()
            async with listening(notifications=TOOLS, token=front.token, **options):
                taken[name].append(time.perf_counter() - started)
    assert statistics.median(taken["proxied"]) < 0.1, taken
    record_property("acknowledgments", {name: statistics.median(taken[name]) for name in ways})
    taken["direct"].clear()
    await front.nobody()
    async with (
        listening(notifications=TOOLS, token=front.token, **ways["direct"]) as direct,
        listening(notifications=TOOLS, token=front.token, accept_encoding="gzip", **ways["proxied"]) as one,
        http2_client(front.nginx) as client,
        listening_http2(client, TOOLS, token=front.token, accept_encoding="gzip") as two,
    ):
        streams = {"direct": direct, "HTTP/1.1": one, "HTTP/2": two}
        for _ in range(20):
            started = time.perf_counter()
            publishing = asyncio.to_thread(front.project.worker.run, "notify.notify_tools_changed()")
            _, *arrivals = await asyncio.gather(publishing, *(arrival(stream) for stream in streams.values()))
            for name, arrived in zip(streams, arrivals, strict=True):
                taken[name].append(arrived - started)
        for stream in (one, two):
            assert stream.header("content-type").startswith("text/event-stream")
            assert stream.header("content-encoding") is None
            assert stream.header("cache-control") == "no-cache, no-transform"
    medians = {name: statistics.median(taken[name]) for name in streams}
    record_property("notifications", medians)
    assert max(medians.values()) < 0.1, taken
    assert max(medians.values()) - medians["direct"] < 0.05, taken
    assert max(taken["HTTP/1.1"] + taken["HTTP/2"]) < 1, taken


async def test_a_quiet_stream_outlives_the_read_timeout_and_its_client_is_missed_when_it_leaves(front):
    await front.nobody()
    asked = {"token": front.token, "notifications": {"promptsListChanged": True}}
    async with (
        listening(front.port, tls=front.tls, **asked) as one,
        http2_client(front.nginx) as client,
        listening_http2(client, **asked) as two,
    ):
        await asyncio.gather(one.silence(5), two.silence(5))
        assert one.comments >= 3
        assert two.comments >= 3
        await front.until("models.LiveStream.objects.count()", 2)
        await asyncio.to_thread(front.project.worker.run, "notify.notify_prompts_changed()")
        for stream in (one, two):
            assert (await stream.message())["method"] == "notifications/prompts/list_changed"
    await front.nobody()


async def hear(front: Front, port: int) -> None:
    """
    Listen without TLS, and be told of something, all in a second.
    """
    async with asyncio.timeout(1), listening(port, TOOLS, token=front.token) as stream:
        await asyncio.to_thread(front.project.worker.run, "notify.notify_tools_changed()")
        await arrival(stream)


async def test_the_header_alone_keeps_a_careless_nginx_from_holding_frames_back(front):
    await hear(front, front.nginx.careless_port)
    with pytest.raises(TimeoutError):
        await hear(front, front.nginx.ignorant_port)


async def test_servers_see_the_address_and_the_scheme_of_the_client(front):
    await front.nobody()
    origin = f"https://127.0.0.1:{front.port}"
    options = {"path": "/open/mcp", "tls": front.tls, "source": "127.0.0.2", "origin": origin}
    kind = {"resourcesListChanged": True}
    async with (
        listening(front.port, kind, x_forwarded_for="10.1.2.3", **options),
        listening(front.port, kind, x_forwarded_for="10.1.2.3", **options),
    ):
        rows = "sorted(models.LiveStream.objects.values_list('address', 'principal__name'))"
        await front.until(rows, [["127.0.0.2", "anonymous:127.0.0.2"]] * 2)
        # nginx gives each server one of two streams.
        assert front.project.worker.run("result = models.LiveStream.objects.values('node').distinct().count()") == 2
    async with listen(front.port, kind, **{**options, "origin": origin.replace("https", "http")}) as response:
        assert response.status == 403


async def test_what_is_none_of_the_servers_business_does_not_reach_them(front):
    async with request(front.nginx.plain_port, path="/mcp?a=b", headers={"Host": "mcp.example.com"}) as response:
        assert (response.status, response.header("location")) == (308, "https://mcp.example.com/mcp?a=b")
    async with request(front.port, method="GET", path="/health/ready", tls=front.tls) as response:
        assert response.status == 404
        assert b"nginx" in await response.body()


async def test_a_503_comes_through_with_its_retry_after(front):
    await front.nobody()
    async with AsyncExitStack() as stack:
        for _ in range(2 * MAX_STREAMS):
            await stack.enter_async_context(listening(front.port, TOOLS, token=front.token, tls=front.tls))
        async with listen(front.port, TOOLS, token=front.token, tls=front.tls) as response:
            assert response.status == 503
            assert response.header("retry-after") == "5"
            assert (await response.json())["error"]["code"] == -32603


async def test_while_one_server_restarts_its_clients_hear_of_it_and_find_the_other(front):
    asked = {"notifications": TOOLS, "token": front.token, "tls": front.tls}
    for index, server in enumerate(list(front.servers)):
        await front.nobody()
        async with listening(front.port, **asked) as one, listening(front.port, **asked) as two:
            endings = {asyncio.create_task(stream.ending()): stream for stream in (one, two)}
            server.terminate()
            async with asyncio.timeout(2):
                [ended], [waiting] = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
            check_closing(ended.result(), "shutdown")
            # While the server still answers, and when it no longer does.
            for _ in range(2):
                async with listening(front.port, **asked) as again:
                    await asyncio.to_thread(front.project.worker.run, "notify.notify_tools_changed()")
                    await arrival(again)
                await asyncio.to_thread(server.process.wait, 10)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
        front.restart(index)


def test_the_compose_file_gives_nginx_servers_that_it_can_read(front):
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    upstream = compose["configs"]["upstream"]["content"]
    assert re.findall(r"server (\w+):", upstream) == [name for name in compose["services"] if name.startswith("web")]
    complaints = front.nginx.complaints(upstream)
    assert complaints.endswith("test is successful\n"), complaints
