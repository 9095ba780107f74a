"""
Very many streams that are opened and closed in a loop, and what is left of them: nothing.

    python -m benchmarks.churn --streams 50000 --server uvicorn --layer pubsub

Clients close by the book, reset before, in and after the acknowledgment, send half a request, supersede themselves, get
their writes failed, and are killed; and a second server process with streams of its own is killed, over and over. What
the server holds (descriptors, tasks, threads, topics, streams, objects), what Redis holds of it, and the database's
rows must be what they were; resident memory must not rise with the number of streams.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.services import services
from tests.support.churn import Churn, ChurnError, make_tokens
from tests.support.http import listening
from tests.support.leftovers import INSIGHT, Leftovers, differences
from tests.support.processes import SERVERS, Redis, Server
from tests.support.project import Project

SAMPLE: Final = 1000
"""Streams between two looks at the memory."""

SETTLE: Final = 60.0
"""Seconds that may pass until all is as it was: dead processes are found after twenty."""

LARGEST_SLOPE: Final = 100.0
"""Bytes of resident memory per stream that are not called a leak: what is left of 50,000 streams would be 5 MB."""

CLIENTS_EVERY: Final = 3.0
"""Seconds between two kills of a client's process, which has twenty streams."""

NEIGHBOUR_EVERY: Final = 10.0
"""Seconds between two kills of the other server process."""

STAYING: Final = {"toolsListChanged": True, "resourceSubscriptions": ["page:shared"]}


@dataclass
class Memory:
    """
    Resident memory while streams come and go: pairs of streams so far, and bytes.
    """

    warm_up: int
    samples: list[tuple[int, int]] = field(default_factory=list)

    @property
    def slope(self) -> float:
        """
        Bytes per stream after the warm-up, by least squares.
        """
        late = [sample for sample in self.samples if sample[0] >= self.warm_up]
        if len(late) < 2:
            return float("nan")
        return statistics.linear_regression(*zip(*late, strict=True)).slope


class Neighbour:
    """
    The other server process: it gets streams, and is killed with them.
    """

    def __init__(self, project: Project, token: str, streams: int) -> None:
        self.project = project
        self.kills = 0
        self._token = token
        self._streams = streams

    async def run(self, stop: asyncio.Event) -> None:
        """
        Start it, and kill it, until ``stop``.
        """
        while not await _is_set(stop, NEIGHBOUR_EVERY):
            server = await asyncio.to_thread(self.project.serve, "uvicorn", application=INSIGHT)
            churn = Churn(server.port, token=self._token, tokens=[], seed=self.kills)
            async with churn.holding(self._streams):
                server.process.kill()
                await asyncio.to_thread(server.process.wait)
            self.kills += 1


async def measure(
    options: argparse.Namespace, project: Project, redis: Redis, say: Callable[[str], None]
) -> dict[str, Any]:
    """
    Run everything, and return what was found.
    """
    server = project.serve(options.server, application=INSIGHT, plain=True)
    churn = Churn(
        server.port, token=project.token(), tokens=make_tokens(project, options.principals), seed=options.seed
    )
    leftovers = Leftovers(project, server, redis)
    memory = Memory(options.warm_up)
    async with listening(server.port, STAYING, token=project.token("staying"), path="/pages/mcp") as staying:
        await churn.run(200)
        before = await asyncio.to_thread(leftovers.settle, _is_quiet, timeout=SETTLE)
        started = time.perf_counter()
        neighbour = Neighbour(project, project.token("neighbour"), options.neighbours)
        await _churn(options, churn, neighbour, lambda through: _sample(through, server, memory, say))
        seconds = time.perf_counter() - started
        after = await asyncio.to_thread(leftovers.settle, lambda found: not differences(before, found), timeout=SETTLE)
        await asyncio.to_thread(project.worker.run, "notify.notify_resource_updated('page:shared')")
        async with asyncio.timeout(5):
            # It may also have been told that it missed something.
            while (await staying.message())["params"].get("uri") != "page:shared":
                pass
    return {
        "streams": sum(churn.done.values()),
        "seconds": seconds,
        "ways": dict(churn.done),
        "neighbours_killed": neighbour.kills,
        "differences": differences(before, after),
        "waiting_in_redis": after["redis"]["waiting"],
        "rss_before": before["rss"],
        "rss_after": after["rss"],
        "bytes_per_stream": memory.slope,
        "samples": memory.samples,
        "trouble": [line for line in server.read_log().splitlines() if "Traceback" in line or "too long" in line],
    }


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _is_quiet(found: dict[str, Any]) -> bool:
    # The groups of topics that are gone are left a moment later.
    inside = found["inside"]
    return inside["topics"] == 2 and inside["leaving"] == 0 and found["rows"] == {"streams": 1, "nodes": 1}


def _sample(through: int, server: Server, memory: Memory, say: Callable[[str], None]) -> None:
    if through % SAMPLE == 0:
        memory.samples.append((through, server.rss()))
        say(f"{through:6} streams: {server.rss() / 2**20:7.1f} MB")


async def _churn(options: argparse.Namespace, churn: Churn, neighbour: Neighbour, each: Callable[[int], None]) -> None:
    stop = asyncio.Event()

    async def kill_clients() -> None:
        while not await _is_set(stop, CLIENTS_EVERY):
            await churn.kill_clients()

    async with asyncio.TaskGroup() as group:
        if options.neighbours:
            group.create_task(neighbour.run(stop))
        group.create_task(kill_clients())
        try:
            await churn.run(options.streams, concurrency=options.concurrency, each=each)
        finally:
            stop.set()


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.churn", description=__doc__.split("\n\n")[0])
    parser.add_argument("--streams", type=int, default=50_000, help="streams that are opened and closed")
    parser.add_argument("--server", choices=SERVERS, default="uvicorn", help="the ASGI server")
    parser.add_argument("--layer", choices=("pubsub", "core"), default="pubsub", help="the channel layer")
    parser.add_argument("--warm-up", type=int, default=25_000, help="streams before which memory may still grow")
    parser.add_argument("--concurrency", type=int, default=16, help="streams at the same time")
    parser.add_argument("--principals", type=int, default=200, help="principals that supersede their own streams")
    parser.add_argument(
        "--neighbours", type=int, default=50, help="streams of the server process that is killed; 0: none"
    )
    parser.add_argument("--seed", type=int, default=0, help="what chance begins with")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """
    Start what is needed, measure, and stop it again.
    """
    with services(options.layer, postgres=options.postgres) as (project, redis):
        return asyncio.run(measure(options, project, redis, say))


def main() -> int:
    """
    Returns 0; 1 if a stream was not answered as it must be; 2 if something is left, or memory rises.
    """
    options = parse_options()
    say: Callable[[str], None] = (lambda line: print(line, file=sys.stderr)) if options.json else print
    try:
        found = run(options, say)
    except ExceptionGroup as group:
        faults, others = group.split((ChurnError, OSError, TimeoutError))
        if faults is None or others is not None:
            raise
        print(f"failed: {faults.exceptions[0]!r}", file=sys.stderr)
        return 1
    is_good = not found["differences"] and not found["trouble"] and not found["bytes_per_stream"] > LARGEST_SLOPE
    if options.json:
        print(json.dumps({"options": vars(options), **found}, indent=2))
    else:
        print(f"{found['streams']} streams in {found['seconds']:.0f} s: {found['ways']}")
        print(f"servers killed: {found['neighbours_killed']}; left: {found['differences'] or 'nothing'}")
        print(f"memory: {found['rss_before'] / 2**20:.1f} MB before, {found['rss_after'] / 2**20:.1f} MB after")
        print(
            f"after the warm-up: {found['bytes_per_stream']:.1f} bytes a stream; trouble: {found['trouble'] or 'none'}"
        )
    return 0 if is_good else 2


if __name__ == "__main__":
    sys.exit(main())
