"""
Clients that open a stream and stop reading, beside others that read: what they cost, and whom they disturb.

    python -m benchmarks.stalled --servers daphne uvicorn granian hypercorn --stalled 1000 --publishes 1000000

Another process publishes; a publish is one call of ``notify_resource_updated``, and many of them become one message or
one notice where they are of the same URI. Memory is what the server's processes have resident, at its peak, against
the same process with as many streams to which nothing happens; the kernel's socket buffers are not in it. Latency is
from a publish to each reader's hearing of it, in phases that take turns: without and with the stalled clients.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.client import BenchmarkError
from benchmarks.crowd import Crowd, Listener, connect, is_cut, latencies, percentile, wait_until
from tests.support.processes import SERVERS, Redis, Server
from tests.support.project import Project

MOST_KILOBYTES: Final = 64
"""Resident KB that a stalled client may cost more than a quiet one."""

MOST_LATENCY: Final = 2
"""Times the readers' p99 without stalled clients that it may be with them."""

PROBES_PER_SECOND: Final = 20
"""Publishes of the URI whose latency is measured."""

ARGUMENTS: Final = {"granian": ("--backlog", "8192", "--backpressure", "8192")}
"""Options of the servers: granian refuses to serve more requests at once than these."""

PUBLISH: Final = """
import time
result, started = [], time.monotonic()
due = started
for number in range(count):
    notify.notify_resource_updated(uris[number % len(uris)])
    if rate and number % 8 == 0:
        time.sleep(max(0, started + number / rate - time.monotonic()))
    if (now := time.monotonic()) >= due:
        result.append(now)
        notify.notify_resource_updated(probe)
        due = now + interval
"""


class Stage:
    """
    A server of one kind, and the process that publishes.
    """

    def __init__(self, project: Project, kind: str, options: argparse.Namespace) -> None:
        self.project = project
        self.options = options
        keys: Any = project.worker.run(
            "result = []\nfor number in range(count):\n  result.append(Note.objects.create(title='n', shared=True).pk)",
            count=options.uris + 1,
        )
        self.uris = [f"note://{pk}" for pk in keys]
        self.probe = self.uris.pop()
        self.token = project.token("benchmark", max_streams=100_000)
        self.server: Server = project.serve(kind, arguments=ARGUMENTS.get(kind, ()))
        self.publisher = project.new_worker()
        self._last_id = 0

    def connect(self, *, receive_buffer: int = 0, watched: Sequence[str] = ()) -> Listener:
        """
        Open a stream to all URIs.
        """
        self._last_id += 1
        uris = [*self.uris, self.probe]
        return connect(
            self.server.port, self.token, uris, self._last_id, receive_buffer=receive_buffer, watched=watched
        )

    def stall(self) -> list[Listener]:
        """
        Open the clients that will not read.
        """
        return [self.connect(receive_buffer=self.options.receive_buffer) for _ in range(self.options.stalled)]

    def publish(self, count: int, *, rate: float = 0) -> list[float]:
        """
        Publish so many times, at ``rate`` a second (0: as fast as it goes). Returns when the probe's URI was published.
        """
        probes: Any = self.publisher.run(
            PUBLISH, count=count, rate=rate, uris=self.uris, probe=self.probe, interval=1 / PROBES_PER_SECOND
        )
        return list(probes)

    def rows(self) -> int:
        """
        How many streams have a row in the database.
        """
        count: Any = self.project.worker.run("result = models.LiveStream.objects.count()")
        return int(count)

    def wait_for_rows(self, number: int, *, timeout: float = 15) -> None:
        """
        Return when so many streams have a row.
        """
        if not wait_until(lambda: self.rows() == number, timeout=timeout):
            raise BenchmarkError(f"{self.rows()} streams have a row, not {number}")


@contextmanager
def stage(kind: str, options: argparse.Namespace) -> Iterator[Stage]:
    """
    A Redis, a project and a server, of which nothing is left afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        directory = Path(name)
        redis = Redis(directory)
        settings = {"SEND_TIMEOUT": options.send_timeout, "MAX_STREAMS": 10 * options.stalled + 1000}
        # The project's own environment is not to change what is measured.
        env = {"CHANNEL_LAYER_BACKEND": "", "CHANNEL_LAYER_CONFIG": "", "PYTHONWARNINGS": "ignore"}
        project = Project(directory, REDIS_URL=redis.url, MCP_CHANNELS_JSON=json.dumps(settings), **env)
        try:
            yield Stage(project, kind, options)
        finally:
            project.stop()
            redis.stop()


class Peak:
    """
    The most resident memory of a server while this is open.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self.bytes = server.rss()

    def __enter__(self) -> "Peak":
        self._thread = threading.Thread(target=self._watch, name="peak")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.bytes = max(self.bytes, self._server.rss())


def measure_latency(on: Stage, readers: Sequence[Listener], say: Callable[[str], None]) -> dict[str, float]:
    """
    The readers' p50 and p99, in milliseconds, without and with the stalled clients: medians over the rounds.
    """
    found: dict[str, list[float]] = {"p50": [], "p99": [], "p50_stalled": [], "p99_stalled": []}
    options = on.options
    for number in range(options.rounds):
        for suffix in ("", "_stalled"):
            stalled = on.stall() if suffix else []
            # So many that their sockets are full before it is measured.
            on.publish(options.rate * 2, rate=options.rate)
            for reader in readers:
                reader.heard[on.probe].clear()
            published = on.publish(options.rate * options.seconds, rate=options.rate)
            time.sleep(0.5)
            times = [1000 * late for reader in readers for late in latencies(published, reader.heard[on.probe])]
            if len(times) < len(published) * len(readers) / 2:
                raise BenchmarkError(f"The readers heard {len(times)} of {len(published) * len(readers)} changes")
            p50, p99 = percentile(times, 50), percentile(times, 99)
            found[f"p50{suffix}"].append(p50)
            found[f"p99{suffix}"].append(p99)
            for stream in stalled:
                stream.socket.close()
            on.wait_for_rows(len(readers))
            name = "with them" if suffix else "without stalled clients"
            say(f"  round {number + 1}, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    return {key: statistics.median(values) for key, values in found.items()}


def measure_memory(on: Stage, readers: Sequence[Listener]) -> dict[str, float]:
    """
    What stalled clients cost, when they were ended, and what is left of them.
    """
    quiet = on.stall()
    time.sleep(2)
    before, descriptors = on.server.rss(), on.server.descriptors() - len(quiet)
    for stream in quiet:
        stream.socket.close()
    on.wait_for_rows(len(readers))
    stalled = on.stall()
    over: dict[int, float] = {}
    with Peak(on.server) as peak:
        watching = threading.Thread(target=_watch_ends, args=(stalled, over, on.options.send_timeout * 3 + 60))
        started = time.monotonic()
        watching.start()
        on.publish(on.options.publishes)
        seconds = time.monotonic() - started
        while watching.is_alive():
            on.publish(2000, rate=1000)
        watching.join()
    on.wait_for_rows(len(readers))
    if len(over) < len(stalled):
        raise BenchmarkError(f"{len(stalled) - len(over)} stalled streams were never cut")
    left = on.server.descriptors() - descriptors
    for stream in stalled:
        stream.socket.close()
    return {
        "kilobytes": (peak.bytes - before) / 1024 / len(stalled),
        "kilobytes_left": (on.server.rss() - before) / 1024 / len(stalled),
        "publishes_per_second": on.options.publishes / seconds,
        "first_end": min(over.values()) - started,
        "last_end": max(over.values()) - started,
        "descriptors_left": left,
    }


def _watch_ends(stalled: Sequence[Listener], over: dict[int, float], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while len(over) < len(stalled) and time.monotonic() < deadline:
        now = time.monotonic()
        over.update({stream.id: now for stream in stalled if stream.id not in over and is_cut(stream)})
        time.sleep(0.25)


def measure(kind: str, options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, float]:
    """
    Everything, of one server.

    Raises:
        BenchmarkError: a stream was refused, a reader heard nothing, or something was left of a stalled client.
    """
    with stage(kind, options) as on:
        crowd = Crowd()
        try:
            for _ in range(options.readers):
                crowd.add(on.connect(watched=[on.probe]))
            readers = list(crowd.streams)
            # Memory first: what a process has had once, it doesn't give back.
            memory = measure_memory(on, readers)
            latency = measure_latency(on, readers, say)
            if crowd.ended:
                raise BenchmarkError(f"The server ended {len(crowd.ended)} of the clients that read")
        finally:
            crowd.close()
        on.wait_for_rows(0)
        if "Traceback" in on.server.read_log():
            raise BenchmarkError(f"The server's log has a traceback: {on.server.read_log()[-2000:]}")
    return {**latency, **memory}


def verdict(found: dict[str, float], options: argparse.Namespace) -> list[str]:
    """
    What ``--check`` finds missing.
    """
    missing = []
    if found["kilobytes"] >= MOST_KILOBYTES:
        missing.append(f"a stalled client costs {found['kilobytes']:.1f} KB, not less than {MOST_KILOBYTES}")
    if found["p99_stalled"] > MOST_LATENCY * found["p99"]:
        missing.append(f"the readers' p99 is {found['p99_stalled'] / found['p99']:.1f}x what it is without")
    if found["last_end"] > options.send_timeout + 5:
        missing.append(f"the last stalled stream ended after {found['last_end']:.1f} s")
    if found["descriptors_left"] > 0:
        missing.append(f"{found['descriptors_left']:.0f} descriptors are left")
    return missing


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalled", description=__doc__.split("\n\n")[0])
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--stalled", type=int, default=1000, help="clients that stop reading")
    parser.add_argument("--readers", type=int, default=30, help="clients that read")
    parser.add_argument("--uris", type=int, default=200, help="URIs that each stream subscribes to")
    parser.add_argument("--publishes", type=int, default=1_000_000, help="publishes while memory is measured")
    parser.add_argument("--receive-buffer", type=int, default=4096, help="the stalled clients' SO_RCVBUF; 0: default")
    parser.add_argument("--send-timeout", type=int, default=10, help="the server's SEND_TIMEOUT")
    parser.add_argument("--rounds", type=int, default=3, help="times that latency is measured without and with them")
    parser.add_argument("--rate", type=int, default=500, help="publishes a second while latency is measured")
    parser.add_argument("--seconds", type=int, default=5, help="seconds of each such measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--check", action="store_true", help="fail unless what the project promises is so")
    return parser.parse_args(arguments)


def main() -> int:
    """
    Returns 0; 1 if a server failed; 2 if ``--check`` isn't met.
    """
    options = parse_options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    say: Callable[[str], None] = (lambda line: print(line, file=sys.stderr)) if options.json else print
    results, missing = {}, []
    for kind in options.servers:
        say(f"{kind}:")
        try:
            found = results[kind] = measure(kind, options, say)
        except BenchmarkError as error:
            print(f"failed: {kind}: {error}", file=sys.stderr)
            return 1
        say(
            f"  {found['kilobytes']:.1f} KB a stalled client at the peak; p99 {found['p99']:.1f} ms without and"
            f" {found['p99_stalled']:.1f} ms with them; ended after {found['first_end']:.1f} to {found['last_end']:.1f}"
            f" s; {found['publishes_per_second']:,.0f} publishes/s"
        )
        missing += [f"{kind}: {line}" for line in verdict(found, options)]
    if options.json:
        print(json.dumps({"options": vars(options), "results": results}, indent=2))
    for line in missing if options.check else []:
        print(f"check: {line}", file=sys.stderr)
    return 2 if options.check and missing else 0


if __name__ == "__main__":
    sys.exit(main())
