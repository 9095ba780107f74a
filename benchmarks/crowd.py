"""
Listen streams of every temper on one thread: readers that note when they hear of something, and clients that stop
reading, read slowly, or leave. Linux only.

What is published comes from another process, which notes its times; both clocks are the machine's monotonic one.
"""

import math
import select
import socket
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmarks.client import BenchmarkError, listen_request

ACKNOWLEDGED: Final = b"notifications/subscriptions/acknowledged"
MARK: Final = b"io.modelcontextprotocol/subscriptionId"
CLOSING: Final = b"notifications/cancelled"
_END: Final = b"}}}\r\n\r\n"


class Listener:
    """
    One stream: when it heard of ``watched`` URIs, how many messages came, and how it ended.
    """

    __slots__ = ("_carry", "count", "ended", "heard", "id", "reason", "socket", "watched")

    def __init__(self, id_: int, connection: socket.socket, watched: Sequence[str] = ()) -> None:
        self.id = id_
        self.socket = connection
        self.watched = {uri: f'"uri":"{uri}"'.encode() for uri in watched}
        self.heard: dict[str, list[float]] = {uri: [] for uri in watched}
        self.count = 0
        self.ended: float | None = None
        self.reason = ""
        self._carry = b""

    def take(self, data: bytes, now: float) -> None:
        """
        Note what came.
        """
        seen = self._carry + data
        # Up to the end of the last whole message.
        whole = seen.rfind(b"\r\n\r\n") + 4
        self._carry = seen[whole:] if whole > 3 else seen
        seen = seen[:whole] if whole > 3 else b""
        self.count += seen.count(MARK)
        for uri, sought in self.watched.items():
            if sought in seen:
                self.heard[uri].append(now)
        if CLOSING in seen:
            self.reason = seen[seen.index(CLOSING) :].partition(b'"reason":"')[2].partition(b'"')[0].decode()


def connect(
    port: int, token: str, uris: Sequence[str], id_: int, *, receive_buffer: int = 0, watched: Sequence[str] = ()
) -> Listener:
    """
    Open a stream, and read its acknowledgment.

    Args:
        receive_buffer: the socket's ``SO_RCVBUF`` in bytes; 0: the system's own.
        watched: the URIs of whose notices the times are kept.

    Raises:
        BenchmarkError: the server doesn't grant it.
    """
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(30)
    received = b""
    try:
        connection.connect(("127.0.0.1", port))
        connection.sendall(listen_request(port, uris, id_=id_, token=token))
        while not (ACKNOWLEDGED in received and _END in received):
            data = connection.recv(65536)
            received += data
            if not data or (len(received) > 12 and b" 200" not in received[:15]):
                raise BenchmarkError(f"A listen request was answered {received[:300]!r}")
    except OSError as error:
        connection.close()
        raise BenchmarkError(f"A stream could not be opened: {error!r}") from error
    connection.settimeout(0)
    return Listener(id_, connection, watched)


class Crowd:
    """
    Streams that a thread of its own reads as fast as it can. To be closed.
    """

    def __init__(self) -> None:
        self.streams: list[Listener] = []
        self.ended: list[Listener] = []
        """Those that the server ended."""
        self.messages = 0
        """How many have come, on all streams there ever were."""
        self._by_number: dict[int, Listener] = {}
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="crowd", daemon=True)
        self._thread.start()

    def add(self, stream: Listener) -> None:
        """
        Read a stream from here on.
        """
        with self._lock:
            self.streams.append(stream)
            self._by_number[stream.socket.fileno()] = stream
            self._epoll.register(stream.socket.fileno(), select.EPOLLIN)

    def remove(self, stream: Listener) -> None:
        """
        Close a stream.
        """
        with self._lock:
            if self._by_number.pop(stream.socket.fileno(), None) is stream:
                self._epoll.unregister(stream.socket.fileno())
                self.streams.remove(stream)
            stream.socket.close()

    def close(self) -> None:
        """
        Close all streams, and end the thread.
        """
        for stream in list(self.streams):
            self.remove(stream)
        self._closing = True
        self._thread.join()
        self._epoll.close()

    def _run(self) -> None:
        while not self._closing:
            events = self._epoll.poll(0.1)
            now = time.monotonic()
            for number, _ in events:
                with self._lock:
                    stream = self._by_number.get(number)
                    if stream is not None:
                        self._read(stream, now)

    def _read(self, stream: Listener, now: float) -> None:
        try:
            data = stream.socket.recv(256 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            before = stream.count
            stream.take(data, now)
            self.messages += stream.count - before
            return
        stream.ended = now
        self._by_number.pop(stream.socket.fileno(), None)
        self._epoll.unregister(stream.socket.fileno())
        self.streams.remove(stream)
        self.ended.append(stream)
        stream.socket.close()


def is_cut(stream: Listener) -> bool:
    """
    Whether the server has cut the connection of a stream that isn't read.
    """
    poll = select.poll()
    poll.register(stream.socket.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def latencies(published: Sequence[float], heard: Sequence[float]) -> list[float]:
    """
    Seconds from a change to its notice, at one stream. A notice tells of all the changes before it that were not told
    yet, so it counts from the first of them.
    """
    found = []
    position = 0
    for at in heard:
        after = bisect_right(published, at, position)
        if after > position:
            found.append(at - published[position])
            position = after
    return found


def percentile(values: Iterable[float], percent: float) -> float:
    """
    The smallest value that ``percent`` of the values don't exceed; 0 of none.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def wait_until(done: Callable[[], bool], *, timeout: float, interval: float = 0.1) -> bool:
    """
    Look until something is so; whether it became so in time.
    """
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def reasons(streams: Iterable[Listener]) -> Counter[str]:
    """
    How the server ended these; the empty reason is a connection that was cut.
    """
    return Counter(stream.reason for stream in streams)
