"""
Fan-out side by side: the example project against a plain server of the official SDK, each one uvicorn process.

    python -m benchmarks.fanout --streams 1000 --uris 100 --rounds 5

Each stream subscribes to all URIs, and a round publishes each URI once. Both servers are driven alike, by the same
client and the same tool, and take turns at going first, so that a noisy machine is unfair to none. Ours authenticates
a bearer token and authorises each URI against rows of a database; the SDK's does neither. Nothing is quoted unless
every stream got every notification.
"""

import argparse
import gc
import json
import math
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.client import BenchmarkError, Client
from tests.support.processes import Postgres, Redis, Server
from tests.support.project import Project

WARM_UP: Final = 8
"""
Streams that are opened and closed before anything is measured, so that what is made once is there. They are few: the
memory that they give back is not asked for again, and so not counted.
"""

UVICORN: Final = ("--log-level", "warning", "--no-access-log")
"""Options of both servers."""

NAMES: Final = ("ours", "sdk")

LEAST_DELIVERIES: Final = 10
"""Times the SDK's deliveries a second that ``--check`` asks for."""


@dataclass
class Results:
    """
    What was measured of one server.
    """

    deliveries_per_second: list[float] = field(default_factory=list)
    opens_per_second: list[float] = field(default_factory=list)
    kilobytes_per_stream: list[float] = field(default_factory=list)
    milliseconds_to_last: list[float] = field(default_factory=list)
    cpu_milliseconds_per_open: list[float] = field(default_factory=list)
    cpu_microseconds_per_delivery: list[float] = field(default_factory=list)
    """The server process's own time, all threads: what is left to compare when the machine is busy with others."""
    client_busy: list[float] = field(default_factory=list)
    """The share of each round in which the client was at work; near 1, it is the client that was measured."""

    def summary(self) -> dict[str, float]:
        """
        Medians, and the percentiles of the latency.
        """
        return {
            "deliveries_per_second": statistics.median(self.deliveries_per_second),
            "opens_per_second": statistics.median(self.opens_per_second),
            "kilobytes_per_stream": statistics.median(self.kilobytes_per_stream),
            "p50_ms": percentile(self.milliseconds_to_last, 50),
            "p99_ms": percentile(self.milliseconds_to_last, 99),
            "cpu_ms_per_open": statistics.median(self.cpu_milliseconds_per_open),
            "cpu_us_per_delivery": statistics.median(self.cpu_microseconds_per_delivery),
        }


def percentile(values: Sequence[float], percent: int) -> float:
    """
    The smallest value that ``percent`` of the values don't exceed.
    """
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


class Contender:
    """
    One of the two servers: how to start it, and its client.
    """

    def __init__(self, name: str, start: Callable[[], Server], *, uris: Sequence[str], tokens: Sequence[str]) -> None:
        self.name = name
        self.results = Results()
        self._start = start
        self._uris = uris
        self._tokens = tokens
        self._server: Server | None = None
        self._client: Client | None = None

    def open(self, options: argparse.Namespace) -> None:
        """
        Start a new server, and open all streams.
        """
        self.stop()
        self._server = server = self._start()
        self._client = client = Client(server.port, uris=self._uris, tokens=self._tokens)
        with self._measuring():
            client.open(WARM_UP, concurrency=options.concurrency, timeout=options.timeout)
            client.publish(self._uris[:1], timeout=options.timeout)
        client.close()
        # The server must have seen them leave.
        time.sleep(1)
        before = server.rss()
        cpu = server.cpu()
        with self._measuring():
            seconds = client.open(options.streams, concurrency=options.concurrency, timeout=options.timeout)
        self.results.cpu_milliseconds_per_open.append((server.cpu() - cpu) * 1e3 / options.streams)
        self.results.opens_per_second.append(options.streams / seconds)
        self.results.kilobytes_per_stream.append((server.rss() - before) / 1024 / options.streams)

    def round(self, options: argparse.Namespace) -> None:
        """
        Publish each URI once.
        """
        deliveries = options.streams * options.uris
        cpu = self._server.cpu()
        with self._measuring():
            seconds, busy = self._client.publish(self._uris, timeout=options.timeout)
        self.results.cpu_microseconds_per_delivery.append((self._server.cpu() - cpu) * 1e6 / deliveries)
        self.results.deliveries_per_second.append(deliveries / seconds)
        self.results.client_busy.append(busy)

    def single(self, number: int, options: argparse.Namespace) -> None:
        """
        Publish one URI.
        """
        with self._measuring():
            seconds, _ = self._client.publish([self._uris[number % len(self._uris)]], timeout=options.timeout)
        self.results.milliseconds_to_last.append(seconds * 1000)

    def stop(self) -> None:
        """
        Close the streams, and stop the server.
        """
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._server is not None:
            self._server.stop()
            self._server = None

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        # The client's own garbage collections would be counted as the server's time.
        gc.collect()
        gc.disable()
        try:
            yield
        except BenchmarkError as error:
            raise BenchmarkError(f"{self.name}: {error}") from error
        finally:
            gc.enable()


@contextmanager
def contenders(options: argparse.Namespace) -> Iterator[dict[str, Contender]]:
    """
    Both servers, with what they need; nothing is left of it afterwards.
    """
    room = options.streams + 2 * WARM_UP
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        directory = Path(name)
        (directory / "postgres").mkdir()
        redis = Redis(directory) if options.redis else None
        postgres = Postgres(directory / "postgres") if options.postgres else None
        env = {
            "MCP_CHANNELS_JSON": json.dumps({"MAX_STREAMS": room}),
            "BENCHMARK_MAX_SUBSCRIPTIONS": str(room),
            "REDIS_URL": redis.url if redis is not None else "",
            **({} if postgres is None else {"DATABASE_URL": postgres.create("benchmark")}),
            # Neither project's own environment is to change what is measured.
            "CHANNEL_LAYER_BACKEND": "",
            "CHANNEL_LAYER_CONFIG": "",
            "PYTHONWARNINGS": "ignore",
        }
        project = Project(directory, **env)
        both: dict[str, Contender] = {}
        try:
            uris = [f"note://{number}" for number in range(1, options.uris + 1)]
            tokens = _seed(project, options.principals, options.uris, room)

            def start(application: str) -> Server:
                name = f"benchmarks.{application}:application"
                return project.serve("uvicorn", application=name, arguments=UVICORN, plain=True)

            both["ours"] = Contender("ours", lambda: start("ours"), uris=uris, tokens=tokens)
            both["sdk"] = Contender("sdk", lambda: start("plain_sdk"), uris=uris, tokens=())
            yield both
        finally:
            for contender in both.values():
                contender.stop()
            project.stop()
            if redis is not None:
                redis.stop()
            if postgres is not None:
                postgres.stop()


def _seed(project: Project, principals: int, notes: int, max_streams: int) -> list[str]:
    tokens: Any = project.worker.run(
        """
result = []
scopes = models.Scope.named(["notes:read", "notes:write"])
for number in range(principals):
    principal = models.Principal.objects.create(name=f"benchmark {number}", max_streams=max_streams)
    principal.scopes.set(scopes)
    result.append(models.AccessToken.objects.issue(principal)[1])
Note.objects.bulk_create(Note(pk=pk, title=f"note {pk}", shared=True) for pk in range(1, notes + 1))
""",
        principals=principals,
        notes=notes,
        max_streams=max_streams,
    )
    return tokens


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Results]:
    """
    Run everything, and return the results of ``ours`` and ``sdk``.

    Raises:
        BenchmarkError: see its class.
    """
    with contenders(options) as both:
        turn = _turns()
        for number in range(options.opens):
            for name in next(turn):
                # Only the server that is measured runs, but for the last time: the rounds take turns.
                both[name].open(options)
                results = both[name].results
                say(
                    f"open {number + 1}: {name:4} {results.opens_per_second[-1]:9,.0f} opens/s"
                    f" {results.kilobytes_per_stream[-1]:9.1f} KB/stream"
                )
                if number < options.opens - 1:
                    both[name].stop()
        for number in range(options.rounds):
            for name in next(turn):
                both[name].round(options)
                results = both[name].results
                say(
                    f"round {number + 1}: {name:4} {results.deliveries_per_second[-1]:9,.0f} deliveries/s"
                    f" (client busy {results.client_busy[-1]:.0%})"
                )
        for number in range(options.publishes):
            for name in next(turn):
                both[name].single(number, options)
        return {name: both[name].results for name in NAMES}


def _turns() -> Iterator[Sequence[str]]:
    while True:
        yield NAMES
        yield NAMES[::-1]


def verdict(ratios: dict[str, float]) -> list[str]:
    """
    What ``--check`` finds missing.
    """
    missing = []
    if ratios["deliveries_per_second"] < LEAST_DELIVERIES:
        missing.append(f"deliveries/s are {ratios['deliveries_per_second']:.1f}x the SDK's, not {LEAST_DELIVERIES}x")
    if ratios["kilobytes_per_stream"] >= 1:
        missing.append(f"memory per stream is {ratios['kilobytes_per_stream']:.2f}x the SDK's, not less")
    if ratios["opens_per_second"] < 1:
        missing.append(f"opens/s are {ratios['opens_per_second']:.2f}x the SDK's, not at least as many")
    return missing


def show(results: dict[str, dict[str, float]], ratios: dict[str, float]) -> None:
    """
    Print the medians as a table.
    """
    titles = {
        "deliveries_per_second": "deliveries/s, median",
        "opens_per_second": "opens/s, median",
        "kilobytes_per_stream": "resident KB/stream, median",
        "p50_ms": "publish to last stream, p50 ms",
        "p99_ms": "publish to last stream, p99 ms",
        "cpu_ms_per_open": "server's CPU ms/open, median",
        "cpu_us_per_delivery": "server's CPU us/delivery, median",
    }
    print(f"\n{'':34}{'ours':>12}{'SDK':>12}{'ours/SDK':>12}")
    for key, title in titles.items():
        print(f"{title:34}{results['ours'][key]:>12,.1f}{results['sdk'][key]:>12,.1f}{ratios[key]:>12.2f}")


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fanout", description=__doc__.split("\n\n")[0])
    parser.add_argument("--streams", type=int, default=1000, help="listen streams on each server")
    parser.add_argument("--uris", type=int, default=100, help="URIs that each stream subscribes to; at most 1000")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that publish every URI once")
    parser.add_argument("--opens", type=int, default=3, help="times that all streams are opened, on a new server each")
    parser.add_argument("--publishes", type=int, default=40, help="single publishes, for the latency")
    parser.add_argument(
        "--concurrency", type=int, default=64, help="streams that wait for their acknowledgment at once"
    )
    parser.add_argument("--principals", type=int, default=1, help="principals, and tokens, that share our streams")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that opening, or one round, may take")
    parser.add_argument("--redis", action="store_true", help="ours over Redis instead of the in-memory layer")
    parser.add_argument("--postgres", action="store_true", help="ours on PostgreSQL instead of SQLite")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "--check", action="store_true", help="fail unless ours beats the SDK by what the project promises"
    )
    options = parser.parse_args(arguments)
    counts = ("streams", "uris", "rounds", "opens", "publishes", "concurrency", "principals")
    if min(getattr(options, name) for name in counts) < 1:
        parser.error("numbers must be positive")
    if options.uris > 1000:
        parser.error("--uris must be at most 1000")
    return options


def main() -> int:
    """
    Returns 0; 1 if a notification was lost or a server failed; 2 if ``--check`` isn't met.
    """
    options = parse_options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    say: Callable[[str], None] = (lambda line: print(line, file=sys.stderr)) if options.json else print
    try:
        measured = measure(options, say)
    except BenchmarkError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    results = {name: measured[name].summary() for name in NAMES}
    ratios = {key: value / results["sdk"][key] for key, value in results["ours"].items()}
    if options.json:
        report: dict[str, Any] = {
            "options": vars(options),
            **{name: {**results[name], "samples": vars(measured[name])} for name in NAMES},
            "ratios": ratios,
        }
        print(json.dumps(report, indent=2))
    else:
        show(results, ratios)
    missing = verdict(ratios) if options.check else []
    for line in missing:
        print(f"check: {line}", file=sys.stderr)
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
