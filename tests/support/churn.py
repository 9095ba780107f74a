"""
Streams that are opened and closed in a loop, in every way that clients have: by the book, by a reset before, in and
after the acknowledgment, by half a request, superseded by their own principal, and by the death of the client's
process.
"""

import asyncio
import random
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager

from tests.support.http import listen_body, listen_headers
from tests.support.processes import ROOT
from tests.support.project import Project

TOKENS = """
result = []
for number in range(principals):
    principal = models.Principal.objects.create(name=f"brief {number}", max_streams=1)
    result.append(models.AccessToken.objects.issue(principal)[1])
"""

ACKNOWLEDGED = b"notifications/subscriptions/acknowledged"
RESET = struct.pack("ii", 1, 0)
DEADLINE = 30.0
KILLED_AT_ONCE = 20

MIX = {
    "closed": 8,
    "reset_before": 4,
    "reset_during": 4,
    "reset_after": 6,
    "half_head": 2,
    "half_body": 2,
    "superseded": 4,
    "failing": 2,
}
"""The ways to end, and how often each is taken."""


def make_tokens(project: Project, principals: int) -> list[str]:
    """
    Tokens of so many principals, each with a cap of one stream.
    """
    return project.worker.run(TOKENS, principals=principals)


class ChurnError(AssertionError):
    """
    A stream was not answered as it must be.
    """


class Churn:
    """
    Clients of one server. ``tokens`` are of principals with a cap of one stream, which supersede their own; ``token``
    is of one without a cap that matters.
    """

    def __init__(self, port: int, *, token: str, tokens: Sequence[str], seed: int = 0) -> None:
        self.port = port
        self.done: Counter[str] = Counter()
        self._token = token
        self._tokens = _cycle(tokens)
        self._random = random.Random(seed)
        self._number = 0

    async def run(self, streams: int, *, concurrency: int = 16, each: Callable[[int], None] | None = None) -> None:
        """
        Open and close so many streams; ``each`` is called with the number of those that are through.
        """
        left = iter(range(streams))
        through = 0

        async def work() -> None:
            nonlocal through
            for _ in left:
                await self.one(self._random.choices(list(MIX), MIX.values())[0])
                through += 1
                if each is not None:
                    each(through)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())

    async def one(self, way: str) -> None:
        """
        Open and close one stream.
        """
        async with asyncio.timeout(DEADLINE):
            await getattr(self, f"_{way}")()
        self.done[way] += 1

    @asynccontextmanager
    async def holding(self, number: int) -> AsyncIterator[None]:
        """
        So many open streams, for as long as the block.
        """
        with ExitStack() as stack:
            async with asyncio.timeout(DEADLINE):
                for _ in range(number):
                    await self._open(stack.enter_context(self._connection()))
            yield

    async def kill_clients(self, number: int = KILLED_AT_ONCE) -> None:
        """
        Open streams from another process, and kill that.
        """
        request = self._request(id_=1)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.churn", str(self.port), str(number)),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            process.stdin.write(request)
            process.stdin.write_eof()
            async with asyncio.timeout(DEADLINE):
                await process.stdout.readline()
        finally:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        self.done["killed"] += number

    # The ways

    async def _closed(self) -> None:
        with self._connection() as connection:
            await self._open(connection)

    async def _reset_before(self) -> None:
        with self._connection() as connection:
            await self._send(connection, self._request())
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.uniform(0, 0.01))
            self._reset(connection)

    async def _reset_during(self) -> None:
        with self._connection() as connection:
            await self._send(connection, self._request())
            # Less than the head, so that the acknowledgment is under way.
            await asyncio.get_running_loop().sock_recv(connection, 20)
            self._reset(connection)

    async def _reset_after(self) -> None:
        with self._connection() as connection:
            await self._open(connection)
            self._reset(connection)

    async def _half_head(self) -> None:
        with self._connection() as connection:
            request = self._request()
            await self._send(connection, request[: self._random.randrange(1, request.index(b"\r\n\r\n"))])

    async def _half_body(self) -> None:
        with self._connection() as connection:
            request = self._request()
            await self._send(
                connection, request[: self._random.randrange(request.index(b"\r\n\r\n") + 4, len(request))]
            )
            if self._random.random() < 0.5:
                self._reset(connection)

    async def _superseded(self) -> None:
        token = next(self._tokens)
        with self._connection() as one, self._connection() as two:
            await self._open(one, token=token)
            await self._open(two, token=token)
            if b'"superseded"' not in await self._read_to_end(one):
                raise ChurnError("A stream was not superseded")

    async def _failing(self) -> None:
        """
        The acknowledgment can't be written.
        """
        with self._connection() as connection:
            await self._send(connection, self._request(path="/fault/pages/mcp"))
            await asyncio.get_running_loop().sock_recv(connection, 65536)

    # How

    def _connection(self) -> socket.socket:
        connection = socket.socket()
        connection.settimeout(0)
        return connection

    def _reset(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()

    async def _send(self, connection: socket.socket, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", self.port))
        await loop.sock_sendall(connection, data)

    async def _open(self, connection: socket.socket, *, token: str | None = None) -> None:
        await self._send(connection, self._request(token=token))
        received = b""
        while ACKNOWLEDGED not in received:
            data = await asyncio.get_running_loop().sock_recv(connection, 65536)
            if not data:
                raise ChurnError(f"A listen was answered {received[:500]!r}")
            received += data

    async def _read_to_end(self, connection: socket.socket) -> bytes:
        received = b""
        # A kept connection stays open behind the end of the body.
        while not received.endswith(b"\r\n0\r\n\r\n"):
            data = await asyncio.get_running_loop().sock_recv(connection, 65536)
            if not data:
                break
            received += data
        return received

    def _request(self, *, token: str | None = None, path: str = "/pages/mcp", id_: int | None = None) -> bytes:
        self._number += 1
        # One URI that all share, and some that nobody else asks for.
        uris = ["page:shared", *(f"page:{self._number}-{number}" for number in range(self._random.randrange(4)))]
        asked = {"resourceSubscriptions": uris, "toolsListChanged": True}
        body = listen_body(asked, id=self._number if id_ is None else id_)
        headers = {
            "Host": f"127.0.0.1:{self.port}",
            "Authorization": f"Bearer {token or self._token}",
            "Content-Length": str(len(body)),
            **listen_headers(),
        }
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return head.encode() + b"\r\n" + body


def _cycle(tokens: Sequence[str]) -> Iterator[str]:
    while True:
        yield from tokens


def hold(port: int, number: int, request: bytes) -> None:
    """
    Open streams, say so, and keep them until somebody ends this process.
    """
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
    for connection in connections:
        connection.sendall(request)
    for connection in connections:
        received = b""
        while ACKNOWLEDGED not in received:
            received += connection.recv(65536)
    print("open", flush=True)
    signal.pause()


if __name__ == "__main__":
    hold(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer.read())
