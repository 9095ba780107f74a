"""
Very many listen streams in one thread, and what of them is live at each moment.

What has arrived on the other sockets is read before an acknowledgment is counted, so that nothing is taken for live
whose closing frames have been received.
"""

import json
import select
import socket
import time
from collections.abc import Callable, Sequence

from tests.support.http import listen_body, listen_headers

ACKNOWLEDGED = b"notifications/subscriptions/acknowledged"
CANCELLED = b"notifications/cancelled"
RESULT = b'"resultType":"complete"'
END = b"\r\n0\r\n\r\n"


class Client:
    """
    One stream.
    """

    def __init__(self, port: int, token: str, notifications: object, number: int) -> None:
        self.number = number
        body = listen_body(notifications, id=number)
        headers = {
            "Host": f"127.0.0.1:{port}",
            "Authorization": f"Bearer {token}",
            "Content-Length": str(len(body)),
            **listen_headers(),
        }
        head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.request = head.encode() + b"\r\n" + body
        self.port = port
        self.socket: socket.socket | None = None
        self.received = b""

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.sendall(self.request)
        self.socket.settimeout(0)

    def read(self) -> bool:
        """
        Read what has arrived; whether the server closed the connection.
        """
        try:
            while data := self.socket.recv(65536):
                self.received += data
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    @property
    def status(self) -> int:
        return int(self.received.split(b" ", 2)[1]) if self.received else 0

    @property
    def is_acknowledged(self) -> bool:
        return ACKNOWLEDGED in self.received

    @property
    def is_ended(self) -> bool:
        return CANCELLED in self.received

    @property
    def is_live(self) -> bool:
        return self.is_acknowledged and not self.is_ended

    def messages(self) -> list[dict]:
        """
        The messages that have arrived.
        """
        lines = [line for line in self.received.split(b"\r\n") if line.startswith(b"data: ")]
        return [json.loads(line.removeprefix(b"data: ")) for line in lines]

    @property
    def ended_well(self) -> bool:
        """
        Whether it was superseded with all its closing frames, in order, and the end of the body.
        """
        messages = self.messages()
        if len(messages) < 3 or not self.received.endswith(END):
            return False
        cancelled, result = messages[-2:]
        return (
            cancelled["method"] == "notifications/cancelled"
            and cancelled["params"]["reason"] == "superseded"
            and result["id"] == self.number
            and result["result"]["resultType"] == "complete"
        )

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


class Flood:
    """
    Clients that all open at once.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = clients
        self.most_live = 0
        self._live: set[Client] = set()
        self._poll = select.epoll()
        self._by_number: dict[int, Client] = {}
        self._open: set[Client] = set()

    def connect(self) -> None:
        for client in self.clients:
            client.connect()
            self._by_number[client.socket.fileno()] = client
            self._open.add(client)
            self._poll.register(client.socket.fileno(), select.EPOLLIN)

    def run(self, until: Callable[[], bool], *, timeout: float) -> bool:
        """
        Read what comes until something is so; whether it became so in time.
        """
        deadline = time.monotonic() + timeout
        while not until():
            if time.monotonic() > deadline:
                return False
            for number, _ in self._poll.poll(0.05):
                self._read(self._by_number[number])
        return True

    def _read(self, client: Client) -> None:
        if client not in self._open:
            return
        was_live = client.is_live
        if client.read():
            self._poll.unregister(client.socket.fileno())
            self._open.discard(client)
        if client.is_live and not was_live:
            for other in self._live & self._open:
                if other.read():
                    self._poll.unregister(other.socket.fileno())
                    self._open.discard(other)
            self._live = {other for other in self._live if other.is_live} | {client}
            self.most_live = max(self.most_live, len(self._live))
        elif was_live and not client.is_live:
            self._live.discard(client)

    @property
    def live(self) -> list[Client]:
        return [client for client in self.clients if client.is_live]

    def close(self) -> None:
        self._poll.close()
        for client in self.clients:
            client.close()
