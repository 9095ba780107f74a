"""
Some minutes of everything at once, on several server processes: streams that stay, clients that come and go, clients
that keep copies, clients that stop reading, and a process that saves.

    python -m benchmarks.soak --minutes 15 --streams 2000 --servers uvicorn uvicorn --postgres

Each minute it prints what the servers do and hold; at the end, whether all of it went back to where it began, and
whether memory grew in the second half.
"""

import argparse
import http.client
import json
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis as redis_client

from benchmarks.client import BenchmarkError
from benchmarks.copies import Copies
from benchmarks.crowd import Crowd, Listener, connect, is_cut, latencies, percentile, wait_until
from benchmarks.stalled import ARGUMENTS
from tests.support.processes import SERVERS, Postgres, Redis, Server
from tests.support.project import Project

URIS: Final = 200
"""Notes that are saved over and over."""

URIS_EACH: Final = 20
"""How many of them a stream subscribes to."""

WATCHED: Final = 100
"""Streams whose latency is measured."""

SETTLED: Final = 6.0
"""Seconds after which a save and its notices are known."""

STALLED_BUFFER: Final = 4096
"""``SO_RCVBUF`` of the clients that stop reading."""

MOST_GROWTH: Final = 5.0
"""Percent of the servers' memory in an hour, by the slope of the second half, that are no trend."""

SAVE: Final = """
import time
result, started = [], time.monotonic()
for number in range(int(rate * seconds)):
    time.sleep(max(0, started + number / rate - time.monotonic()))
    pk = keys[(offset + number * 7) % len(keys)]
    note = Note.objects.get(pk=pk)
    note.body = f"{offset + number}"
    result.append([pk, time.monotonic()])
    note.save()
"""


@dataclass(frozen=True)
class Sample:
    """
    What was seen in one minute.
    """

    minute: float
    streams: int
    rows: int
    deliveries: float
    """A second."""
    p50: float
    """Milliseconds from a save to its notice."""
    p99: float
    megabytes: float
    descriptors: int
    tasks: int
    redis_clients: int
    groups: int


class Soak:
    """
    The servers, and all that is done to them.
    """

    def __init__(self, project: Project, redis: Redis, options: argparse.Namespace) -> None:
        self.options = options
        self.project = project
        self.redis = redis_client.Redis(port=redis.port)
        self.keys: Any = project.worker.run(
            "result = []\nfor number in range(count):\n  result.append(Note.objects.create(title='n', shared=True).pk)",
            count=URIS,
        )
        self.token = project.token("soak", max_streams=100_000)
        self.servers = [
            project.serve(kind, application="benchmarks.insight:application", arguments=ARGUMENTS.get(kind, ()))
            for kind in options.servers
        ]
        self.crowd = Crowd()
        self.stalled: list[Listener] = []
        self.copies: list[Copies] = []
        self.opened = self.cut = self.relistened = 0
        self._saved: dict[str, list[float]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._counted = 0
        self._random = random.Random(1)  # the same run each time

    # Clients

    def open(self, *, is_watched: bool = False, receive_buffer: int = 0) -> Listener:
        """
        Open a stream to some of the notes, at one of the servers.
        """
        self.opened += 1
        uris = self._some_uris()
        server = self.servers[self.opened % len(self.servers)]
        return connect(
            server.port,
            self.token,
            uris,
            self.opened,
            receive_buffer=receive_buffer,
            watched=uris if is_watched else (),
        )

    def fill(self) -> None:
        """
        Open all streams, and begin to save.
        """
        for number in range(self.options.streams):
            self.crowd.add(self.open(is_watched=number < WATCHED))
        self.stalled = [self.open(receive_buffer=STALLED_BUFFER) for _ in range(self.options.stalled)]
        for number in range(self.options.copies):
            server = self.servers[number % len(self.servers)]
            self.copies.append(Copies(server.port, self.token, self._some_uris(), number))
            self.copies[-1].start()
        self._saving = threading.Thread(target=self._save, name="saving")
        self._saving.start()

    def churn(self) -> None:
        """
        Have some clients leave and others come, and those come again that the server ended.
        """
        for _ in range(self.options.churn):
            # Those whose latency is measured stay.
            leaving = self._random.choice(self.crowd.streams[WATCHED:] or self.crowd.streams)
            self.crowd.remove(leaving)
            self.crowd.add(self.open())
        while self.crowd.ended:
            ended = self.crowd.ended.pop()
            self.relistened += 1
            self.crowd.add(self.open(is_watched=bool(ended.watched)))
        for index, stream in enumerate(self.stalled):
            if is_cut(stream):
                stream.socket.close()
                self.cut += 1
                self.stalled[index] = self.open(receive_buffer=STALLED_BUFFER)

    def _some_uris(self) -> list[str]:
        return [f"note://{pk}" for pk in self._random.sample(self.keys, URIS_EACH)]

    def _save(self) -> None:
        worker, offset = self.project.new_worker(), 0
        while not self._over.is_set():
            saved: Any = worker.run(SAVE, rate=self.options.saves, seconds=2, keys=self.keys, offset=offset)
            offset += len(saved)
            with self._lock:
                for pk, at in saved:
                    self._saved.setdefault(f"note://{pk}", []).append(at)

    # What is seen

    def sample(self, minute: float, seconds: float) -> Sample:
        """
        Look at everything, ``seconds`` after the last time.
        """
        late = self._take_latencies(time.monotonic() - SETTLED)
        delivered, self._counted = self.crowd.messages - self._counted, self.crowd.messages
        rows: Any = self.project.worker.run("result = models.LiveStream.objects.count()")
        clients: Any = self.redis.info("clients")
        return Sample(
            minute=minute,
            streams=len(self.crowd.streams) + len(self.stalled) + len(self.copies),
            rows=rows,
            deliveries=delivered / seconds,
            p50=1000 * percentile(late, 50),
            p99=1000 * percentile(late, 99),
            megabytes=sum(server.rss() for server in self.servers) / 2**20,
            descriptors=sum(server.descriptors() for server in self.servers),
            tasks=sum(_tasks(server) for server in self.servers),
            redis_clients=clients["connected_clients"],
            groups=len(self.redis.pubsub_channels()),
        )

    def _take_latencies(self, until: float) -> list[float]:
        """
        How late the notices of the saves before ``until`` were.
        """
        with self._lock:
            saved = {uri: [at for at in times if at <= until] for uri, times in self._saved.items()}
            self._saved = {uri: [at for at in times if at > until] for uri, times in self._saved.items()}
        late = []
        for stream in list(self.crowd.streams):
            for uri in stream.watched:
                heard = list(stream.heard[uri])
                late += latencies(saved.get(uri, ()), heard)
                del stream.heard[uri][: bisect_right(heard, until)]
        return late

    def stop_saving(self) -> None:
        """
        Save no more, and let what was saved arrive.
        """
        self._over.set()
        self._saving.join()
        time.sleep(3)

    def wrong_copies(self) -> list[str]:
        """
        What is wrong with the copies that the clients kept.
        """
        bodies: Any = self.project.worker.run("result = list(Note.objects.values_list('pk', 'body'))")
        expected = {f"note://{pk}": body for pk, body in bodies}
        wrong = [f"a client that keeps copies failed: {copies.error}" for copies in self.copies if copies.error]
        old = sum(expected[uri] != body for copies in self.copies for uri, body in copies.copies.items())
        return [*wrong, f"{old} copies are out of date"] if old else wrong

    def leave(self) -> None:
        """
        Close all streams.
        """
        for copies in self.copies:
            copies.over.set()
        for copies in self.copies:
            copies.join()
        self.crowd.close()
        for stream in self.stalled:
            stream.socket.close()
        self.copies, self.stalled = [], []


def _tasks(server: Server) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", "/insight", headers={"Connection": "close"})
        return int(json.loads(connection.getresponse().read())["tasks"])
    finally:
        connection.close()


@contextmanager
def soaking(options: argparse.Namespace) -> Iterator[Soak]:
    """
    What it takes; nothing is left of it afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        directory = Path(name)
        (directory / "postgres").mkdir()
        redis = Redis(directory)
        postgres = Postgres(directory / "postgres") if options.postgres else None
        env = {} if postgres is None else {"DATABASE_URL": postgres.create("soak")}
        # The project's own environment is not to change what is measured.
        env |= {"CHANNEL_LAYER_BACKEND": "", "CHANNEL_LAYER_CONFIG": "", "PYTHONWARNINGS": "ignore"}
        project = Project(directory, REDIS_URL=redis.url, **env)
        try:
            yield Soak(project, redis, options)
        finally:
            project.stop()
            redis.stop()
            if postgres is not None:
                postgres.stop()


HEAD: Final = (
    f"{'minute':>6} {'streams':>8} {'rows':>6} {'deliv./s':>9} {'p50 ms':>7} {'p99 ms':>7} {'RSS MB':>8} {'fds':>6}"
    f" {'tasks':>6} {'Redis clients':>13} {'groups':>7}"
)


def line(sample: Sample) -> str:
    """
    One line of the table.
    """
    return (
        f"{sample.minute:6.1f} {sample.streams:8} {sample.rows:6} {sample.deliveries:9,.0f} {sample.p50:7.1f}"
        f" {sample.p99:7.1f} {sample.megabytes:8.1f} {sample.descriptors:6} {sample.tasks:6}"
        f" {sample.redis_clients:13} {sample.groups:7}"
    )


def run(on: Soak, say: Callable[[str], None]) -> list[str]:
    """
    Soak, and return what is wrong afterwards.
    """
    options = on.options
    # What is made once is there then: streams have come and gone at each server, and a read has been answered.
    for server in on.servers:
        Copies(server.port, on.token, (), 0).read(f"note://{on.keys[0]}")
    for _ in range(4 * len(on.servers)):
        on.open().socket.close()
    if not wait_until(lambda: on.sample(0, 1).rows == 0, timeout=20):
        raise BenchmarkError("The rows of the first streams stayed")
    # The hubs' own groups go some seconds later.
    wait_until(lambda: on.sample(0, 1).groups == 0, timeout=30, interval=1)
    say(HEAD)
    before = on.sample(0, 1)
    say(line(before))
    on.fill()
    samples, started = [], time.monotonic()
    seen = started
    on.sample(0, 1)
    while (now := time.monotonic()) < started + 60 * options.minutes:
        on.churn()
        if now >= seen + options.interval:
            samples.append(on.sample((now - started) / 60, now - seen))
            seen = now
            say(line(samples[-1]))
        time.sleep(max(0, now + 1 - time.monotonic()))
    on.stop_saving()
    wrong = on.wrong_copies()
    reads = sum(copies.reads for copies in on.copies)
    on.leave()
    # The hubs end some seconds after their last groups.
    wait_until(lambda: not _left(before, on.sample(0, 1)), timeout=60, interval=1)
    after = on.sample((time.monotonic() - started) / 60, 1)
    say(line(after))
    say(
        f"{on.opened:,} streams were opened, {on.relistened:,} of them again after the server had ended them; {on.cut}"
        f" stalled ones were ended; {reads:,} reads of {options.copies} clients with copies"
    )
    return [*wrong, *_left(before, after), *_trend(samples, say)]


def _left(before: Sample, after: Sample) -> list[str]:
    wrong = []
    if after.rows or after.groups:
        wrong.append(f"{after.rows} rows and {after.groups} groups are left")
    # A connection of a pool more or less is none of a stream's.
    if after.descriptors > before.descriptors + 16:
        wrong.append(f"{after.descriptors} descriptors are open, which were {before.descriptors}")
    if after.tasks > before.tasks:
        wrong.append(f"{after.tasks} tasks are left, which were {before.tasks}")
    if after.redis_clients > before.redis_clients + 2:
        wrong.append(f"Redis has {after.redis_clients} clients, which were {before.redis_clients}")
    return wrong


def _trend(samples: Sequence[Sample], say: Callable[[str], None]) -> list[str]:
    half = samples[len(samples) // 2 :]
    if len(half) < 2:
        return []
    slope = statistics.linear_regression([s.minute for s in half], [s.megabytes for s in half]).slope
    percent = 60 * slope / half[0].megabytes * 100
    say(f"memory in the second half: {slope * 1024:+.0f} KB a minute, {percent:+.2f} % an hour")
    return [f"memory grows by {percent:.1f} % an hour"] if percent > MOST_GROWTH else []


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=["uvicorn", "uvicorn"])
    parser.add_argument("--streams", type=int, default=2000, help="streams that are read, over all servers")
    parser.add_argument("--stalled", type=int, default=20, help="clients that stop reading, and come again when ended")
    parser.add_argument("--copies", type=int, default=10, help="clients that read again what changed")
    parser.add_argument("--churn", type=int, default=5, help="clients that leave, and come, each second")
    parser.add_argument("--saves", type=float, default=20, help="saves a second")
    parser.add_argument("--interval", type=float, default=60, help="seconds from one line to the next")
    parser.add_argument("--postgres", action="store_true", help="the rows in PostgreSQL instead of SQLite")
    return parser.parse_args(arguments)


def main() -> int:
    """
    Returns 0; 1 if a server failed; 2 if not everything went back to where it began.
    """
    options = parse_options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with soaking(options) as on:
            wrong = run(on, lambda text: print(text, flush=True))
    except BenchmarkError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    for text in wrong:
        print(f"wrong: {text}", file=sys.stderr)
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
