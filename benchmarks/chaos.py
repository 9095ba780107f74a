"""
Clients that keep copies of notes, while everything that they stand on fails.

    python -m benchmarks.chaos --layer pubsub --seconds 150

Two servers (uvicorn and Daphne) and two writing processes share a database and a Redis. In random order, by a seed that
is printed, Redis is killed and started empty, flushed, paused, its connections are cut, its groups forgotten, its
channels filled and poisoned, and servers and writers are paused and killed. When it is over, every copy must equal the
database within ten seconds, and no stream may have been lost but those of a server that was killed.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.services import services
from tests.support.broker import Broker
from tests.support.chaos import OUTAGES, Chaos, Outcome, random_faults

MOST_BUSY: Final = 0.2
"""The share of a core that a server may take while the layer is out."""


OF_PROCESSES: Final = frozenset({"server paused", "server killed", "writer killed"})
"""The faults that don't touch the layer."""


def run(options: argparse.Namespace) -> Outcome:
    """
    Start what is needed, let the faults come, and stop it again.
    """
    with services(options.layer, postgres=options.postgres) as (project, redis):
        broker = Broker(redis, options.layer)
        chaos = Chaos(project, broker, clients=options.clients, pause=options.pause, seed=options.seed)
        names = options.only or list(chaos.faults(seconds=1))
        faults = random_faults(names, seconds=options.seconds, longest=options.longest, seed=options.seed)
        calm = random.Random(options.seed)
        outcome = asyncio.run(chaos.run(faults, calm=lambda: calm.uniform(1, 4)))
        if options.logs is not None:
            options.logs.mkdir(exist_ok=True)
            for log in project.directory.glob("*.log"):
                (options.logs / log.name).write_bytes(log.read_bytes())
        return outcome


def faults_of(outcome: Outcome) -> list[str]:
    """
    What must not be, in words.
    """
    wrong = [f"a copy differs: {where}: {values}" for where, values in outcome.different.items()]
    wrong += [f"a stream was lost: {drop}" for drop in outcome.unexplained]
    wrong += [f"a server was busy in an outage: {event}" for event in outcome.events if event.busiest > MOST_BUSY]
    writers_killed = sum(event.name == "writer killed" for event in outcome.events)
    layer_faults = sum(event.name not in OF_PROCESSES for event in outcome.events)
    for log, (failed, back) in outcome.outages.items():
        # A process may be killed in an outage; and the writers share a log.
        if not 0 <= failed - back <= 1 + writers_killed or failed > layer_faults * (3 if "worker" in log else 1):
            wrong.append(f"{log} tells of {failed} outages and {back} recoveries; there were {layer_faults} faults")
    return wrong


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__.split("\n\n")[0])
    parser.add_argument("--layer", choices=("pubsub", "core"), default="pubsub", help="the channel layer")
    parser.add_argument("--seconds", type=float, default=150, help="for about so long faults come")
    parser.add_argument("--longest", type=float, default=30, help="the most seconds that an outage lasts")
    parser.add_argument("--clients", type=int, default=40, help="clients, half of them at each server")
    parser.add_argument("--pause", type=float, default=0.4, help="seconds between two writes of a writer")
    parser.add_argument("--only", action="append", help="a fault's name; may be given several times")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what chance begins with")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    parser.add_argument("--logs", type=Path, help="a directory to keep the processes' logs in")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args(arguments)


def main() -> int:
    """
    Returns 0, or 2 if something is as it must not be.
    """
    options = parse_options()
    print(f"seed {options.seed}", file=sys.stderr)
    outcome = run(options)
    wrong = faults_of(outcome)
    if options.json:
        print(json.dumps({"seed": options.seed, **asdict(outcome), "wrong": wrong}, indent=2))
    else:
        for event in outcome.events:
            busy = f", the busiest server took {event.busiest:.0%} of a core" if event.name in OUTAGES else ""
            print(f"{event.name:20} {event.ended - event.began:5.1f} s{busy}")
        print(f"{outcome.heard} notifications; {len(outcome.drops)} streams lost with their server")
        print(f"outages and recoveries in the logs: {outcome.outages}")
        print(f"every copy was equal {outcome.seconds_to_equal:.1f} s after the last fault")
        print("\n".join(wrong) or "nothing was wrong")
    return 2 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
