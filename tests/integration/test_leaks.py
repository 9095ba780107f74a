"""
Streams that are opened and closed in every way leave nothing behind: in the process, the layer or the database.
"""

import asyncio
from contextlib import suppress

import pytest

from tests.support.churn import Churn, make_tokens
from tests.support.http import listening
from tests.support.leftovers import INSIGHT, Leftovers, differences
from tests.support.project import LAYERS


def has_looked(found):
    """
    Whether the node has begun to look at the database, which it does in a thread of its own.
    """
    return "mcp_channels-node_0" in found["inside"]["threads"]


TROUBLE = ("Traceback", "Task was destroyed", "never retrieved", "took too long")


@pytest.mark.parametrize(("kind", "layer"), [("uvicorn", "core"), ("daphne", "pubsub")])
async def test_hundreds_of_streams_leave_nothing_behind(make_project, own_redis, kind, layer):
    project = make_project(REDIS_URL=own_redis.url, **LAYERS[layer])
    server = project.serve(kind, application=INSIGHT)
    churn = Churn(server.port, token=project.token(), tokens=make_tokens(project, 50), seed=4)
    leftovers = Leftovers(project, server, own_redis)
    asked = {"toolsListChanged": True, "resourceSubscriptions": ["page:shared"]}
    async with listening(server.port, asked, token=project.token("staying"), path="/pages/mcp") as staying:
        # What is made once is there; it asks for nothing that the staying stream doesn't.
        await churn.one("half_body")
        before = await asyncio.to_thread(leftovers.settle, has_looked, timeout=5)
        assert before["rows"] == {"streams": 1, "nodes": 1}
        async with asyncio.TaskGroup() as group:
            group.create_task(churn.run(600))
            group.create_task(churn.kill_clients())
        assert sum(churn.done.values()) >= 620
        after = await asyncio.to_thread(leftovers.settle, lambda found: not differences(before, found), timeout=12)
        assert differences(before, after) == {}
        # A pool keeps what was needed at once; it doesn't grow with the streams.
        assert after["redis"]["connections"] <= before["redis"]["connections"] + 5
        assert after["redis"]["waiting"] <= 5
        # And the one that stayed hears; on a busy machine it may have been told that it missed something.
        with suppress(TimeoutError):
            while True:
                await staying.message(0.3)
        await asyncio.to_thread(project.worker.run, "notify.notify_resource_updated('page:shared')")
        async with asyncio.timeout(5):
            while (await staying.message())["params"].get("uri") != "page:shared":
                pass
    log = server.read_log()
    for trouble in TROUBLE:
        assert trouble not in log
