"""
Raw HTTP/1.1 over a socket: requests as they are on the wire, and listen streams read frame by frame.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

VERSION = "2026-07-28"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
DEADLINE = 10.0


class Ended(Exception):  # noqa: N818  # no fault
    """
    The response's body is over.
    """


class Response:
    """
    A response whose head has been read.
    """

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: list[tuple[str, str]]) -> None:
        self.status = status
        self.headers = headers
        self._reader = reader
        self._buffer = b""
        self._over = False
        self.comments = 0
        self.raw = b""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    async def chunk(self) -> bytes:
        """
        The next piece of the body; empty at its end. A connection that is cut raises ``IncompleteReadError``.
        """
        if self._over:
            return b""
        if (self.header("transfer-encoding") or "").lower() == "chunked":
            size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
            data = await self._reader.readexactly(size)
            await self._reader.readexactly(2)
            self._over = size == 0
        elif (length := self.header("content-length")) is not None:
            data = await self._reader.readexactly(int(length))
            self._over = True
        else:
            data = await self._reader.read(65536)
            self._over = not data
        self.raw += data
        return data

    async def body(self) -> bytes:
        """
        The whole body.
        """
        async with asyncio.timeout(DEADLINE):
            parts = []
            while part := await self.chunk():
                parts.append(part)
                if self._over:
                    break
            return b"".join(parts)

    async def json(self) -> Any:
        return json.loads(await self.body())

    async def frame(self, timeout: float = DEADLINE) -> bytes:
        """
        The next SSE frame, comments included, without its blank line. Raises ``Ended`` at the end of the body.
        """
        async with asyncio.timeout(timeout):
            while b"\r\n\r\n" not in self._buffer:
                data = await self.chunk()
                if not data:
                    raise Ended
                self._buffer += data
        frame, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return frame

    async def message(self, timeout: float = DEADLINE) -> dict[str, Any]:
        """
        The next JSON-RPC message. Comments are counted and skipped.
        """
        async with asyncio.timeout(timeout):
            while True:
                frame = await self.frame(timeout)
                if frame.startswith(b":"):
                    self.comments += 1
                    continue
                event, data = frame.split(b"\r\n")
                assert event == b"event: message"
                assert data.startswith(b"data: ")
                return json.loads(data.removeprefix(b"data: "))

    async def silence(self, seconds: float) -> None:
        """
        Check that no message comes for some time.
        """
        try:
            message = await self.message(seconds)
        except TimeoutError:
            return
        raise AssertionError(f"expected nothing, got {message}")

    async def ending(self, timeout: float = DEADLINE) -> list[dict[str, Any]]:
        """
        What is left up to the end of the body.
        """
        messages = []
        try:
            while True:
                messages.append(await self.message(timeout))
        except Ended:
            return messages


def listen_body(notifications: Any = None, *, id: Any = 1, meta: Any = META, **params: Any) -> bytes:
    """
    The body of a listen request.
    """
    asked = {} if notifications is None else {"notifications": notifications}
    message = {"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen"}
    message["params"] = {**asked, **({} if meta is None else {"_meta": meta}), **params}
    return json.dumps(message).encode()


def asgi_scope(**headers: str) -> dict[str, Any]:
    """
    The scope of a listen request as a server makes it; ``headers`` are added.
    """
    pairs = {**listen_headers(), "Host": "127.0.0.1", **headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in pairs.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


def listen_headers(**changes: str | None) -> dict[str, str]:
    """
    The headers of a listen request; None takes one out. Underscores stand for hyphens.
    """
    headers: dict[str, str | None] = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "subscriptions/listen",
    }
    names = {name.lower(): name for name in headers}
    for name, value in changes.items():
        key = name.replace("_", "-")
        headers[names.get(key.lower(), key)] = value
    return {name: value for name, value in headers.items() if value is not None}


@asynccontextmanager
async def request(
    port: int,
    *,
    path: str = "/mcp",
    method: str = "POST",
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    body: bytes | Sequence[bytes] = b"",
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    source: str | None = None,
) -> AsyncIterator[Response]:
    """
    Send a request, and read the head of its response. A sequence of bodies is sent piece by piece. ``source`` is the
    address to come from.
    """
    pieces = [body] if isinstance(body, bytes) else list(body)
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    given = {name.lower() for name, _ in pairs}
    if "host" not in given:
        pairs.append(("Host", f"127.0.0.1:{port}"))
    if token is not None:
        pairs.append(("Authorization", f"Bearer {token}"))
    if not given & {"content-length", "transfer-encoding"}:
        pairs.append(("Content-Length", str(sum(map(len, pieces)))))
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in pairs) + "\r\n"
    local = None if source is None else (source, 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24, ssl=tls, local_addr=local)
    try:
        writer.write(head.encode("latin-1"))
        for piece in pieces:
            writer.write(piece)
            if len(pieces) > 1:
                await writer.drain()
                await asyncio.sleep(0.05)
        async with asyncio.timeout(DEADLINE):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        parsed = [line.partition(":") for line in lines[1:] if line]
        response = Response(reader, int(lines[0].split()[1]), [(key, value.strip()) for key, _, value in parsed])
        yield response
    finally:
        if tls is None:
            writer.close()
        else:
            # As a client that dies; asyncio's goodbye waits for the other side's.
            writer.transport.abort()
        # A server that was killed resets the connection.
        try:
            await writer.wait_closed()
        except OSError:
            pass


@asynccontextmanager
async def listen(
    port: int,
    notifications: Any = None,
    *,
    token: str | None = None,
    path: str = "/mcp",
    id: Any = 1,
    tls: ssl.SSLContext | None = None,
    source: str | None = None,
    **changes: Any,
) -> AsyncIterator[Response]:
    """
    Open a listen stream.
    """
    body = listen_body(notifications, id=id)
    headers = listen_headers(**changes)
    async with request(port, path=path, headers=headers, body=body, token=token, tls=tls, source=source) as response:
        yield response


@asynccontextmanager
async def listening(port: int, notifications: Any = None, *, id: Any = 1, **options: Any) -> AsyncIterator[Response]:
    """
    Open a listen stream, and read its acknowledgment; the honoured filter is ``response.honoured``. The options are
    those of ``listen``.
    """
    async with listen(port, notifications, id=id, **options) as response:
        await acknowledged(response, id)
        yield response


async def acknowledged(response: Response, id: Any = 1) -> None:
    """
    Read the acknowledgment of a listen stream.
    """
    if response.status != 200:
        raise AssertionError(f"{response.status}: {await response.body()!r}")
    message = await response.message()
    assert message["method"] == "notifications/subscriptions/acknowledged"
    assert message["params"]["_meta"][SUBSCRIPTION_ID] == id
    response.honoured = message["params"]["notifications"]


async def call(
    port: int, method: str, params: dict[str, Any] | None = None, *, token: str | None = None, path: str = "/mcp"
) -> Any:
    """
    Send another request than listen, and return its JSON-RPC answer.
    """
    params = params or {}
    headers = listen_headers(mcp_method=method)
    name = params.get("name") or params.get("uri")
    if name is not None and method in ("tools/call", "prompts/get", "resources/read"):
        headers["Mcp-Name"] = name
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    body = json.dumps(message).encode()
    async with request(port, path=path, headers=headers, body=body, token=token) as response:
        return await response.json()
