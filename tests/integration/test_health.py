"""
The health views of the example project, over HTTP.
"""

import asyncio

from tests.support.http import listening, request


async def test_a_server_tells_of_its_streams_and_what_they_need(served):
    async def ask(path, method="GET"):
        async with request(served.port, path=path, method=method) as response:
            assert response.header("cache-control") == "no-store"
            # What answers HEAD has a length, and no body.
            return response.status, await response.json() if method == "GET" else None

    assert await ask("/health/live") == (200, {"status": "ok"})
    assert await ask("/health/ready", "HEAD") == (200, None)
    before = (await ask("/health/ready"))[1]["streams"]
    async with listening(served.port, {"toolsListChanged": True}, token=served.token):
        status, found = await ask("/health/ready")
        assert status == 200
        assert found == {
            "status": "ok",
            "streams": before + 1,
            "max_streams": 10_000,
            "draining": False,
            "layer": "up",
            "database": "up",
        }
    async with asyncio.timeout(5):
        while (await ask("/health/ready"))[1]["streams"] != before:
            await asyncio.sleep(0.02)
