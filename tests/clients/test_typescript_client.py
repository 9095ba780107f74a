"""
The official TypeScript client against the example project; ``typescript/listen.mjs`` tells what it sees.
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients import node
from tests.support.http import call
from tests.support.processes import Server
from tests.support.project import Project

SOURCE = Path(__file__).parent / "typescript"
DEADLINE = 15.0
ENDING_DEADLINE = 5.0
CHANGES = ("notification", "content", "tools")


class Listener:
    """
    A running ``listen.mjs``.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def said(
        self,
        event: str,
        matches: Callable[[dict[str, Any]], bool] = lambda saying: True,
        *,
        timeout: float = DEADLINE,
    ) -> dict[str, Any]:
        """
        The next thing that it says of ``event`` and that ``matches``. Up to then it may speak of other changes: a note
        that was made just before is one as well.
        """
        async with asyncio.timeout(timeout):
            while True:
                line = await self.process.stdout.readline()
                if not line:
                    errors = (await self.process.stderr.read()).decode()
                    raise AssertionError(f"expected {event}, but it ended: {errors}")
                saying = json.loads(line)
                if saying["event"] == event and matches(saying):
                    return saying
                assert saying["event"] in CHANGES, saying

    async def exit_status(self) -> int:
        """
        How it exits, once it has said all.
        """
        async with asyncio.timeout(ENDING_DEADLINE):
            rest, errors = await self.process.communicate()
        assert (rest, errors) == (b"", b"")
        return self.process.returncode


@pytest.fixture(scope="module")
def packages() -> Path:
    """
    The directory with the client's packages.
    """
    return node.installed(SOURCE)


@pytest.fixture
def script(packages: Path, tmp_path: Path) -> Path:
    """
    The script, where it finds its packages: Node.js looks for a module's imports beside the module.
    """
    directory = tmp_path / "typescript"
    directory.mkdir()
    (directory / "node_modules").symlink_to(packages / "node_modules")
    return Path(shutil.copy(SOURCE / "listen.mjs", directory))


@asynccontextmanager
async def running(script: Path, server: Server, *, token: str, uri: str) -> AsyncIterator[Listener]:
    """
    The script against ``server``, ended if it is still there at the end.
    """
    process = await asyncio.create_subprocess_exec(
        node.tool("node", purpose="it runs the official TypeScript client"),
        script,
        env={**os.environ, "MCP_URL": f"{server.url}/mcp", "MCP_TOKEN": token, "MCP_RESOURCE": uri},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Listener(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def listening(listener: Listener, uri: str) -> None:
    """
    Wait until it listens, and check what it saw up to then.
    """
    connected = await listener.said("connected")
    assert connected["version"] == "2026-07-28"
    assert connected["server"]["name"] == "notes"
    listed = await listener.said("listed")
    assert listed["resources"] == [uri]
    assert listed["templates"] == ["note://{pk}"]
    assert listed["prompts"] == ["summarise_note"]
    assert {"create_note", "update_note", "delete_note", "add_tool", "remove_tool"} <= set(listed["tools"])
    content = await listener.said("content")
    assert (content["uri"], json.loads(content["text"])["body"]) == (uri, "before")
    acknowledged = await listener.said("acknowledged")
    assert acknowledged["honoured"] == {"resourceSubscriptions": [uri], "toolsListChanged": True}


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_the_client_is_told_of_changes_and_reads_them_until_the_server_stops(
    project: Project, script: Path, kind: str
) -> None:
    _ = project.worker
    server, token = project.serve(kind), project.token()
    pk = project.note(body="before")
    uri = f"note://{pk}"
    async with running(script, server, token=token, uri=uri) as listener:
        await listening(listener, uri)

        for body in ("before.", "before.."):
            project.save(pk)
            told = await listener.said("notification")
            assert (told["method"], told["params"]["uri"]) == ("notifications/resources/updated", uri)
            await listener.said("content", lambda saying, body=body: json.loads(saying["text"])["body"] == body)

        await call(server.port, "tools/call", {"name": "add_tool", "arguments": {"name": "extra"}}, token=token)
        await listener.said("notification", lambda saying: saying["method"] == "notifications/tools/list_changed")
        await listener.said("tools", lambda saying: "extra" in saying["names"])

        server.terminate()
        cancelled = await listener.said("cancelled", timeout=ENDING_DEADLINE)
        assert cancelled["params"]["reason"] == "shutdown"
        # The client calls an end graceful if the result comes, and nothing before it says the same.
        assert (await listener.said("ended"))["how"] == "remote"
        assert await listener.exit_status() == 0


@pytest.mark.parametrize("kind", ["daphne", "uvicorn"])
async def test_the_client_ends_its_subscription_without_an_error(project: Project, script: Path, kind: str) -> None:
    _ = project.worker
    server, token = project.serve(kind), project.token()
    uri = f"note://{project.note(body='before')}"
    async with running(script, server, token=token, uri=uri) as listener:
        await listening(listener, uri)
        listener.process.stdin.close()
        assert (await listener.said("ended"))["how"] == "local"
        assert await listener.exit_status() == 0
