"""
The most streams of a principal, over several processes: floods, killed processes, clocks that are wrong, and clients
that supersede each other.
"""

import threading
import time

import pytest

from tests.support.flood import Client, Flood

COUNT = int(__import__("os").environ.get("COUNT", "2000"))

LIVE = """
from django.db.models.functions import Now
rows = models.LiveStream.objects.filter(principal__name=name).exclude(state="ending")
result = rows.count()
"""


@pytest.fixture
def make_shared(make_project, postgres, own_redis):
    """
    Projects on PostgreSQL, or on SQLite, that share a Redis.
    """
    made = []

    def make(database: str, **env: str):
        made.append(database)
        if database == "postgres":
            env["DATABASE_URL"] = postgres.create(f"caps_{time.monotonic_ns()}")
        return make_project(REDIS_URL=own_redis.url, **env)

    return make


class Watch:
    """
    Looks all the time at how many streams the database says are open.
    """

    def __init__(self, project, name: str) -> None:
        self.most = 0
        self._worker = project.new_worker()
        self._name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.most = max(self.most, self._worker.run(LIVE, name=self._name))
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def flood_with(project, servers, *, count: int) -> None:
    token = project.token("crowd", max_streams=4)
    quiet = project.token("quiet", max_streams=4)
    note = project.note()
    uri = f"note://{note}"
    others = Flood(
        [Client(servers[i % len(servers)].port, quiet, {"resourceSubscriptions": [uri]}, i) for i in range(4)]
    )
    others.connect()
    assert others.run(lambda: all(client.is_live for client in others.clients), timeout=20)
    watch = Watch(project, "crowd")
    clients = [
        Client(servers[number % len(servers)].port, token, {"resourceSubscriptions": [uri]}, number)
        for number in range(count)
    ]
    flood = Flood(clients)
    try:
        flood.connect()
        assert flood.run(lambda: sum(client.ended_well for client in clients) >= count - 4, timeout=90)
        # Nothing more happens.
        flood.run(lambda: False, timeout=1)
        assert {client.status for client in clients} == {200}
        assert flood.most_live == 4
        live = flood.live
        assert len(live) == 4
        assert all(client.ended_well for client in clients if client not in live)
        project.save(note)
        assert flood.run(lambda: all(len(client.messages()) > 1 for client in live), timeout=10)
        assert others.run(lambda: all(len(client.messages()) > 1 for client in others.clients), timeout=10)
        assert len(others.live) == 4
        watch.stop()
        assert watch.most <= 4
        assert project.worker.run(LIVE, name="crowd") == 4
    finally:
        watch.stop()
        flood.close()
        others.close()


def test_two_thousand_listens_hold_the_cap_over_four_processes(make_shared):
    project = make_shared("postgres")
    flood_with(project, [project.serve("uvicorn") for _ in range(4)], count=COUNT)


def test_two_thousand_listens_hold_the_cap_over_two_processes_on_sqlite(make_shared):
    project = make_shared("sqlite")
    flood_with(project, [project.serve("uvicorn") for _ in range(2)], count=COUNT)
