"""
Clients that read very slowly, but read: each hears of everything after its last change, and none is ended.

    python -m benchmarks.slow --servers daphne uvicorn granian hypercorn --rate 100

All URIs change many times while the clients read ``--rate`` bytes a second, one at a time, with the server's default
settings. What a client hears after the last change is what it would read again to be up to date.

A server can't tell a client that reads from one that doesn't before the client's own kernel says that it takes more,
which it does for some kilobytes at a time: the larger the receive buffer, the rarer. So these have a small one.
"""

import argparse
import resource
import sys
import threading
import time
from collections.abc import Sequence

from benchmarks.client import BenchmarkError
from benchmarks.crowd import Listener
from benchmarks.stalled import Stage, stage
from tests.support.processes import SERVERS


class Reader(threading.Thread):
    """
    Reads some streams bit by bit, each at the same rate.
    """

    def __init__(self, streams: Sequence[Listener], rate: float, *, bytes_at_once: int = 1) -> None:
        """
        Args:
            streams: those to read.
            rate: reads a second of each.
            bytes_at_once: how much one read takes.
        """
        super().__init__(name="slow", daemon=True)
        self.streams = list(streams)
        self.bytes = 0
        self.over = threading.Event()
        self._rate = rate
        self._size = bytes_at_once

    def run(self) -> None:
        """
        Read until it is over.
        """
        due = time.monotonic()
        while not self.over.is_set():
            for stream in self.streams:
                try:
                    data = stream.socket.recv(self._size)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if not data:
                    stream.ended = time.monotonic()
                    self.streams.remove(stream)
                    break
                self.bytes += len(data)
                stream.take(data, time.monotonic())
            due = max(due + 1 / self._rate, time.monotonic() - 1)
            time.sleep(max(0, due - time.monotonic()))


def measure(kinds: Sequence[str], options: argparse.Namespace) -> dict[str, str]:
    """
    Run all servers at the same time, since they have little to do, and say of each what came of it.
    """
    results: dict[str, str] = {}
    threads = [
        threading.Thread(target=_measure_into, args=(results, kind, options), name=f"slow-{kind}") for kind in kinds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _measure_into(results: dict[str, str], kind: str, options: argparse.Namespace) -> None:
    try:
        with stage(kind, options) as on:
            results[kind] = _measure(on, options)
    except BenchmarkError as error:
        results[kind] = f"failed: {error}"


def _measure(on: Stage, options: argparse.Namespace) -> str:
    streams = [on.connect(receive_buffer=options.receive_buffer, watched=on.uris) for _ in range(options.clients)]
    reader = Reader(streams, options.rate)
    reader.start()
    try:
        started = time.monotonic()
        on.publish(options.changes * len(on.uris), rate=options.publishes_per_second)
        last = time.monotonic()
        while reader.is_alive():
            late = [stream for stream in streams if any(not at or at[-1] < last for at in _heard(on, stream))]
            if any(stream.ended for stream in streams):
                raise BenchmarkError(
                    f"A client that reads was ended after {time.monotonic() - started:.0f} s;"
                    f" {options.uris - len(_unheard(on, streams, last))} of {options.uris} URIs were heard of in time"
                )
            if not late:
                break
            if time.monotonic() - last > options.timeout:
                raise BenchmarkError(f"{len(_unheard(on, streams, last))} URIs were not heard of in time")
            time.sleep(0.2)
        return (
            f"each of {len(streams)} clients heard of all {len(on.uris)} URIs within {time.monotonic() - last:.0f} s of"
            f" the last of {options.changes * len(on.uris):,} publishes ({last - started:.0f} s), and read"
            f" {reader.bytes / len(streams):,.0f} bytes and {sum(s.count for s in streams) / len(streams):,.0f} notices"
        )
    finally:
        reader.over.set()
        reader.join()
        for stream in streams:
            stream.socket.close()


def _heard(on: Stage, stream: Listener) -> list[list[float]]:
    return [stream.heard[uri] for uri in on.uris]


def _unheard(on: Stage, streams: Sequence[Listener], last: float) -> set[str]:
    return {uri for stream in streams for uri in on.uris if not stream.heard[uri] or stream.heard[uri][-1] < last}


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow", description=__doc__.split("\n\n")[0])
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--clients", type=int, default=3, help="slow clients of each server")
    parser.add_argument("--rate", type=float, default=100, help="bytes a second that each reads, one by one")
    parser.add_argument("--uris", type=int, default=200, help="URIs that each stream subscribes to")
    parser.add_argument("--changes", type=int, default=1000, help="times that each URI changes")
    parser.add_argument("--publishes-per-second", type=float, default=5000, help="how fast they change")
    parser.add_argument("--receive-buffer", type=int, default=1024, help="the clients' SO_RCVBUF; 0: default")
    parser.add_argument("--send-timeout", type=int, default=30, help="the server's SEND_TIMEOUT")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds after the last change")
    options = parser.parse_args(arguments)
    options.stalled = 0
    return options


def main() -> int:
    """
    Returns 0; 1 if a client wasn't told of everything.
    """
    options = parse_options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = measure(options.servers, options)
    for kind, result in sorted(results.items()):
        print(f"{kind}: {result}")
    return int(any(result.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
