"""
A channel layer that is down, slow or restarted.
"""

import asyncio
import re
from contextlib import AsyncExitStack

import pytest

from tests.support.http import listening
from tests.support.project import LAYERS

SAVE = """
import time
note = Note.objects.get(pk=pk)
result = []
for _ in range(20):
    started = time.perf_counter()
    note.save()
    result.append(time.perf_counter() - started)
    time.sleep(0.01)
"""


@pytest.fixture(params=["pubsub", "core"])
def fragile(request, make_project, own_redis):
    """
    A project whose Redis the test may stop.
    """
    return make_project(REDIS_URL=own_redis.url, **LAYERS[request.param])


@pytest.mark.parametrize("failure", ["stop", "pause"])
async def test_a_broken_layer_makes_no_save_raise_or_wait(fragile, own_redis, failure):
    pk = fragile.note()
    getattr(own_redis, failure)()
    try:
        took = await asyncio.to_thread(fragile.worker.run, SAVE, flush=False, pk=pk)
        await asyncio.sleep(1)
    finally:
        if failure == "pause":
            own_redis.resume()
    # A save is a write to SQLite; the median leaves out what this machine was busy with otherwise.
    assert sorted(took)[len(took) // 2] < 0.05, took
    log = (fragile.directory / "worker.log").read_text()
    assert len(re.findall(r"mcp_channels\.publisher: The channel layer failed", log)) <= 1


async def test_an_outage_is_logged_once(fragile, own_redis):
    pk = fragile.note()
    own_redis.stop()
    for _ in range(3):
        await asyncio.to_thread(fragile.worker.run, SAVE, flush=False, pk=pk)
        await asyncio.sleep(1)
    log = (fragile.directory / "worker.log").read_text()
    assert len(re.findall(r"mcp_channels\.publisher: The channel layer failed", log)) == 1


async def test_a_process_that_exits_during_an_outage_does_not_hang(fragile, own_redis):
    pk = fragile.note()
    own_redis.stop()
    worker = fragile.new_worker()
    worker.run("Note.objects.get(pk=pk).save()", flush=False, pk=pk)
    async with asyncio.timeout(8):
        assert await asyncio.to_thread(worker.stop) == 0


async def test_streams_outlive_an_outage_and_hear_of_what_changed_in_it(fragile, own_redis):
    server = fragile.serve("uvicorn")
    token = fragile.token()
    pks = [fragile.note() for _ in range(5)]
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                listening(server.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=token)
            )
            for pk in pks
        ]
        own_redis.stop()
        await asyncio.sleep(2)
        for pk in pks:
            fragile.worker.run("Note.objects.get(pk=pk).save()", flush=False, pk=pk)
        await asyncio.sleep(1)
        own_redis.start()
        for stream, pk in zip(streams, pks, strict=True):
            assert (await stream.message(timeout=10))["params"]["uri"] == f"note://{pk}"
        # And from then on each save arrives.
        await asyncio.sleep(3)
        for stream, pk in zip(streams, pks, strict=True):
            fragile.save(pk)
            assert (await stream.message(timeout=5))["params"]["uri"] == f"note://{pk}"
    log = server.read_log()
    assert log.count("mcp_channels.hub: The channel layer failed") == 1
    assert log.count("mcp_channels.hub: The channel layer is back") == 1


async def test_a_stream_that_opens_during_an_outage_hears_of_changes_after_it(fragile, own_redis):
    server = fragile.serve("uvicorn")
    token, pk = fragile.token(), fragile.note()
    own_redis.stop()
    async with listening(server.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=token) as stream:
        own_redis.start()
        assert (await stream.message(timeout=10))["params"]["uri"] == f"note://{pk}"
        await asyncio.sleep(1)
        fragile.save(pk)
        assert (await stream.message(timeout=5))["params"]["uri"] == f"note://{pk}"


async def test_a_short_cut_of_the_connection_loses_nothing(fragile, own_redis):
    """
    The layer reconnects by itself within milliseconds, and tells nobody.
    """
    import redis as client

    server = fragile.serve("uvicorn")
    token, pk = fragile.token(), fragile.note()
    admin = client.Redis(port=own_redis.port)
    async with listening(server.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=token) as stream:
        for _ in range(3):
            for kind in ("pubsub", "normal"):
                admin.client_kill_filter(_type=kind, skipme=True)
            # Whatever was published in the gap, the stream must be told that it may have missed something.
            assert (await stream.message(timeout=10))["params"]["uri"] == f"note://{pk}"
            await asyncio.sleep(0.5)


async def test_clients_may_leave_and_come_during_an_outage(fragile, own_redis):
    server = fragile.serve("daphne")
    token, pk = fragile.token(), fragile.note()
    asked = {"resourceSubscriptions": [f"note://{pk}"]}
    async with listening(server.port, asked, token=token):
        own_redis.stop()
    for _ in range(3):
        async with listening(server.port, asked, token=token):
            pass
    server.terminate()
    async with asyncio.timeout(5):
        await asyncio.to_thread(server.process.wait)
    # channels_redis logs traces of its own; none may pass through this package.
    assert "/mcp_channels/" not in server.read_log()


async def test_a_layer_that_forgets_everything_is_found_out_within_seconds(fragile, own_redis):
    """
    Nothing fails: sends go through and reach nobody.
    """
    import redis as client

    server = fragile.serve("uvicorn")
    token, pk = fragile.token(), fragile.note()
    async with listening(server.port, {"resourceSubscriptions": [f"note://{pk}"]}, token=token) as stream:
        await asyncio.sleep(1)
        client.Redis(port=own_redis.port).flushall()
        fragile.save(pk)
        assert (await stream.message(timeout=5))["params"]["uri"] == f"note://{pk}"
        await asyncio.sleep(1)
        fragile.save(pk)
        assert (await stream.message(timeout=1))["params"]["uri"] == f"note://{pk}"
