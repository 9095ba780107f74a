"""
Two servers, two writers and many clients with copies, while everything that they stand on fails.
"""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.broker import Broker
from tests.support.copies import Copy, Drop
from tests.support.processes import Worker
from tests.support.project import Project

NOTES = 20
NOTES_EACH = 5

# A writer that starts does its work anew: one that was killed may have written what it could not tell of any more.
WRITE = """
import random, time
from django.db import transaction
deadline = time.monotonic() + seconds
if is_new:
    for note in Note.objects.filter(pk__in=pks):
        note.save()
while time.monotonic() < deadline:
    pk = random.choice(pks)
    way = random.random()
    if way < 0.6:
        note = Note.objects.get(pk=pk)
        note.body = str(int(note.body or 0) + 1)
        note.save()
    elif way < 0.8:
        Note.objects.filter(pk=pk).update(body=str(random.getrandbits(30)))
    else:
        with transaction.atomic():
            for note in Note.objects.filter(pk__in=random.sample(pks, 3)):
                note.body = str(int(note.body or 0) + 1)
                note.save()
    time.sleep(pause)
"""

BODIES = "result = [[note.pk, note.body] for note in Note.objects.filter(pk__in=pks)]"

OUTAGES = frozenset({"stopped", "black hole"})

SETTLE = 2.5
"""Seconds from an outage's begin until its cost is counted: by then clients have read what they still had to."""


class Writer:
    """
    A process that writes notes, until it is killed or told to end.
    """

    def __init__(self, project: Project, pks: Sequence[int], *, pause: float) -> None:
        self.project = project
        self.pks = list(pks)
        self.pause = pause
        self.kills = 0
        self.worker: Worker = project.new_worker()

    async def run(self, stop: asyncio.Event) -> None:
        is_new = True
        while not stop.is_set():
            worker = self.worker
            try:
                await asyncio.to_thread(
                    worker.run, WRITE, flush=False, pks=self.pks, pause=self.pause, seconds=0.5, is_new=is_new
                )
                is_new = False
            except (ValueError, OSError):
                if worker.process.wait(5) != -signal.SIGKILL:
                    raise
                self.worker, is_new = self.project.new_worker(), True

    def kill(self) -> None:
        self.worker.process.kill()
        self.worker.process.wait()
        self.kills += 1


@dataclass
class Event:
    """
    A fault that was done.
    """

    name: str
    began: float
    ended: float
    busiest: float = 0.0
    """The largest share of a core that a server took while the layer was out, if it was."""


@dataclass
class Outcome:
    """
    What became of the copies.
    """

    events: list[Event] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    unexplained: list[Drop] = field(default_factory=list)
    """Drops of streams whose server was not killed."""
    seconds_to_equal: float = 0.0
    different: dict[str, Any] = field(default_factory=dict)
    """Of each copy that still differs: what it holds, and what the database does."""
    heard: int = 0
    outages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each process's log, how often it tells of an outage of the layer, and of its end."""


class Chaos:
    """
    The scene. ``servers`` may be replaced by others at the same port while it runs.
    """

    def __init__(self, project: Project, broker: Broker, *, clients: int, pause: float, seed: int) -> None:
        self.project = project
        self.broker = broker
        self.random = random.Random(seed)
        self.pks = [project.note(body="0") for _ in range(NOTES)]
        token = project.token("copies")
        self.servers = [project.serve("uvicorn"), project.serve("daphne")]
        self.writers = [Writer(project, self.pks[half::2], pause=pause) for half in (0, 1)]
        self.copies = [
            Copy(
                self.servers[number % 2].port,
                token=token,
                uris=[f"note://{pk}" for pk in self.random.sample(self.pks, NOTES_EACH)],
            )
            for number in range(clients)
        ]
        self.outcome = Outcome()
        self._killed: list[tuple[int, float, float]] = []

    def faults(self, *, seconds: float) -> dict[str, Callable[[], Awaitable[None]]]:
        """
        All that can happen, by name. What lasts, lasts so long.
        """
        return {
            **self.broker.faults(seconds=seconds),
            "server paused": lambda: self._pause_server(seconds),
            "server killed": self._kill_server,
            "writer killed": self._kill_writer,
        }

    async def run(self, faults: Sequence[tuple[str, float]], *, calm: Callable[[], float]) -> Outcome:
        """
        Let the faults come one after another, each a name and seconds, with ``calm()`` seconds between them, and then
        wait until the copies equal the database.
        """
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(copy.run()) for copy in self.copies]
            await self._until(lambda: all(copy.is_open for copy in self.copies), seconds=30)
            writers = [group.create_task(writer.run(stop)) for writer in self.writers]
            for name, seconds in faults:
                await asyncio.sleep(calm())
                await self._do(name, seconds)
            over = time.monotonic()
            stop.set()
            await asyncio.wait(writers)
            await self._compare(over)
            for client in clients:
                client.cancel()
        self._count()
        return self.outcome

    async def _do(self, name: str, seconds: float) -> None:
        event = Event(name, time.monotonic(), 0)
        measuring = asyncio.create_task(self._measure(event)) if name in OUTAGES and seconds > SETTLE + 1 else None
        await self.faults(seconds=seconds)[name]()
        event.ended = time.monotonic()
        if measuring is not None:
            measuring.cancel()
            await asyncio.wait([measuring])
        self.outcome.events.append(event)

    async def _measure(self, event: Event) -> None:
        """
        How busy the servers are in an outage.
        """
        await asyncio.sleep(SETTLE)
        began, before = time.monotonic(), [server.cpu() for server in self.servers]
        while True:
            await asyncio.sleep(0.1)
            elapsed = time.monotonic() - began
            used = [server.cpu() - earlier for server, earlier in zip(self.servers, before, strict=True)]
            if elapsed >= 1:
                event.busiest = max(used) / elapsed

    # Faults of processes

    async def _pause_server(self, seconds: float) -> None:
        server = self.random.choice(self.servers)
        server.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            server.process.send_signal(signal.SIGCONT)

    async def _kill_server(self) -> None:
        number = self.random.randrange(len(self.servers))
        server = self.servers[number]
        began = time.monotonic()
        server.process.kill()
        await asyncio.to_thread(server.process.wait)
        again = await asyncio.to_thread(self.project.serve, server.kind, port=server.port)
        self.servers[number] = again
        self._killed.append((server.port, began, time.monotonic()))

    async def _kill_writer(self) -> None:
        await asyncio.to_thread(self.random.choice(self.writers).kill)

    # The end

    async def _compare(self, over: float) -> None:
        deadline = over + 10
        while True:
            rows = await asyncio.to_thread(self.project.worker.run, BODIES, pks=self.pks)
            database = {f"note://{pk}": body for pk, body in rows}
            different = {
                f"{number} at {copy.port}, {uri}": (held, database[uri])
                for number, copy in enumerate(self.copies)
                for uri, held in copy.held.items()
                if held != database[uri]
            }
            is_late = time.monotonic() > deadline
            if not self.outcome.seconds_to_equal and (is_late or not different):
                self.outcome.seconds_to_equal = time.monotonic() - over
                self.outcome.different = different
            # Nobody is left who believes that the layer is down.
            if is_late or (not different and self._are_all_back()):
                return
            await asyncio.sleep(0.1)

    def _are_all_back(self) -> bool:
        self._count()
        open_ones = {log: failed - back for log, (failed, back) in self.outcome.outages.items()}
        # The one of a process that was killed in an outage stays open.
        return all(open_ones[f"{server.log.name}, hub"] == 0 for server in self.servers) and max(open_ones.values()) < 2

    def _count(self) -> None:
        outcome = self.outcome
        outcome.drops = [drop for copy in self.copies for drop in copy.drops]
        outcome.unexplained = [drop for drop in outcome.drops if not self._is_explained(drop)]
        outcome.heard = sum(copy.heard.total() for copy in self.copies)
        for log in self.project.directory.glob("*.log"):
            text = log.read_text(errors="replace")
            for who in ("hub", "publisher"):
                outcome.outages[f"{log.name}, {who}"] = (
                    text.count(f"mcp_channels.{who}: The channel layer failed"),
                    text.count(f"mcp_channels.{who}: The channel layer is back"),
                )

    def _is_explained(self, drop: Drop) -> bool:
        return any(port == drop.port and began <= drop.at <= ended + 2 for port, began, ended in self._killed)

    @staticmethod
    async def _until(reached: Callable[[], bool], *, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not reached():
                await asyncio.sleep(0.05)


def random_faults(names: Sequence[str], *, seconds: float, longest: float, seed: int) -> list[tuple[str, float]]:
    """
    Faults in random order, all of them once before any comes again, that last about so many seconds altogether. A
    server is not paused for as long as would make the others take it for dead.
    """
    chance = random.Random(seed)
    chosen: list[tuple[str, float]] = []
    left = seconds
    bag: list[str] = []
    while left > 0:
        if not bag:
            bag = chance.sample(list(names), len(names))
        name = bag.pop()
        lasts = chance.uniform(2, min(longest, 8) if name == "server paused" else longest)
        chosen.append((name, lasts))
        left -= 3 + (lasts if name in OUTAGES or name == "server paused" else 0)
    return chosen
