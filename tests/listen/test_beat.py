"""
A node's look at the database: when it says that it lives, and whom it takes for dead.
"""

import asyncio
import logging
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError
from django.utils import timezone

from mcp_channels.listen import beat as beat_module, registry
from mcp_channels.listen.beat import Beat
from mcp_channels.listen.registry import Delivery
from mcp_channels.models import LiveStream, Node, Principal

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    """
    The process's clock, as a test sets it.
    """

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(beat_module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture
def beat(clock):
    Node.objects.create(id="here", host="h", pid=1)
    made = Beat("here")
    yield made
    made.close()


async def look(beat, **some):
    async with asyncio.timeout(5):
        return await beat.look(**{"awaited": (), "released": (), "deliveries": {}, **some})


def silent_for(seconds, node="dead"):
    seen_at = timezone.now() - timedelta(seconds=seconds)
    return Node.objects.aupdate_or_create(id=node, defaults={"host": "h", "pid": 2, "seen_at": seen_at})


async def seen_at(node="here"):
    return (await Node.objects.aget(id=node)).seen_at


@pytest.fixture
def outage(monkeypatch):
    """
    Whether the database is down.
    """
    state = SimpleNamespace(is_on=False)
    for name in ("beat", "orders_for"):
        function = getattr(registry, name)

        def failing(*args, function=function):
            if state.is_on:
                raise OperationalError("the database is down")
            return function(*args)

        monkeypatch.setattr(registry, name, failing)
    return state


async def test_a_node_says_every_five_seconds_that_it_lives(beat, clock):
    await silent_for(15, "here")
    before = await seen_at()
    clock.now += beat_module.HEARTBEAT - 0.1
    await look(beat)
    assert await seen_at() == before
    clock.now += 0.1
    assert (await look(beat)).is_alive
    after = await seen_at()
    assert after > before + timedelta(seconds=10)
    clock.now += 1
    await look(beat)
    assert await seen_at() == after


async def test_a_node_whose_row_is_gone_is_told_and_sweeps_nobody(beat, clock):
    await silent_for(60)
    await Node.objects.filter(id="here").adelete()
    clock.now += 60
    assert not (await look(beat)).is_alive
    assert await Node.objects.filter(id="dead").aexists()


async def test_nobody_is_swept_by_a_node_that_is_new(beat, clock):
    await silent_for(60)
    clock.now += 19.9
    await look(beat)
    assert await Node.objects.filter(id="dead").aexists()
    clock.now += 2.5
    await look(beat)
    assert not await Node.objects.filter(id="dead").aexists()


async def test_after_an_outage_a_node_beats_at_once_and_gives_the_others_time(beat, clock, outage):
    clock.now += 60
    await look(beat)
    outage.is_on = True
    clock.now += 30
    assert await look(beat) is None
    # All nodes were cut off for as long.
    await silent_for(40, "here")
    await silent_for(40)
    outage.is_on = False
    clock.now += 1
    assert (await look(beat)).is_alive
    assert await seen_at() > timezone.now() - timedelta(seconds=10)
    await check_that_others_get_time(beat, clock)


async def test_each_failure_begins_the_time_for_the_others_anew(beat, clock, outage):
    await silent_for(60)
    for _ in range(5):
        clock.now += 15
        outage.is_on = True
        assert await look(beat) is None
        outage.is_on = False
        assert (await look(beat)).is_alive
    assert await Node.objects.filter(id="dead").aexists()


async def check_that_others_get_time(beat, clock):
    for _ in range(7):
        assert await Node.objects.filter(id="dead").aexists()
        clock.now += 2.5
        await look(beat)
    clock.now += 2.5
    await look(beat)
    assert not await Node.objects.filter(id="dead").aexists()


async def test_a_node_whose_host_was_asleep_gives_the_others_time(beat, clock):
    """
    A monotonic clock may stand still while the host sleeps; the database's doesn't.
    """
    clock.now += 60
    await look(beat)
    await silent_for(30, "here")
    await silent_for(30)
    clock.now += 5
    await look(beat)
    await check_that_others_get_time(beat, clock)


async def test_a_node_whose_heartbeat_had_to_wait_gives_the_others_time(beat, clock, monkeypatch):
    beats = registry.beat

    def waiting(*args):
        clock.now += 15
        return beats(*args)

    await silent_for(30)
    clock.now += 60
    with monkeypatch.context() as patch:
        patch.setattr(registry, "beat", waiting)
        await look(beat)
    await check_that_others_get_time(beat, clock)


async def test_an_outage_is_logged_once_and_so_is_its_end(beat, clock, outage, caplog):
    outage.is_on = True
    for _ in range(3):
        assert await look(beat) is None
        assert beat.is_failing
    outage.is_on = False
    for _ in range(3):
        assert await look(beat) is not None
        assert not beat.is_failing
    said = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "mcp_channels.node"]
    assert said == [
        (logging.ERROR, "The database failed (OperationalError); streams stay open"),
        (logging.WARNING, "The database is back"),
    ]


async def test_a_database_that_does_not_answer_counts_as_down_after_five_seconds(beat, clock, monkeypatch):
    entered, may_go_on, orders_for = threading.Event(), threading.Event(), registry.orders_for

    def slow(node):
        entered.set()
        may_go_on.wait(10)
        return orders_for(node)

    monkeypatch.setattr(registry, "orders_for", slow)
    looking = asyncio.create_task(look(beat))
    try:
        assert await asyncio.to_thread(entered.wait, 5)
        clock.now += 4
        assert not beat.is_unanswered
        clock.now += 1
        assert beat.is_unanswered
        assert not beat.is_failing
    finally:
        may_go_on.set()
    await looking
    assert not beat.is_unanswered


async def test_a_look_brings_orders_and_word_of_what_has_ended(beat):
    alice = await Principal.objects.acreate(name="alice")

    async def stream(**fields):
        fields = {"node_id": "here", "principal": alice, "endpoint": "e", **fields}
        return (await LiveStream.objects.acreate(**fields)).pk

    await Node.objects.acreate(id="there", host="h", pid=2)
    quiet, ending = await stream(), await stream(state="ending", reason="superseded")
    doubted, gone, far = await stream(state="check"), await stream(), await stream(node_id="there", state="ending")
    seen = await look(beat, awaited=[far, 10**6], released=[gone], deliveries={quiet: Delivery(3, 0.0)})
    assert dict(seen.orders) == {ending: "superseded", doubted: "check"}
    assert list(seen.ended) == [10**6]
    assert list(seen.released) == [gone]
    assert not await LiveStream.objects.filter(pk=gone).aexists()
    assert (await LiveStream.objects.aget(pk=quiet)).delivered == 3
    # An order to check is brought once.
    assert dict((await look(beat)).orders) == {ending: "superseded"}


async def test_anonymous_callers_are_forgotten_at_once_and_then_every_five_minutes(beat, clock):
    async def caller():
        long_ago = timezone.now() - timedelta(hours=2)
        await Principal.objects.acreate(name="anonymous:10.0.0.1", is_anonymous=True, last_listened_at=long_ago)

    await caller()
    await look(beat)
    assert not await Principal.objects.aexists()
    await caller()
    clock.now += 299
    await look(beat)
    assert await Principal.objects.aexists()
    clock.now += 1
    await look(beat)
    assert not await Principal.objects.aexists()


async def test_a_busy_database_thread_holds_no_look_up(beat, clock):
    """
    The thread that Django's synchronous code shares may be kept by a view for long.
    """
    is_over = threading.Event()
    view = asyncio.create_task(sync_to_async(is_over.wait)(10))
    try:
        clock.now += 10
        assert (await look(beat)).is_alive
        assert not view.done()
    finally:
        is_over.set()
        await view
