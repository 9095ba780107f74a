"""
What a process says of itself: its streams, its layer and its database, over all of its event loops.
"""

import asyncio
import multiprocessing
import threading

import pytest
from channels.layers import InMemoryChannelLayer

from mcp_channels.listen import hub as hub_module
from mcp_channels.listen.hub import Hub, Status, Tally, status, tallies
from mcp_channels.listen.places import places
from mcp_channels.topics import TOOLS
from tests.listen.test_hub import attached, until


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch):
    monkeypatch.setattr(hub_module, "_hubs", {})
    monkeypatch.setattr(hub_module, "_delivered", {})
    monkeypatch.setattr(places, "taken", 0)


async def test_streams_and_deliveries_are_counted_through_a_streams_end():
    assert status() == Status(0, draining=False, layer="unused", database="unused")
    layer = InMemoryChannelLayer()
    hub = Hub.current(layer)
    async with attached(hub, TOOLS) as (stream, _):
        assert status() == Status(1, draining=False, layer="up", database="unused")
        hub._missed(None)
        await until(lambda: tallies() == {"test": Tally(1, 1)})
        hub.detach(stream)
        hub.detach(stream)
        assert tallies() == {"test": Tally(0, 1)}
        assert status().streams == 0
    assert places.take(1)
    assert status().streams == 1, "a streamed call counts"
    places.give_back()
    hub._membership._down = True
    assert status().layer == "down"
    hub.drain()
    assert status().draining
    await hub.close()


async def test_the_loops_of_a_process_are_added_up_and_the_worst_of_them_tells():
    opened, may_end = threading.Event(), threading.Event()

    async def serve():
        hub = Hub.current(InMemoryChannelLayer())
        async with attached(hub, TOOLS):
            hub._membership._down = True
            opened.set()
            await asyncio.to_thread(may_end.wait, 10)
        await hub.close()

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    try:
        assert await asyncio.to_thread(opened.wait, 5)
        hub = Hub.current(InMemoryChannelLayer())
        async with attached(hub, TOOLS):
            assert status() == Status(2, draining=False, layer="down", database="unused")
            assert tallies() == {"test": Tally(2, 0)}
        await hub.close()
    finally:
        may_end.set()
        thread.join()
    assert status() == Status(0, draining=False, layer="unused", database="unused")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
async def test_a_forked_child_holds_none_of_its_parents_streams():
    hub = Hub.current(InMemoryChannelLayer())
    async with attached(hub, TOOLS):
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        with hub_module._counting:
            process = context.Process(target=lambda: queue.put((status().streams, tallies())))
            process.start()
        assert await asyncio.to_thread(queue.get) == (0, {})
        process.join()
    await hub.close()
