"""
A client that keeps a copy of each resource it listens to, as a client is meant to: told of a change, it reads again.
"""

import http.client
import json
import threading
from collections.abc import Sequence
from typing import Final

from benchmarks.client import BenchmarkError, request
from benchmarks.crowd import connect

_URI: Final = b'"uri":"'


class Copies(threading.Thread):
    """
    One such client, on a thread of its own. A stream that the server ends is opened again, and all is read again.
    """

    def __init__(self, port: int, token: str, uris: Sequence[str], id_: int) -> None:
        super().__init__(name=f"copies-{id_}", daemon=True)
        self.copies: dict[str, str] = {}
        self.reads = 0
        self.error: str | None = None
        self.over = threading.Event()
        self._port = port
        self._token = token
        self._uris = list(uris)
        self._id = id_

    def run(self) -> None:
        """
        Listen until it is over.
        """
        try:
            while not self.over.is_set():
                self._listen()
        except (BenchmarkError, OSError, ValueError, KeyError) as error:
            self.error = repr(error)

    def _listen(self) -> None:
        stream = connect(self._port, self._token, self._uris, self._id)
        stream.socket.settimeout(0.2)
        try:
            for uri in self._uris:
                self.read(uri)
            carry = b""
            while not self.over.is_set():
                try:
                    data = stream.socket.recv(65536)
                except TimeoutError:
                    continue
                if not data:
                    return
                *whole, carry = (carry + data).split(b"\r\n\r\n")
                changed = {frame.partition(_URI)[2].partition(b'"')[0].decode() for frame in whole if _URI in frame}
                for uri in changed:
                    self.read(uri)
        finally:
            stream.socket.close()

    def read(self, uri: str) -> None:
        """
        Read a resource, and keep it.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.connect()
            connection.sock.sendall(request(self._port, "resources/read", {"uri": uri}, name=uri, token=self._token))
            answer = http.client.HTTPResponse(connection.sock)
            answer.begin()
            content = json.loads(answer.read())["result"]["contents"][0]["text"]
        finally:
            connection.close()
        self.copies[uri] = json.loads(content)["body"]
        self.reads += 1
