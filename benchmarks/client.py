"""
A load client: very many listen streams on one epoll, and the tool call that publishes to them.

While a round is timed, a stream's bytes are only kept and its notifications counted; what they say is checked when the
round is over. Linux only.
"""

import json
import select
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

VERSION: Final = "2026-07-28"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
META: Final = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "benchmarks", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

_MARK: Final = SUBSCRIPTION_ID.encode()  # once in each message of a stream, and nowhere else
_RECEIVE_SIZE: Final = 256 * 1024


class BenchmarkError(RuntimeError):
    """
    A server didn't do what it is measured at: an answer was wrong, late or missing.
    """


class Stream:
    """
    One listen stream: the socket, and what has come since it was last checked.
    """

    __slots__ = ("_carry", "_headless", "_undecoded", "count", "done_at", "id", "received", "socket", "target")

    def __init__(self, id_: int, connection: socket.socket) -> None:
        self.id = id_
        self.socket = connection
        self.received: list[bytes] = []
        self.count = 0
        self.target = 1
        """Messages after which ``done_at`` is noted; the first is the acknowledgment."""
        self.done_at: float | None = None
        self._carry = b""
        self._undecoded = b""
        self._headless = False

    def expect(self, messages: int) -> None:
        """
        Begin to count anew.
        """
        self.count, self.target, self.done_at = 0, messages, None

    def take(self, data: bytes) -> bool:
        """
        Note what came. Returns whether the stream has just got all that it was to get.
        """
        self.received.append(data)
        # A mark may be cut in two.
        seen = self._carry + data
        self._carry = seen[1 - len(_MARK) :]
        self.count += seen.count(_MARK)
        if self.done_at is None and self.count >= self.target:
            self.done_at = time.perf_counter()
            return True
        return False

    def messages(self) -> list[dict[str, Any]]:
        """
        What has come since the last call, read: whole JSON-RPC messages, without the keep-alive comments.
        """
        data = self._undecoded + b"".join(self.received)
        self.received.clear()
        if not self._headless:
            head, _, data = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise BenchmarkError(f"A listen request was answered {head[:200]!r} {data[:300]!r}")
            self._headless = True
        body, self._undecoded = _dechunk(data)
        # Both servers write whole frames, so no frame goes over the end of a chunk.
        frames = [frame for frame in body.split(b"\r\n\r\n") if frame and not frame.startswith(b":")]
        messages = [json.loads(frame.partition(b"data: ")[2]) for frame in frames]
        for message in messages:
            if message.get("params", {}).get("_meta", {}).get(SUBSCRIPTION_ID) != self.id or "method" not in message:
                raise BenchmarkError(f"Stream {self.id} got {message}")
        return messages


class Client:
    """
    The client of one server.
    """

    def __init__(self, port: int, *, uris: Sequence[str], tokens: Sequence[str] = ()) -> None:
        self.streams: list[Stream] = []
        self._port = port
        self._uris = uris
        self._tokens = tokens
        """The streams show these in turn; without any, they show none."""
        self._epoll = select.epoll()
        self._by_number: dict[int, Stream] = {}
        self._buffer = memoryview(bytearray(_RECEIVE_SIZE))
        self._busy = 0.0

    def open(self, number: int, *, concurrency: int, timeout: float) -> float:
        """
        Open ``number`` streams, each to all URIs, at most ``concurrency`` of them unacknowledged at a time. Returns the
        seconds from the first connection to the last acknowledgment.

        Raises:
            BenchmarkError: a stream was refused, or wasn't granted all URIs, or the time is up.
        """
        ids = range(len(self.streams) + 1, len(self.streams) + number + 1)
        requests = [(id_, self._listen(id_)) for id_ in reversed(ids)]
        opened: list[Stream] = []
        waiting = 0
        started = time.perf_counter()
        while waiting or requests:
            while requests and waiting < concurrency:
                opened.append(self._open(*requests.pop()))
                waiting += 1
            waiting -= self._poll(started + timeout)
        self.settle()
        for stream in opened:
            first = next(iter(stream.messages()))
            if first["method"] != "notifications/subscriptions/acknowledged":
                raise BenchmarkError(f"The first message of a stream was {first}")
            if first["params"]["notifications"].get("resourceSubscriptions") != list(self._uris):
                raise BenchmarkError(f"A stream wasn't granted all URIs: {first}")
        return max(stream.done_at for stream in opened if stream.done_at is not None) - started

    def publish(self, uris: Sequence[str], *, timeout: float) -> tuple[float, float]:
        """
        Have ``uris`` published, and wait until every stream has heard of each of them. Returns the seconds from the
        request to the last stream, and the share of that time in which this client was at work.

        Raises:
            BenchmarkError: a notification is missing, or came twice, or the time is up.
        """
        self.settle(0)  # keep-alive comments
        for stream in self.streams:
            stream.expect(len(uris))
        request = self._request("tools/call", {"name": "publish", "arguments": {"uris": list(uris)}}, name="publish")
        left = len(self.streams)
        with socket.create_connection(("127.0.0.1", self._port), timeout=timeout) as call:
            self._busy = 0.0
            started = time.perf_counter()
            call.sendall(request)
            while left:
                left -= self._poll(started + timeout)
            finished = max(stream.done_at or started for stream in self.streams)
            busy = self._busy / (finished - started)
            self._check_answer(call)
        self.settle()
        expected = Counter(uris)
        for stream in self.streams:
            heard = Counter(message["params"].get("uri") for message in stream.messages())
            if heard != expected:
                raise BenchmarkError(
                    f"Stream {stream.id}: {(expected - heard).total()} notifications are lost,"
                    f" {(heard - expected).total()} are too many"
                )
        return finished - started, busy

    def settle(self, quiet: float = 0.05) -> None:
        """
        Read until nothing has come for ``quiet`` seconds.
        """
        while self._epoll.poll(quiet, 1):
            self._poll(time.perf_counter() + quiet)

    def close(self) -> None:
        """
        Close all streams.
        """
        for stream in self.streams:
            stream.socket.close()
        self.streams.clear()
        self._by_number.clear()
        self._epoll.close()
        self._epoll = select.epoll()

    def _open(self, id_: int, request: bytes) -> Stream:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        connection.sendall(request)
        connection.settimeout(0)
        stream = Stream(id_, connection)
        self.streams.append(stream)
        self._by_number[connection.fileno()] = stream
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        return stream

    def _poll(self, deadline: float) -> int:
        """
        Read what is there, once. Returns how many streams have just got all that they were to get.
        """
        events = self._epoll.poll(1.0)
        begun = time.perf_counter()
        if begun > deadline:
            late = [stream for stream in self.streams if stream.done_at is None]
            missing = sum(stream.target - stream.count for stream in late)
            if late:
                raise BenchmarkError(f"Time is up: {len(late)} streams wait for {missing} messages")
        finished = 0
        for number, _ in events:
            stream = self._by_number[number]
            try:
                size = stream.socket.recv_into(self._buffer)
            except ConnectionError:
                size = 0
            if size == 0:
                raise BenchmarkError(f"The server ended stream {stream.id}: {b''.join(stream.received)[-500:]!r}")
            finished += stream.take(bytes(self._buffer[:size]))
        self._busy += time.perf_counter() - begun
        return finished

    def _check_answer(self, call: socket.socket) -> None:
        answer = b""
        while data := call.recv(65536):
            answer += data
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200") or b'"error"' in body or b'"isError":true' in body:
            raise BenchmarkError(f"The call of the tool was answered {answer[:500]!r}")

    def _listen(self, id_: int) -> bytes:
        return listen_request(self._port, self._uris, id_=id_, token=self._token(id_))

    def _request(self, method: str, params: dict[str, Any], *, name: str) -> bytes:
        return request(self._port, method, params, name=name, token=self._token(1))

    def _token(self, id_: int) -> str | None:
        return self._tokens[id_ % len(self._tokens)] if self._tokens else None


def listen_request(port: int, uris: Sequence[str], *, id_: int, token: str | None) -> bytes:
    """
    A listen request for these URIs, as it is on the wire.
    """
    wanted = {"notifications": {"resourceSubscriptions": list(uris)}}
    return request(port, "subscriptions/listen", wanted, id_=id_, token=token)


def request(
    port: int,
    method: str,
    params: dict[str, Any],
    *,
    id_: int = 1,
    name: str | None = None,
    token: str | None = None,
) -> bytes:
    """
    A request of any method, as it is on the wire. Where ``name`` (of a tool, or a URI) is given, its connection closes.
    """
    message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": {**params, "_meta": META}}
    body = json.dumps(message).encode()
    headers = {
        "Host": f"127.0.0.1:{port}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
        "Content-Length": str(len(body)),
    }
    if name is not None:
        headers |= {"Mcp-Name": name, "Connection": "close"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    lines = [f"{key}: {value}" for key, value in headers.items()]
    return "\r\n".join(["POST /mcp HTTP/1.1", *lines, "", ""]).encode() + body


def _dechunk(data: bytes) -> tuple[bytes, bytes]:
    """
    The content of the whole chunks (RFC 9112 §7.1) at the beginning of ``data``, and what is left.
    """
    parts = []
    position = 0
    while (end := data.find(b"\r\n", position)) >= 0:
        start = end + 2
        size = int(data[position:end], 16)
        if len(data) < start + size + 2:
            break
        parts.append(data[start : start + size])
        position = start + size + 2
    return b"".join(parts), data[position:]
