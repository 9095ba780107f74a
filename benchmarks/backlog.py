"""
Clients that all come back at once, as after a restart, against Daphne with its accept backlog of 50 and with a longer one.

    python -m benchmarks.backlog --clients 1000

Each client opens a listen stream and waits for its acknowledgment. A connection for which the backlog has no room is
not refused: the kernel drops its SYN, and the client's kernel sends another a second later, then two seconds after that,
then four. Linux only.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests.support.http import listening
from tests.support.processes import Server
from tests.support.project import Project

BACKLOGS: Final = (50, 2048)
"""The first is what Daphne takes unless it is told otherwise."""


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


async def come_back(port: int, token: str, number: int) -> list[float | None]:
    """
    Open ``number`` streams at once. Returns the seconds until each was acknowledged; None for one that failed.
    """
    everybody = asyncio.Barrier(number)

    async def client() -> float | None:
        started = time.perf_counter()
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(listening(port, {"toolsListChanged": True}, token=token))
            except (OSError, TimeoutError):
                return None
            finally:
                acknowledged = time.perf_counter()
                await everybody.wait()
        return acknowledged - started

    return await asyncio.gather(*(client() for _ in range(number)))


def measure(directory: Path, backlog: int, clients: int) -> str:
    """
    One row of the table.
    """
    directory.mkdir()
    project = Project(directory)
    server = Daphne(backlog, env=project.env, log=directory / "daphne.log")
    try:
        token = project.token()
        asyncio.run(come_back(server.port, token, 8))
        before, rss = overflows(), server.rss()
        times = asyncio.run(come_back(server.port, token, clients))
        dropped, grown = overflows() - before, (server.rss() - rss) // 1024
        done = sorted(took for took in times if took is not None)
    finally:
        server.stop()
        project.stop()
    later = sum(took > 2 for took in done)
    return (
        f"| {backlog} | {len(done)} | {statistics.median(done):.1f} | {done[-1]:.1f} | {later} | {dropped} |"
        f" {grown / clients:.0f} |"
    )


def main() -> None:
    """
    Measure and print.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    options = parser.parse_args()
    print("| backlog | acknowledged | median, s | last, s | after 2 s | SYNs dropped | KB a stream |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for backlog in BACKLOGS:
            print(measure(Path(directory) / str(backlog), backlog, options.clients), flush=True)


if __name__ == "__main__":
    main()
