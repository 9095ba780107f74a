"""
The official servers, and this project's, each with two resources that can be changed; and a way to cut connections.
"""

import asyncio
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)

from tests.clients import node
from tests.support.processes import wait_for_port
from tests.support.project import Project

SOURCE = Path(__file__).parent / "typescript"


class Official(Protocol):
    """
    A server with two resources, whose content is another after each change.
    """

    port: int
    modern: str
    """The path of the modern endpoint."""
    legacy: str
    """The path of the legacy one."""
    uris: list[str]
    token: str | None

    def change(self, what: str) -> None:
        """
        Change a resource, or the list of ``tools`` (Python: of ``resources``, too).
        """

    def stop(self) -> None:
        """
        End it.
        """


class PythonServer:
    """
    The official Python SDK's server, on uvicorn in a thread. One endpoint serves both eras.
    """

    modern = legacy = "/mcp"
    token = None

    def __init__(self) -> None:
        self.uris = ["note://1", "note://2"]
        self.versions = dict.fromkeys(self.uris, 0)
        self.bus = InMemorySubscriptionBus()
        self.sessions: dict[str, tuple[Any, set[str]]] = {}
        server = Server(
            "python",
            on_list_tools=self._list_tools,
            on_list_resources=self._list_resources,
            on_read_resource=self._read,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=ListenHandler(self.bus),
        )
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(server.streamable_http_app(), log_level="error", timeout_graceful_shutdown=1)
        self._uvicorn = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, args=[listening])
        self._thread.start()
        wait_for_port(self.port)

    def _run(self, listening: socket.socket) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._uvicorn.serve(sockets=[listening]))

    def change(self, what: str) -> None:
        self._await(self._change(what))

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(10)

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(5)

    async def _change(self, what: str) -> None:
        if what == "tools":
            await self.bus.publish(ToolsListChanged())
        elif what == "resources":
            self.uris.append(f"note://{len(self.uris) + 1}")
            await self.bus.publish(ResourcesListChanged())
        else:
            self.versions[what] += 1
            await self.bus.publish(ResourceUpdated(uri=what))
        for session, uris in self.sessions.values():
            if what == "tools":
                await session.send_tool_list_changed()
            elif what in uris:
                await session.send_resource_updated(what)

    async def _list_tools(self, ctx, params) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[])

    async def _list_resources(self, ctx, params) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(uri=uri, name=uri) for uri in self.uris])

    async def _read(self, ctx, params) -> types.ReadResourceResult:
        text = str(self.versions[params.uri])
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])

    async def _subscribe(self, ctx, params) -> types.EmptyResult:
        if params.uri not in self.versions:
            raise MCPError(-32002, f"No resource {params.uri}")
        self._session(ctx).add(params.uri)
        return types.EmptyResult()

    async def _unsubscribe(self, ctx, params) -> types.EmptyResult:
        self._session(ctx).discard(params.uri)
        return types.EmptyResult()

    def _session(self, ctx) -> set[str]:
        # The SDK makes a session object for each request.
        return self.sessions.setdefault(ctx.request.headers["mcp-session-id"], (ctx.session, set()))[1]


class TypeScriptServer:
    """
    The official TypeScript server, in a process; see ``typescript/serve.mjs``.
    """

    modern, legacy = "/modern", "/legacy"
    token = None

    def __init__(self, directory: Path) -> None:
        self.uris = ["note://1", "note://2"]
        (directory / "node_modules").symlink_to(node.installed(SOURCE) / "node_modules")
        script = shutil.copy(SOURCE / "serve.mjs", directory)
        command = [node.tool("node", purpose="it runs the official TypeScript server"), script]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self._process.stdout.readline())

    def change(self, what: str) -> None:
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{what}\n"

    def stop(self) -> None:
        self._process.communicate()


class ProjectServer:
    """
    This project's endpoint.
    """

    modern = legacy = "/mcp"

    def __init__(self, project: Project) -> None:
        self._project = project
        server = project.serve("uvicorn")
        self.port = server.port
        self.token = project.token()
        self.uris = [f"note://{project.note()}" for _ in range(2)]

    def change(self, what: str) -> None:
        if what == "tools":
            self._project.worker.run("notify.notify_tools_changed()")
        else:
            self._project.save(int(what.removeprefix("note://")))

    def stop(self) -> None:
        self._project.stop()


class Proxy:
    """
    A TCP proxy to a port of this host, whose connections can be cut.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.accepted = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """
        Break every connection that is open.
        """
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        other, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._pass(reader, back), self._pass(other, writer))
        finally:
            self._writers -= {writer, back}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


def text(result: types.ReadResourceResult) -> str:
    """
    What a resource contains; of a note, its body.
    """
    content = result.contents[0].text
    return content if content.isdigit() else json.loads(content)["body"]
