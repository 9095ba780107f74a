"""
Clients that stop reading, and clients that read slowly, on real servers.
"""

import asyncio
import json
import time

import pytest

from benchmarks.crowd import Crowd, connect, is_cut, latencies
from benchmarks.slow import Reader
from tests.support.processes import SERVERS, UVLOOP

BUFFER = 1024
"""``SO_RCVBUF`` of the clients; the system makes it its least."""

PUBLISH = """
import time
result = []
for number in range(count):
    if number % 100 == 0:
        result.append(time.monotonic())
        notify.notify_resource_updated(probe)
        time.sleep(pause)
    notify.notify_resource_updated(uris[number % len(uris)])
"""


@pytest.fixture
def limited(make_project, redis):
    """
    A function that serves the example project with notes, and settings of its own.
    """

    def serve(kind, notes, **settings):
        project = make_project(REDIS_URL=redis.url, MCP_CHANNELS_JSON=json.dumps(settings))
        uris = project.worker.run(
            "keys = [Note.objects.create(title='n', shared=True).pk for _ in range(notes)]\n"
            "result = [f'note://{pk}' for pk in keys]",
            notes=notes,
        )
        arguments = ["--backpressure", "500"] if kind == "granian" else []
        return project, project.serve(kind, arguments=arguments), uris

    return serve


async def until(done, seconds: float) -> float:
    """
    Wait until something is so, and return how long it took.
    """
    started = time.monotonic()
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(done):
            await asyncio.sleep(0.05)
    return time.monotonic() - started


@pytest.mark.parametrize("kind", [*SERVERS, UVLOOP])
async def test_clients_that_stop_reading_cost_little_disturb_nobody_and_are_ended(limited, kind):
    project, server, uris = limited(kind, 101, SEND_TIMEOUT=4)
    token, capped = project.token("many"), project.token("one", max_streams=1)
    publisher = project.new_worker()
    publisher.run("result = None")
    count = "result = models.LiveStream.objects.filter(principal__name=name).count()"
    crowd, probe = Crowd(), uris[0]
    opened = []

    def open_many(**options):
        opened.extend(connect(server.port, token, uris, number, **options) for number in range(100))
        return opened[-100:]

    try:
        reader = connect(server.port, token, uris[:1], 0, watched=uris[:1])
        crowd.add(reader)
        quiet = open_many()
        before, descriptors = server.rss(), server.descriptors()
        for stream in quiet:
            stream.socket.close()
        await until(lambda: project.worker.run(count, name="many") == 1, 5)
        stalled = open_many(receive_buffer=BUFFER)
        outdone = connect(server.port, capped, uris, 1, receive_buffer=BUFFER)
        opened.append(outdone)
        published = await asyncio.to_thread(publisher.run, PUBLISH, uris=uris, probe=probe, count=20_000, pause=0.005)
        peak = server.rss()
        assert peak - before < 100 * 64 * 1024

        # One whose end its client doesn't take gives up its place all the same.
        started = time.monotonic()
        successor = await asyncio.to_thread(connect, server.port, capped, uris[:1], 2)
        opened.append(successor)
        await until(lambda: project.worker.run(count, name="one") == 1, 3)
        assert time.monotonic() - started < 2.5

        await until(lambda: all(map(is_cut, stalled)), 20)
        await until(lambda: project.worker.run(count, name="many") == 1, 3)
        assert is_cut(outdone)
        assert not is_cut(successor)
        assert server.descriptors() <= descriptors - 100 + 5
        assert not crowd.ended
        assert max(latencies(published, reader.heard[probe])) < 2
        assert "Traceback" not in server.read_log()
    finally:
        crowd.close()
        for stream in opened:
            stream.socket.close()


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_a_client_that_reads_slowly_hears_of_everything_after_its_last_change(limited, kind):
    """
    What is written at once takes it longer than SEND_TIMEOUT to read.
    """
    project, server, uris = limited(kind, 20, SEND_TIMEOUT=2)
    slow = connect(server.port, project.token("slow"), uris, 1, receive_buffer=BUFFER, watched=uris)
    reading = Reader([slow], rate=100, bytes_at_once=10)
    reading.start()
    try:
        publish = "for _ in range(200):\n  for uri in uris:\n    notify.notify_resource_updated(uri)"
        for _ in range(5):
            await asyncio.to_thread(project.worker.run, publish, uris=uris)
        last = time.monotonic()
        took = await until(lambda: all(at and at[-1] > last for at in slow.heard.values()), 20)
        assert slow.ended is None
        assert took > 2
    finally:
        reading.over.set()
        reading.join()
        slow.socket.close()
