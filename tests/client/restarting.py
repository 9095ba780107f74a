"""
A server that is killed and started again, and writes all the while. Its resources are numbers in a file.
"""

import asyncio
import mmap
import multiprocessing
import random
import socket
import struct
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

from tests.support.processes import wait_for_port

COUNT = 20
URIS = [f"number:{index}" for index in range(COUNT)]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.client.restarting"])


class Numbers:
    """
    Numbers that outlive the processes that change them.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(4 * (COUNT + 1)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def __getitem__(self, index: int) -> int:
        return struct.unpack_from("<I", self._map, 4 * index)[0]

    def __setitem__(self, index: int, value: int) -> None:
        struct.pack_into("<I", self._map, 4 * index, value)

    @property
    def is_written(self) -> bool:
        """
        Whether the writer goes on.
        """
        return not self[COUNT]

    def finish(self) -> None:
        """
        Stop the writer.
        """
        self[COUNT] = 1

    def copy(self) -> dict[str, int]:
        return {uri: self[index] for index, uri in enumerate(URIS)}


def serve(path: Path, port: int) -> None:
    """
    Serve and write, until killed.
    """
    numbers, bus = Numbers(path), InMemorySubscriptionBus()

    async def read(ctx: Any, params: Any) -> types.ReadResourceResult:
        text = str(numbers[URIS.index(params.uri)])
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])

    async def write() -> None:
        while numbers.is_written:
            index = random.randrange(COUNT)
            numbers[index] += 1
            # Killed here, it has written what nobody is told of.
            await asyncio.sleep(0.001)
            await bus.publish(ResourceUpdated(uri=URIS[index]))

    async def run() -> None:
        server = Server("numbers", on_read_resource=read, on_subscriptions_listen=ListenHandler(bus))
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
        writing = asyncio.create_task(write())
        await uvicorn.Server(config).serve(sockets=[listening])
        await writing

    asyncio.run(run())


class Restarting:
    """
    The server's process.
    """

    def __init__(self, path: Path, port: int) -> None:
        self.port = port
        self._arguments = (path, port)
        self.start()

    def start(self) -> None:
        self._process = CONTEXT.Process(target=serve, args=self._arguments)
        self._process.start()
        wait_for_port(self._arguments[1])

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
