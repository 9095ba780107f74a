"""
The most streams of a principal, over several processes: floods, killed processes, clocks that are wrong, and clients
that supersede each other.
"""

import asyncio
import signal
import threading
import time
from contextlib import AsyncExitStack

import pytest

from tests.integration.test_endings import check_closing
from tests.support.flood import Client, Flood
from tests.support.http import listen, listen_body, listen_headers, listening

COUNT = 2000
AHEAD, BEHIND = "tests.support.ahead:application", "tests.support.behind:application"
TOOLS = {"toolsListChanged": True}

LIVE = """
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


@pytest.mark.long
@pytest.mark.timeout(400)
def test_two_thousand_listens_hold_the_cap_over_four_processes(make_shared):
    project = make_shared("postgres")
    flood_with(project, [project.serve("uvicorn") for _ in range(4)], count=COUNT)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_two_thousand_listens_hold_the_cap_over_two_processes_on_sqlite(make_shared):
    project = make_shared("sqlite")
    flood_with(project, [project.serve("uvicorn") for _ in range(2)], count=COUNT)


@pytest.mark.long
def test_clocks_that_are_wrong_change_nothing(make_shared):
    project = make_shared("postgres")
    servers = [
        project.serve("uvicorn"),
        project.serve("uvicorn", application=AHEAD),
        project.serve("uvicorn", application=BEHIND),
    ]
    flood_with(project, servers, count=200)


async def test_the_oldest_goes_whatever_the_hosts_clocks_say(make_shared):
    project = make_shared("postgres")
    servers = [project.serve("uvicorn", application=AHEAD), project.serve("uvicorn", application=BEHIND)]
    token = project.token("alice", max_streams=2)
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(servers[number % 2].port, TOOLS, token=token, id=number))
            for number in range(6)
        ]
        for number, stream in enumerate(streams[:4]):
            check_closing(await stream.ending(), "superseded", number)
        for stream in streams[4:]:
            await stream.silence(0.2)


TABLES = """
result = [models.Node.objects.count(), models.LiveStream.objects.count(), models.LiveStream.objects.live().count()]
"""


async def until(project, code: str, expected: object, *, seconds: float) -> None:
    """
    Wait until code in the other process gives what is expected.
    """
    deadline = time.monotonic() + seconds
    while (found := project.worker.run(code)) != expected:
        assert time.monotonic() < deadline, f"still {found} and not {expected}"
        await asyncio.sleep(0.25)


@pytest.mark.long
@pytest.mark.parametrize(("database", "application"), [("postgres", AHEAD), ("sqlite", None)])
async def test_a_killed_process_holds_nobody_up_and_leaves_nothing(make_shared, database, application):
    project = make_shared(database)
    first = project.serve("uvicorn")
    second = project.serve("uvicorn", **({} if application is None else {"application": application}))
    token = project.token("alice", max_streams=2)
    other = project.token("bob", max_streams=2)
    async with AsyncExitStack() as stack:
        bobs = await stack.enter_async_context(listening(second.port, TOOLS, token=other))
        for _ in range(2):
            await stack.enter_async_context(listening(first.port, TOOLS, token=token))
        first.process.kill()
        started = time.monotonic()
        alices = [await stack.enter_async_context(listening(second.port, TOOLS, token=token)) for _ in range(2)]
        # The dead process is given a second to answer, once.
        assert time.monotonic() - started < 4
        await until(project, TABLES, [1, 3, 3], seconds=40)
        project.worker.run("notify.notify_tools_changed()")
        for stream in [bobs, *alices]:
            assert (await stream.message())["method"] == "notifications/tools/list_changed"


@pytest.mark.long
async def test_a_process_that_was_taken_for_dead_ends_its_streams(make_shared):
    project = make_shared("postgres")
    first, second = project.serve("uvicorn"), project.serve("uvicorn")
    token, other = project.token("alice", max_streams=1), project.token("bob")
    async with (
        listening(second.port, TOOLS, token=other) as bobs,
        listening(first.port, TOOLS, token=token) as lost,
    ):
        first.process.send_signal(signal.SIGSTOP)
        try:
            await until(project, TABLES, [1, 1, 1], seconds=40)
            async with listening(second.port, TOOLS, token=token) as alices:
                first.process.send_signal(signal.SIGCONT)
                check_closing(await lost.ending(), "server_error")
                await alices.silence(0.2)
        finally:
            first.process.send_signal(signal.SIGCONT)
        # It begins anew.
        async with listening(first.port, TOOLS, token=token):
            await until(project, TABLES, [2, 2, 2], seconds=10)
        await bobs.silence(0.2)


@pytest.mark.long
async def test_clients_that_supersede_each_other_settle_to_one_admission_a_second(make_shared):
    project = make_shared("sqlite")
    servers = [project.serve("uvicorn"), project.serve("uvicorn")]
    token, other = project.token("twins", max_streams=1), project.token("bob", max_streams=1)
    admitted: list[float] = []

    async def fight(server) -> None:
        while True:
            async with listening(server.port, TOOLS, token=token) as stream:
                admitted.append(time.monotonic())
                check_closing(await stream.ending(), "superseded")

    started = time.monotonic()
    twins = [asyncio.create_task(fight(server)) for server in servers]
    await asyncio.sleep(14)
    async with asyncio.timeout(1), listening(servers[0].port, TOOLS, token=other):
        pass  # Another principal is not slowed.
    assert not any(twin.done() for twin in twins)
    for twin in twins:
        twin.cancel()
    await asyncio.gather(*twins, return_exceptions=True)
    last = [moment for moment in admitted if started + 5 <= moment <= started + 13]
    assert 3 <= len(last) <= 9


async def test_a_dozen_streams_one_after_the_other_are_not_slowed(make_shared):
    project = make_shared("sqlite")
    server = project.serve("uvicorn")
    token = project.token("alice", max_streams=4)
    async with AsyncExitStack() as stack:
        started = time.monotonic()
        for number in range(12):
            await stack.enter_async_context(listening(server.port, TOOLS, token=token, id=number))
        assert time.monotonic() - started < 5


async def test_a_client_that_leaves_while_it_has_to_wait_supersedes_nobody(make_shared):
    project = make_shared("sqlite")
    server = project.serve("uvicorn")
    token = project.token("alice", max_streams=1)
    async with AsyncExitStack() as stack:
        for number in range(12):
            last = await stack.enter_async_context(listening(server.port, TOOLS, token=token, id=number))
        for _ in range(3):
            body = listen_body(TOOLS)
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = "".join(f"{name}: {value}\r\n" for name, value in listen_headers().items())
            writer.write(
                f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Length: {len(body)}\r\n{head}\r\n".encode()
                + body
            )
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.close()
        await last.silence(6)
        assert project.worker.run(LIVE, name="alice") == 1


async def test_a_client_that_is_gone_without_a_word_holds_nobody_up(make_shared):
    project = make_shared("sqlite")
    server = project.serve("uvicorn")
    token = project.token("alice", max_streams=1)
    async with listening(server.port, TOOLS, token=token) as zombie:
        zombie._reader._transport.pause_reading()
        started = time.monotonic()
        async with listening(server.port, TOOLS, token=token) as stream:
            assert time.monotonic() - started < 3
            await stream.silence(0.2)
            await until(project, TABLES, [1, 1, 1], seconds=5)


async def test_without_redis_streams_are_superseded_and_leave_nothing(make_shared, own_redis):
    project = make_shared("sqlite")
    first, second = project.serve("uvicorn"), project.serve("uvicorn")
    token = project.token("alice", max_streams=2)
    crowd = project.token("crowd")
    async with AsyncExitStack() as stack:
        far = await stack.enter_async_context(listening(second.port, TOOLS, token=token))
        near = await stack.enter_async_context(listening(first.port, TOOLS, token=token))
        many = [await stack.enter_async_context(listening(first.port, TOOLS, token=crowd, id=n)) for n in range(5)]
        own_redis.stop()
        async with listening(first.port, TOOLS, token=crowd):
            await until(project, TABLES, [2, 8, 8], seconds=5)
        await until(project, TABLES, [2, 7, 7], seconds=5)
        for stream, server in ((far, first), (near, first)):
            started = time.monotonic()
            await stack.enter_async_context(listening(server.port, TOOLS, token=token))
            check_closing(await stream.ending(), "superseded")
            assert time.monotonic() - started < 5
        first.terminate()
        for number, stream in enumerate(many):
            check_closing(await stream.ending(), "shutdown", number)
        async with asyncio.timeout(8):
            await asyncio.to_thread(first.process.wait)
        await until(project, TABLES, [0, 0, 0], seconds=15)
    ours = [line for line in first.read_log().splitlines() if "ERROR mcp_channels" in line]
    # The hub's and the publisher's.
    assert len(ours) <= 2
    assert all("The channel layer failed" in line for line in ours)


async def test_a_cap_that_changes_holds_from_the_next_listen_on(make_shared):
    project = make_shared("sqlite")
    servers = [project.serve("uvicorn"), project.serve("daphne")]
    token = project.token("alice", max_streams=2)
    change = "models.Principal.objects.filter(name='alice').update(max_streams=cap)"
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(listening(s.port, TOOLS, token=token)) for s in servers]
        project.worker.run(change, cap=1)
        await stack.enter_async_context(listening(servers[1].port, TOOLS, token=token))
        for stream in streams:
            check_closing(await stream.ending(), "superseded")
        project.worker.run(change, cap=0)
        for server in servers:
            async with listen(server.port, TOOLS, token=token) as refused:
                assert refused.status == 403
                assert (await refused.json())["error"]["message"]


async def test_anonymous_callers_of_one_address_share_a_cap(make_shared):
    project = make_shared("sqlite")
    server = project.serve("uvicorn")
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(listening(server.port, TOOLS, path="/open/mcp", id=number))
            for number in range(5)
        ]
        check_closing(await streams[0].ending(), "superseded", 0)
        [name] = project.worker.run(
            "result = list(models.Principal.objects.filter(is_anonymous=True).values_list('name', flat=True))"
        )
        assert name == "anonymous:127.0.0.1"
        project.worker.run("p = models.Principal.objects.get(is_anonymous=True); p.is_active = False; p.save()")
        for number, stream in enumerate(streams[1:], 1):
            check_closing(await stream.ending(), "revoked", number)
        async with listen(server.port, TOOLS, path="/open/mcp") as refused:
            assert refused.status == 403
