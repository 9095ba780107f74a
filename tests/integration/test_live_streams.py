"""
The rows of open streams, as the command line shows and ends them.
"""

import asyncio
import json

from tests.support.http import listening


async def test_the_command_shows_a_stream_and_ends_it(project):
    server = project.serve("uvicorn")
    token = project.token("robot")
    async with listening(server.port, {"toolsListChanged": True}, token=token) as stream:
        done = await asyncio.to_thread(project.manage, "mcp_streams", "--json")
        [row] = json.loads(done.stdout)
        assert (row["principal"], row["kinds"], row["client_name"]) == ("robot", ["toolsListChanged"], "tests")
        await asyncio.to_thread(project.manage, "mcp_streams", "--disconnect", str(row["id"]))
        async with asyncio.timeout(5):
            assert (await stream.ending())[0]["params"]["reason"] == "revoked"
    done = await asyncio.to_thread(project.manage, "mcp_streams", "--json")
    assert json.loads(done.stdout) == []
