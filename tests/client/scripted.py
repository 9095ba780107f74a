"""
A server that does what a test says, on a socket: modern or legacy, well-behaved or not.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

DEADLINE = 10.0
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
SESSION = "mcp-session-id"
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True, "listChanged": True}}


class Request:
    """
    One HTTP request, and the response that a test makes of it.
    """

    def __init__(self, method: str, headers: dict[str, str], body: bytes, reader, writer) -> None:
        self.method = method
        self.headers = headers
        self.message: dict[str, Any] = json.loads(body) if body else {}
        self._reader, self._writer = reader, writer
        self.over = asyncio.Event()

    @property
    def id(self) -> Any:
        return self.message["id"]

    @property
    def filter(self) -> dict[str, Any]:
        return self.message["params"]["notifications"]

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        """
        A whole response; JSON, unless ``body`` is a text.
        """
        text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
        kind = "text/html" if isinstance(body, str) else "application/json"
        fields = {"Content-Type": kind, "Content-Length": str(len(text.encode())), "Connection": "close", **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        self._writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n{text}".encode())
        self.end()

    def result(self, result: Any, **headers: str) -> None:
        """
        A JSON response with a result.
        """
        self.answer(200, {"jsonrpc": "2.0", "id": self.id, "result": result}, **headers)

    def refuse(self, status: int, code: int, message: str, **headers: str) -> None:
        """
        A JSON-RPC error.
        """
        self.answer(status, {"jsonrpc": "2.0", "id": self.id, "error": {"code": code, "message": message}}, **headers)

    def head(self) -> None:
        """
        The head of a stream.
        """
        self._writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")

    def send(self, *messages: Any) -> None:
        """
        Messages on the stream, in one segment; a text is sent as it is.
        """
        texts = [message if isinstance(message, str) else json.dumps(message) for message in messages]
        self._writer.write("".join(f"event: message\r\ndata: {text}\r\n\r\n" for text in texts).encode())

    def tagged(self, method: str, *, tag: Any = None, **params: Any) -> dict[str, Any]:
        """
        A notification of this subscription, unless tagged otherwise.
        """
        meta = {SUBSCRIPTION_ID: self.id if tag is None else tag}
        return {"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": meta}}

    def acknowledgment(self, honoured: Any = None) -> dict[str, Any]:
        return self.tagged(ACKNOWLEDGED, notifications=self.filter if honoured is None else honoured)

    def updated(self, uri: str, **options: Any) -> dict[str, Any]:
        return self.tagged("notifications/resources/updated", uri=uri, **options)

    def cancelled(self, reason: Any = "shutdown", **params: Any) -> dict[str, Any]:
        params = {"requestId": self.id, "reason": reason, **params}
        return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}

    def complete(self, result: Any = None, *, id: Any = None) -> dict[str, Any]:
        result = {"resultType": "complete"} if result is None else result
        return {"jsonrpc": "2.0", "id": self.id if id is None else id, "result": result}

    def acknowledge(self, honoured: Any = None) -> None:
        """
        Head and acknowledgment.
        """
        self.head()
        self.send(self.acknowledgment(honoured))

    def finish(self, reason: str = "shutdown") -> None:
        """
        What a server sends that ends a stream in due form.
        """
        self.send(self.cancelled(reason), self.complete())
        self.end()

    def end(self) -> None:
        """
        The end of the body.
        """
        self.over.set()

    def abort(self) -> None:
        """
        A connection that breaks.
        """
        self._writer.transport.abort()
        self.over.set()

    async def left(self) -> None:
        """
        Wait until the client closes the connection.
        """
        async with asyncio.timeout(DEADLINE):
            try:
                while await self._reader.read(1024):
                    pass
            except OSError:
                pass


class Scripted:
    """
    The server. Requests for streams wait in ``listens`` and ``streams`` for a test; the others are answered by
    ``answers``, by their method.
    """

    def __init__(self, *, legacy: bool = False) -> None:
        self.legacy = legacy
        self.port = 0
        self.log: list[str] = []
        self.requests: list[Request] = []
        self.listens: asyncio.Queue[Request] = asyncio.Queue()
        self.streams: asyncio.Queue[Request] = asyncio.Queue()
        self.open: set[Request] = set()
        self.sessions = 0
        self.answers: dict[str, Callable[[Request], Any]] = {}
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def __aenter__(self):
        await self.start()
        return self

    async def __aexit__(self, *error) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """
        Die: nothing listens any more, and every connection breaks.
        """
        self._server.close()
        for request in list(self.open):
            request.abort()
        await self._server.wait_closed()

    async def listening(self, timeout: float = DEADLINE) -> Request:
        """
        The next listen request.
        """
        async with asyncio.timeout(timeout):
            return await self.listens.get()

    async def stream(self) -> Request:
        """
        The next request for a legacy session's stream, answered.
        """
        async with asyncio.timeout(DEADLINE):
            return await self.streams.get()

    def said(self, method: str) -> list[Any]:
        """
        The URIs of the requests of a method.
        """
        return [request.message["params"].get("uri") for request in self.requests if _method(request) == method]

    async def _serve(self, reader, writer) -> None:
        request = None
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            raw = {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line}
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            request = Request(head[0].split()[0], raw, body, reader, writer)
            self.open.add(request)
            self.requests.append(request)
            self.log.append(_method(request))
            self._route(request)
            await request.over.wait()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.open.discard(request)
            writer.close()

    def _route(self, request: Request) -> None:
        method = _method(request)
        if method in self.answers:
            answer = self.answers[method](request)
            if not request.over.is_set() and answer is not None:
                request.result(answer)
        elif method == "subscriptions/listen":
            self.listens.put_nowait(request)
        elif method == "GET":
            request.head()
            self.streams.put_nowait(request)
        elif method == "DELETE":
            request.answer(200)
        elif method.startswith("notifications/"):
            request.answer(202)
        elif method == "server/discover" and not self.legacy:
            request.result(
                {
                    "resultType": "complete",
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": CAPABILITIES,
                    "ttlMs": 0,
                    "cacheScope": "private",
                }
            )
        elif method == "initialize" and self.legacy:
            self.sessions += 1
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": CAPABILITIES,
                "serverInfo": {"name": "scripted", "version": "1"},
            }
            request.result(result, **{SESSION: f"session-{self.sessions}"})
        elif method in ("resources/subscribe", "resources/unsubscribe") and self.legacy:
            request.result({})
        else:
            request.refuse(400, -32601, f"Method not found: {method}")


def _method(request: Request) -> str:
    return request.message.get("method", request.method)
