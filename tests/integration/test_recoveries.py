"""
One fault of the layer at a time: what an open stream hears of it, how soon, and what the log says.
"""

import asyncio
import re
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from tests.integration.test_slots import endings, until
from tests.support.broker import Broker
from tests.support.http import listening
from tests.support.project import LAYERS

OUTAGES = {
    "pubsub": {"stopped", "black hole", "subscribers cut", "all cut"},
    "core": {"stopped", "black hole", "flushed", "connections cut", "all cut", "groups forgotten", "member forgotten"},
}
"""The faults in which messages may be lost. In the others none is, and nobody is told anything."""

LASTS = {"stopped": 4, "black hole": 6.5}
"""Seconds; a black hole is one when a call has not been answered for five."""

QUIET = 0.7
"""Seconds in which a second notification would have come: a probe goes out in that time."""


def name_of(message):
    return message["params"].get("uri", message["method"])


class Scene:
    """
    A server and its streams, which are told of the same topics.
    """

    def __init__(self, project, server, streams, expected) -> None:
        self.project = project
        self.server = server
        self.streams = streams
        self.expected = Counter(expected)

    def log_lines(self, what: str) -> int:
        return len(re.findall(rf"mcp_channels\.hub: {what}", self.server.read_log()))

    async def check_that_all_is_told_once(self, *, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            for stream in self.streams:
                heard = Counter([name_of(await stream.message(timeout)) for _ in range(self.expected.total())])
                assert heard == self.expected

    async def check_that_it_is_quiet(self) -> None:
        await asyncio.gather(*(stream.silence(QUIET) for stream in self.streams))

    async def check_that_saves_arrive(self, pk: int) -> None:
        await asyncio.to_thread(self.project.save, pk)
        for stream in self.streams:
            assert name_of(await stream.message(5)) == f"note://{pk}"


@pytest.mark.parametrize(("kind", "layer"), [("daphne", "pubsub"), ("uvicorn", "core")])
async def test_each_fault_is_over_in_five_seconds_and_told_once(make_project, own_redis, kind, layer):
    project = make_project(REDIS_URL=own_redis.url, **LAYERS[layer])
    server = project.serve(kind)
    broker = Broker(own_redis, layer)
    token, pk = project.token(), project.note()
    asked = {"toolsListChanged": True, "resourceSubscriptions": [f"note://{pk}"]}
    expected = [f"note://{pk}", "notifications/tools/list_changed"]
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(server.port, asked, token=token, id=number))
            for number in range(2)
        ]
        scene = Scene(project, server, streams, expected)
        await scene.check_that_saves_arrive(pk)
        outages = 0
        for name in broker.faults(seconds=0):
            fault = broker.faults(seconds=LASTS.get(name, 0))[name]
            busy = asyncio.create_task(cpu_share(server)) if name == "stopped" else None
            await fault()
            if name in OUTAGES[layer]:
                outages += 1
                await scene.check_that_all_is_told_once(timeout=5)
            await scene.check_that_it_is_quiet()
            await scene.check_that_saves_arrive(pk)
            counts = (scene.log_lines("The channel layer failed"), scene.log_lines("The channel layer is back"))
            assert counts == (outages, outages), name
            if busy is not None:
                assert await busy < 0.2
        assert scene.log_lines(r"\d+ messages of the channel layer were dropped") == 1
        # The layer logs traces of its own; none may pass through this package.
        assert "/mcp_channels/" not in server.read_log()


async def cpu_share(server) -> float:
    """
    How much of a core the server takes, some seconds from here.
    """
    await asyncio.sleep(1.5)
    began, before = time.monotonic(), server.cpu()
    await asyncio.sleep(2)
    return (server.cpu() - before) / (time.monotonic() - began)


async def test_streams_end_as_ever_while_the_layer_is_down(make_project, own_redis):
    project = make_project(REDIS_URL=own_redis.url, **LAYERS["core"])
    server = project.serve("uvicorn")
    token, single = project.token(), project.token("single", max_streams=1)
    asked = {"toolsListChanged": True}
    rows = "result = [models.LiveStream.objects.count(), models.Node.objects.count()]"
    async with AsyncExitStack() as stack:
        for number in range(5):
            await stack.enter_async_context(listening(server.port, asked, token=token, id=number))
        old = await stack.enter_async_context(listening(server.port, asked, token=single))
        async with listening(server.port, asked, token=token):
            own_redis.stop()
        await until(lambda: project.worker.run(rows), [6, 1], seconds=3)
        await stack.enter_async_context(listening(server.port, asked, token=single))
        assert (await old.ending(5))[0]["params"]["reason"] == "superseded"
        await until(lambda: project.worker.run(rows), [6, 1], seconds=3)
        server.terminate()
        async with asyncio.timeout(5):
            await asyncio.to_thread(server.process.wait)
        assert project.worker.run(rows) == [0, 0]
    assert endings(server) == ["client_closed", "superseded"] + ["shutdown"] * 6
