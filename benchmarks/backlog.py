"""
Clients that all come back at once, as after a restart, against Daphne with its accept backlog of 50, and a longer one.

    python -m benchmarks.backlog --clients 1000

Each client opens a listen stream and waits for its acknowledgment. A connection for which the backlog has no room is
not refused: the kernel drops what asked for it, and the client's kernel asks again, later each time. Linux only.
"""

import argparse
import select
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from benchmarks.client import SUBSCRIPTION_ID, BenchmarkError
from tests.support.http import listen_body, listen_headers
from tests.support.processes import Server
from tests.support.project import Project

BACKLOGS: Final = (50, 2048)
"""The first is what Daphne takes unless it is told otherwise."""

TIMEOUT: Final = 120
"""Seconds without any acknowledgment."""


class Daphne(Server):
    """
    A Daphne with a backlog of its own, which its options for host and port don't offer.
    """

    def __init__(self, backlog: int, *, env: dict[str, str], log: Path) -> None:
        self._backlog = backlog
        super().__init__("daphne", env=env, log=log)

    def _command(self, kind: str, application: str) -> list[str]:
        return ["daphne", "-e", f"tcp:port={self.port}:interface=127.0.0.1:backlog={self._backlog}", application]


def overflows() -> int:
    """
    How often a listening socket of this machine had no room for a connection, as the kernel counts it.
    """
    names, values = [
        line.split() for line in Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt:")
    ]
    return int(values[names.index("ListenOverflows")])


def come_back(port: int, token: str, number: int) -> list[float]:
    """
    Open ``number`` streams at once. Returns the seconds until each was acknowledged.
    """
    body = listen_body({"toolsListChanged": True})
    headers = {**listen_headers(), "Host": "127.0.0.1", "Authorization": f"Bearer {token}"}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "Content-Length": str(len(body))}.items())
    request = f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body
    clients, received, times, epoll = {}, defaultdict(bytes), [], select.epoll()
    started = time.perf_counter()
    for _ in range(number):
        client = socket.socket()
        client.settimeout(0)
        client.connect_ex(("127.0.0.1", port))
        clients[client.fileno()] = client
        epoll.register(client, select.EPOLLOUT)
    while len(times) < number:
        for descriptor, event in epoll.poll(TIMEOUT) or _give_up(times):
            if event & select.EPOLLOUT:
                clients[descriptor].sendall(request)
                epoll.modify(descriptor, select.EPOLLIN)
                continue
            received[descriptor] += clients[descriptor].recv(65536)
            if not received[descriptor].startswith(b"HTTP/1.1 200"):
                raise BenchmarkError(f"A client got {received[descriptor]!r}")
            if SUBSCRIPTION_ID.encode() in received[descriptor]:
                times.append(time.perf_counter() - started)
                epoll.unregister(descriptor)
    for client in clients.values():
        client.close()
    return times


def _give_up(times: list[float]) -> list[tuple[int, int]]:
    raise BenchmarkError(f"Nothing more was acknowledged after {len(times)} streams")


def measure(directory: Path, backlog: int, clients: int) -> str:
    """
    One row of the table.
    """
    directory.mkdir()
    project = Project(directory)
    server = Daphne(backlog, env=project.env, log=directory / "daphne.log")
    try:
        token = project.token()
        come_back(server.port, token, 8)
        before, rss = overflows(), server.rss()
        times = sorted(come_back(server.port, token, clients))
        dropped, grown = overflows() - before, (server.rss() - rss) // 1024
    finally:
        server.stop()
        project.stop()
    middle, late = statistics.median(times), sum(took > 2 for took in times)
    return f"| {backlog:,} | {middle:.1f} | {times[-1]:.1f} | {late} | {dropped} | {grown / clients:.0f} |"


def main() -> None:
    """
    Measure and print.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    options = parser.parse_args()
    print("| backlog | median, s | last, s | later than 2 s | dropped | KB for each stream |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for backlog in BACKLOGS:
            print(measure(Path(directory) / str(backlog), backlog, options.clients), flush=True)


if __name__ == "__main__":
    main()
