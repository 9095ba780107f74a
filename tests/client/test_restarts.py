"""
A server that is killed again and again, while it writes.
"""

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from mcp_channels.client import ListenClient, Notification, Relisten, Resynchronised, Watch
from tests.client.restarting import COUNT, URIS, Numbers, Restarting
from tests.support.processes import free_port

RESTARTS = 50
PATIENCE = 5.0


@pytest.fixture
def server(tmp_path) -> Iterator[Restarting]:
    server = Restarting(tmp_path / "numbers", free_port())
    yield server
    server.kill()


async def test_after_fifty_restarts_under_a_writer_the_copy_is_the_servers(server, tmp_path, no_task_is_left):
    numbers = Numbers(tmp_path / "numbers")
    copy: dict[str, int] = {}
    told = resynchronised = 0

    async def mirror(client: ListenClient, watch: Watch) -> None:
        nonlocal told, resynchronised

        async def read() -> None:
            while True:
                try:
                    copy[watch.uri] = int((await client.read_resource(watch.uri)).contents[0].text)
                except Exception:  # whatever: the server is being killed
                    await asyncio.sleep(0.05)
                else:
                    return

        await read()
        async for event in watch:
            told += isinstance(event, Notification)
            resynchronised += isinstance(event, Resynchronised)
            await read()

    policy = Relisten(first_delay=0.1, longest_delay=1.0)
    async with ListenClient(f"http://127.0.0.1:{server.port}/mcp", relisten=policy, read_timeout=10) as client:
        watches = await asyncio.gather(*(client.watch(uri) for uri in URIS))
        mirrors = [asyncio.create_task(mirror(client, watch)) for watch in watches]
        for _ in range(RESTARTS):
            await asyncio.sleep(random.uniform(0.02, 0.2))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        restarted = time.monotonic()
        await asyncio.sleep(0.2)
        numbers.finish()
        while copy != numbers.copy() and time.monotonic() < restarted + PATIENCE:
            await asyncio.sleep(0.01)
        assert copy == numbers.copy()
        assert [watch.error for watch in watches] == [None] * COUNT
        assert len(client._watches._streams) == 1
        print(
            f"\n{RESTARTS} restarts, {sum(copy.values())} changes, {told} told, {resynchronised} resynchronised;"
            f" equal {time.monotonic() - restarted:.2f} s after the last restart"
        )
        for task in mirrors:
            task.cancel()
        await asyncio.gather(*mirrors, return_exceptions=True)
    # It was told of changes, and of gaps.
    assert told > 0
    assert resynchronised >= COUNT
