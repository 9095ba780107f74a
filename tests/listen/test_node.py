"""
A node and its streams, with a real database: orders, doubts and looks, at whatever moment they come.
"""

import asyncio
import json
import logging
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, OperationalError
from django.utils import timezone

from mcp_channels import topics
from mcp_channels.listen import admission, beat as beat_module, checking, node as node_module, orders, registry
from mcp_channels.listen.admission import Candidate, NotAdmittedError
from mcp_channels.listen.beat import Beat
from mcp_channels.listen.checking import Held, Verdict
from mcp_channels.listen.filter import Filter
from mcp_channels.listen.hub import Hub
from mcp_channels.listen.membership import Membership
from mcp_channels.models import AccessToken, LiveStream, Node, Principal
from mcp_channels.topics import TOOLS, resource
from tests.listen.test_hub import Layer, until
from tests.listen.test_stream import Socket, make, settle

pytestmark = pytest.mark.django_db(transaction=True)

A, B = resource("a"), resource("b")


class Judge:
    """
    What is left of a stream, as a test says; it may take its time, or fail.
    """

    def __init__(self) -> None:
        self.verdict: Verdict | None = Verdict({A, B, TOOLS}, None)
        self.error: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.asked = 0
        self.waiting = asyncio.Event()

    async def __call__(self, stream, credentials):
        self.asked += 1
        verdict, error = self.verdict, self.error
        self.waiting.set()
        await self.open.wait()
        if error is not None:
            raise error
        return verdict


class One:
    """
    A stream that is admitted and served.
    """

    def __init__(self, hub, principal, *wanted) -> None:
        wanted = wanted or (A, B)
        lists = frozenset(topic.kind for topic in wanted if topic.kind != "resource")
        self.hub = hub
        self.judge = Judge()
        self.socket = Socket()
        self.stream = make(Filter(lists, tuple(topic.key for topic in wanted if topic.kind == "resource")))
        self.held = Held(self.stream, self.judge, None, asyncio.get_running_loop().time())
        self.candidate = Candidate(principal, LiveStream(endpoint="test"))
        self.is_admitted: bool | None = None

    async def admit(self) -> None:
        await self.hub.attach(self.stream, max_streams=10_000)
        self.is_admitted = await self.hub.node.admit(self.held, self.candidate)

    async def run(self) -> None:
        try:
            await self.admit()
            await self.stream.serve(self.socket.write)
        finally:
            self.hub.detach(self.stream)
            await self.hub.node.release(self.held)

    @property
    def told(self) -> list[str]:
        return [message["params"]["uri"] for message in self.socket.messages if "uri" in message.get("params", {})]

    @property
    def acknowledged(self) -> dict:
        return self.socket.messages[0]["params"]["notifications"]

    def mark(self, *changed) -> None:
        for topic in changed:
            self.hub._receive(topics.changed_message([topic]))


@asynccontextmanager
async def running():
    """
    A hub with its node; at the end nothing of it is left.
    """
    before = asyncio.all_tasks()
    layer = Layer()
    hub = Hub.current(layer)
    opened = []

    @asynccontextmanager
    async def opening(principal, *wanted):
        one = One(hub, principal, *wanted)
        opened.append(one)
        task = asyncio.create_task(one.run())
        try:
            yield one, task
        finally:
            one.judge.open.set()
            one.stream.end("client_closed")
            await asyncio.wait([task], timeout=5)
            assert task.done()

    @asynccontextmanager
    async def open_stream(principal, *wanted):
        async with opening(principal, *wanted) as (one, task):
            await until(lambda: one.socket.frames or task.done())
            if task.done():
                task.result()
            yield one

    hub.opening, hub.open_stream = opening, open_stream
    try:
        yield hub
    finally:
        await hub.close()
    await settle()
    assert {task for task in asyncio.all_tasks() - before if task.get_name() != "mcp_channels-publisher"} == set()
    node = hub.node
    assert (node._held, node._leaving, dict(node._handovers._awaited), node._tasks) == ({}, set(), {}, set())
    assert not await LiveStream.objects.aexists()
    assert not await Node.objects.aexists()


@pytest.fixture
def alice():
    return Principal.objects.create(name="alice", max_streams=10_000)


def check_message(*principals):
    return {"type": topics.ORDERS, "principals": json.dumps([principal.pk for principal in principals])}


def order_message(*some):
    return {"type": topics.ORDERS, "orders": json.dumps(some)}


@pytest.fixture
def no_beat(monkeypatch):
    """
    No look at the database but those that a test makes.
    """

    async def look(self, **kwargs):
        return None

    monkeypatch.setattr(Beat, "look", look)


class Gate:
    """
    Holds the admission in the database's thread: before its transaction, or behind it.
    """

    def __init__(self, monkeypatch, *, is_before: bool) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        admit = admission.admit

        def gated(*args, **kwargs):
            outcome = None if is_before else admit(*args, **kwargs)
            self.entered.set()
            assert self.open.wait(10)
            return admit(*args, **kwargs) if is_before else outcome

        monkeypatch.setattr(admission, "admit", gated)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 5)


@pytest.fixture
def gate(monkeypatch):
    made = []

    def make_gate(*, is_before):
        made.append(Gate(monkeypatch, is_before=is_before))
        return made[-1]

    yield make_gate
    for item in made:
        item.open.set()


async def elsewhere(function, *args):
    """
    Call in a thread of its own: the one of the database is held.
    """
    return await sync_to_async(function, thread_sensitive=False)(*args)


# Orders


async def test_an_order_ends_a_stream(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        hub.node.receive(order_message((one.held.key, "revoked")))
        await until(lambda: one.socket.methods[-1] == "result")
        assert one.stream.reason == "revoked"


async def test_an_order_that_stands_on_the_row_is_found(alice, told):
    async with running() as hub, hub.open_stream(alice) as one:
        await sync_to_async(orders.disconnect)(LiveStream.objects.all())
        await until(lambda: one.stream.reason == "revoked", timeout=2)


async def test_what_is_no_order_does_nothing(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        hub.node.receive(order_message((one.held.key, "nonsense"), (one.held.key, ""), (-1, "revoked")))
        hub.node.receive({"type": topics.ORDERS})
        one.mark(A)
        await until(lambda: one.told == ["a"])
        assert one.stream.reason is None


async def test_the_holder_of_a_stream_answers_its_order(alice, told):
    async with running() as hub, hub.open_stream(alice) as one:
        key = one.held.key
        hub.node.receive(order_message((key, "superseded")))
        await until(lambda: not hub.node._held)
        await until(lambda: not hub.node._leaving)
        answers = [order for message in told for order in orders.read(message)]
        assert answers == [(key, "received"), (key, "ended")]


@pytest.mark.parametrize("way", ["message", "row"])
async def test_an_order_that_comes_before_its_stream_is_known_is_kept(alice, gate, told, way):
    held = gate(is_before=False)
    async with running() as hub, hub.opening(alice) as (one, task):
        await held.reached()
        stream = await elsewhere(LiveStream.objects.get)
        if way == "message":
            hub.node.receive(order_message((stream.pk, "revoked")))
        else:
            await elsewhere(orders.disconnect, LiveStream.objects.all())
            await until(lambda: stream.pk in hub.node._early, timeout=3)
        held.open.set()
        await asyncio.wait([task], timeout=5)
        assert one.stream.reason == "revoked"
        assert one.told == []
        assert hub.node._early == {}


async def test_an_order_to_look_that_is_found_before_its_stream_is_known_is_kept(alice, gate, told):
    held = gate(is_before=False)
    async with running() as hub, hub.opening(alice) as (one, task):
        await held.reached()
        one.judge.verdict = None
        await elsewhere(orders.check, [alice.pk])
        stream = await elsewhere(LiveStream.objects.get)
        await until(lambda: stream.pk in hub.node._early, timeout=3)
        assert (await elsewhere(LiveStream.objects.get)).state == "open"
        held.open.set()
        await asyncio.wait([task], timeout=5)
        assert one.stream.reason == "revoked"


async def test_orders_for_unknown_streams_do_not_pile_up(alice, told):
    async with running() as hub, hub.open_stream(alice) as one:
        for first in range(10_000, 20_000, 500):
            hub.node.receive(order_message(*((key, "superseded") for key in range(first, first + 500))))
        assert len(hub.node._early) == node_module.EARLY
        assert one.stream.reason is None


async def test_an_order_for_a_stream_whose_row_could_not_be_deleted_is_answered(alice, told, monkeypatch, no_beat):
    def down(keys):
        raise OperationalError("down")

    async with running() as hub:
        async with hub.open_stream(alice) as one:
            key = one.held.key
            with monkeypatch.context() as patch:
                patch.setattr(registry, "release", down)
                one.stream.end("client_closed")
                await until(lambda: key in hub.node._unreleased)
        told.clear()
        hub.node.receive(order_message((key, "superseded")))
        assert [order for message in told for order in orders.read(message)] == [(key, "ended")]


async def test_a_row_that_could_not_be_deleted_is_deleted_later(alice, monkeypatch):
    release = registry.release
    broken = True

    def sometimes(keys):
        if broken:
            raise OperationalError("down")
        release(keys)

    monkeypatch.setattr(registry, "release", sometimes)
    async with running() as hub:
        async with hub.open_stream(alice):
            pass
        assert await LiveStream.objects.acount() == 1
        broken = False
        await until(lambda: not hub.node._unreleased)
        assert await LiveStream.objects.acount() == 0


async def test_a_node_does_not_go_before_its_rows(alice, monkeypatch, no_beat):
    """
    A hub without streams retires; nobody would delete what the database does not take.
    """

    def down(keys):
        raise OperationalError("down")

    monkeypatch.setattr("mcp_channels.listen.hub.LINGER", 0.3)
    async with running() as hub:
        with monkeypatch.context() as patch:
            patch.setattr(registry, "release", down)
            async with hub.open_stream(alice):
                pass
            assert hub.node.owes
            await until(lambda: not hub._entries)
            hub._last_used -= 10
            with pytest.raises(TimeoutError):
                await until(lambda: Hub.current(hub.layer) is not hub, timeout=1)
        hub.node._unreleased.clear()
        await until(lambda: Hub.current(hub.layer) is not hub)
        await until(lambda: not hub.node._tasks)


# Looks


async def test_a_stream_in_doubt_is_told_nothing_until_it_is_known(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.open.clear()
        hub.node.receive(check_message(alice))
        one.mark(A)
        await one.judge.waiting.wait()
        await settle()
        assert one.told == []
        one.judge.open.set()
        await until(lambda: one.told == ["a"])


async def test_a_stream_that_may_not_listen_ends_and_is_told_nothing(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.verdict = None
        hub.node.receive(check_message(alice))
        one.mark(A)
        await until(lambda: one.socket.methods[-1] == "result")
        assert one.told == []
        assert one.socket.messages[-2]["params"]["reason"] == "revoked"


async def test_a_topic_that_is_lost_is_not_told_and_the_others_are(alice):
    async with running() as hub, hub.open_stream(alice, A, B, TOOLS) as one:
        one.judge.verdict = Verdict({B, TOOLS}, None)
        hub.node.receive(check_message(alice))
        one.mark(A, B, TOOLS)
        await until(lambda: "notifications/tools/list_changed" in one.socket.methods)
        assert one.told == ["b"]
        one.mark(A)
        one.mark(B)
        await until(lambda: one.told == ["b", "b"])
        assert one.stream.reason is None


async def test_a_stream_that_lost_all_its_topics_ends(alice):
    async with running() as hub, hub.open_stream(alice, A) as one:
        one.judge.verdict = Verdict({B}, None)
        hub.node.receive(check_message(alice))
        one.mark(A)
        await until(lambda: one.stream.reason == "revoked")
        assert one.told == []


async def test_a_stream_that_had_no_topics_stays(alice):
    async with running() as hub, hub.opening(alice) as (one, _):
        one.stream.lose([A, B])
        await until(lambda: one.socket.frames)
        one.judge.verdict = Verdict(set(), None)
        hub.node.receive(check_message(alice))
        await until(lambda: one.judge.asked == 1 and not one.held.doubt)
        assert one.stream.reason is None


async def test_a_look_moves_the_end_of_the_credential(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.verdict = Verdict({A, B}, 0.2)
        hub.node.receive(check_message(alice))
        await until(lambda: one.stream.reason == "token_expired", timeout=3)


async def test_other_principals_are_not_in_doubt(alice):
    bob = await Principal.objects.acreate(name="bob")
    async with running() as hub, hub.open_stream(alice) as one, hub.open_stream(bob) as other:
        one.judge.verdict = None
        other.judge.verdict = None
        hub.node.receive(check_message(alice))
        await until(lambda: one.stream.reason == "revoked")
        one.mark(A)
        await until(lambda: other.told == ["a"])
        assert (other.judge.asked, other.stream.reason) == (0, None)


async def test_an_order_that_comes_while_a_look_is_under_way_is_not_lost(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.open.clear()
        hub.node.receive(check_message(alice))
        await one.judge.waiting.wait()
        # What the look under way saw is old.
        one.judge.verdict = None
        hub.node.receive(check_message(alice))
        one.mark(A)
        one.judge.open.set()
        await until(lambda: one.stream.reason == "revoked")
        assert (one.told, one.judge.asked) == ([], 2)


async def test_a_look_that_fails_leaves_the_stream_in_doubt_and_is_made_again(alice, caplog):
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.error = OperationalError("secret")
        hub.node.receive(check_message(alice))
        one.mark(A)
        await until(lambda: one.judge.asked >= 3, timeout=5)
        assert (one.told, one.stream.reason) == ([], None)
        one.judge.error = None
        await until(lambda: one.told == ["a"], timeout=3)
        records = [record for record in caplog.records if record.name == "mcp_channels.node"]
        assert [(record.levelno, record.getMessage()) for record in records] == [
            (logging.WARNING, "It could not be looked at whether 1 streams may still listen (OperationalError)")
        ]


async def test_streams_that_cannot_be_looked_at_keep_no_others_waiting(alice, no_beat, monkeypatch):
    """
    More of them than are looked at together, all in doubt.
    """
    monkeypatch.setattr(checking, "CHECKED_AT_ONCE", 4)
    bob = await Principal.objects.acreate(name="bob")
    async with running() as hub:
        async with AsyncExitStack() as stack:
            poisoned = [await stack.enter_async_context(hub.open_stream(alice)) for _ in range(6)]
            good = await stack.enter_async_context(hub.open_stream(bob))
            for one in poisoned:
                one.judge.error = RuntimeError("always")
            good.judge.verdict = None
            hub.node.receive(check_message(alice))
            await until(lambda: sum(one.judge.asked for one in poisoned) >= 4)
            hub.node.receive(check_message(bob))
            await until(lambda: good.stream.reason == "revoked", timeout=2)


async def test_a_stream_of_which_nobody_can_say_whether_it_may_listen_is_not_left_open_and_silent(
    alice, no_beat, monkeypatch
):
    monkeypatch.setattr(checking, "LONGEST_DOUBT", 0.0)
    async with running() as hub, hub.open_stream(alice) as one, hub.open_stream(alice) as other:
        one.judge.error = RuntimeError("always")
        hub.node.receive(check_message(alice))
        await until(lambda: one.stream.reason == "server_error", timeout=2)
        other.mark(A)
        await until(lambda: other.told == ["a"], timeout=2)


async def test_a_look_that_never_ends_keeps_no_other_stream_waiting(alice, no_beat, monkeypatch):
    monkeypatch.setattr(checking, "CHECK_TIMEOUT", 0.1)
    bob = await Principal.objects.acreate(name="bob")
    async with running() as hub, hub.open_stream(alice) as one, hub.open_stream(bob) as other:
        one.judge.open.clear()
        other.judge.verdict = None
        hub.node.receive(check_message(alice))
        await until(lambda: one.judge.asked == 1)
        hub.node.receive(check_message(bob))
        await until(lambda: other.stream.reason == "revoked", timeout=2)


async def test_every_stream_is_looked_at_from_time_to_time(alice, monkeypatch):
    monkeypatch.setattr(checking, "CHECK_INTERVAL", 0.2)
    async with running() as hub, hub.open_stream(alice) as one:
        await until(lambda: one.judge.asked >= 2, timeout=5)
        one.judge.verdict = Verdict({B}, None)
        await until(lambda: one.stream.topics == (B,), timeout=5)
        one.mark(A)
        one.mark(B)
        await until(lambda: one.told == ["b"])


async def test_a_look_without_an_order_holds_nothing_back(alice, monkeypatch):
    monkeypatch.setattr(checking, "CHECK_INTERVAL", 0.2)
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.open.clear()
        await until(one.judge.waiting.is_set, timeout=5)
        one.mark(A)
        await until(lambda: one.told == ["a"])


async def test_a_principal_that_was_deactivated_without_a_word_is_found(alice, told):
    async with running() as hub, hub.open_stream(alice) as one:
        await Principal.objects.filter(pk=alice.pk).aupdate(is_active=False)
        await until(lambda: one.stream.reason == "revoked", timeout=5)
        assert one.judge.asked == 0


# At the moment of admission


async def test_what_changes_before_the_admission_is_looked_at_again(alice, gate):
    held = gate(is_before=True)
    async with running() as hub, hub.opening(alice) as (one, task):
        await held.reached()
        one.judge.verdict = None
        hub.node.receive(check_message(alice))
        one.mark(A)
        held.open.set()
        await asyncio.wait([task], timeout=5)
        assert one.stream.reason == "revoked"
        assert one.told == []
        assert one.judge.asked == 1


async def test_what_is_lost_before_the_acknowledgment_is_not_acknowledged(alice, gate):
    held = gate(is_before=True)
    async with running() as hub, hub.opening(alice, A, B, TOOLS) as (one, _):
        await held.reached()
        one.judge.verdict = Verdict({B, TOOLS}, None)
        hub.node.receive(check_message(alice))
        one.mark(A, B)
        held.open.set()
        await until(lambda: one.told)
        assert one.acknowledged == {"toolsListChanged": True, "resourceSubscriptions": ["b"]}
        assert one.told == ["b"]


async def test_what_changed_before_the_request_is_no_reason_to_look_again(alice):
    async with running() as hub, hub.open_stream(alice):
        hub.node.receive(check_message(alice))
        await asyncio.sleep(0.01)
        async with hub.open_stream(alice) as later:
            assert later.judge.asked == 0


async def test_what_nodes_forget_of_changes_is_a_doubt_about_everybody(alice, gate, monkeypatch):
    monkeypatch.setattr(node_module, "EARLY", 2)
    held = gate(is_before=True)
    others = [await Principal.objects.acreate(name=f"p{number}") for number in range(3)]
    async with running() as hub, hub.opening(alice) as (one, task):
        await held.reached()
        one.judge.verdict = None
        hub.node.receive(check_message(alice))
        hub.node.receive(check_message(*others))
        held.open.set()
        await asyncio.wait([task], timeout=5)
        assert one.stream.reason == "revoked"


async def test_without_the_layer_a_new_stream_is_looked_at_once_more(alice, monkeypatch):
    """
    Nobody could have said that something changed.
    """
    monkeypatch.setattr(Membership, "is_down", property(lambda self: True))
    async with running() as hub:
        async with hub.opening(alice) as (one, task):
            one.judge.verdict = None
            await asyncio.wait([task], timeout=5)
            assert one.stream.reason == "revoked"
            assert one.told == []


async def test_a_doubt_that_cannot_be_settled_refuses_a_new_stream(alice, gate):
    held = gate(is_before=True)
    async with running() as hub, hub.opening(alice) as (one, task):
        await held.reached()
        one.judge.error = OperationalError("down")
        hub.node.receive(check_message(alice))
        held.open.set()
        await asyncio.wait([task], timeout=5)
        assert isinstance(task.exception(), OperationalError)
        assert one.socket.writes == []


async def test_a_principal_that_is_deactivated_before_the_admission_is_refused(alice, gate, told):
    held = gate(is_before=True)
    async with running() as hub, hub.opening(alice) as (one, task):
        await held.reached()
        await elsewhere(lambda: Principal.objects.filter(pk=alice.pk).update(is_active=False))
        held.open.set()
        await asyncio.wait([task], timeout=5)
        assert isinstance(task.exception(), NotAdmittedError)
        assert str(task.exception()) == "This principal may hold no listen streams."
        assert one.socket.writes == []


async def test_a_token_that_is_deleted_before_the_admission_costs_no_other_stream(alice, gate):
    held = gate(is_before=True)
    bob = await Principal.objects.acreate(name="bob")
    token, _ = await sync_to_async(AccessToken.objects.issue)(alice)
    async with running() as hub, hub.opening(bob) as (_, _), AsyncExitStack() as stack:
        await held.reached()
        # What comes now is let in together.
        one, task = await stack.enter_async_context(hub.opening(alice))
        one.candidate.row.token = token
        others = [await stack.enter_async_context(hub.opening(who)) for who in (alice, bob)]
        await until(lambda: all(item.stream in hub.streams for item, _ in [(one, task), *others]))
        await settle()
        await elsewhere(lambda: AccessToken.objects.all().delete())
        held.open.set()
        await asyncio.wait([task], timeout=5)
        assert isinstance(task.exception(), IntegrityError)
        for other, _ in others:
            await until(lambda other=other: other.socket.frames)
            assert other.acknowledged == {"resourceSubscriptions": ["a", "b"]}


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_request_that_is_cancelled_while_it_is_let_in_leaves_nothing(alice, gate, is_before):
    held = gate(is_before=is_before)
    async with running() as hub, hub.opening(alice) as (_, task):
        await held.reached()
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()
        held.open.set()
        async with asyncio.timeout(5):
            while await LiveStream.objects.aexists():
                await asyncio.sleep(0.01)


async def test_a_request_that_is_cancelled_while_it_is_looked_at_leaves_nothing(alice, gate):
    held = gate(is_before=True)
    async with running() as hub, hub.opening(alice) as (one, task):
        await held.reached()
        one.judge.open.clear()
        hub.node.receive(check_message(alice))
        held.open.set()
        async with asyncio.timeout(5):
            await one.judge.waiting.wait()
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()


# The end of the process


async def test_a_stream_in_doubt_is_told_nothing_on_the_way_out(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.open.clear()
        hub.node.receive(check_message(alice))
        one.mark(A)
        await one.judge.waiting.wait()
        hub.drain()
        await until(lambda: one.socket.methods[-1] == "result")
        assert one.told == []
        assert one.socket.messages[-2]["params"]["reason"] == "shutdown"


async def test_a_node_that_drained_has_gone_without_a_word_of_trouble(alice, caplog, monkeypatch):
    monkeypatch.setattr(node_module, "TICK", 0.05)
    async with running() as hub, hub.open_stream(alice) as one:
        hub.drain()
        await until(lambda: one.socket.methods[-1] == "result")
        await until(lambda: not hub.node._tasks)
        assert not await Node.objects.aexists()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_stream_without_doubts_is_told_what_waits_on_the_way_out(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        one.mark(A)
        hub.drain()
        await until(lambda: one.socket.methods[-1] == "result")
        assert one.told == ["a"]


async def test_a_stream_in_doubt_that_is_superseded_is_told_nothing_on_the_way_out(alice):
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.open.clear()
        hub.node.receive(check_message(alice))
        one.mark(A)
        hub.node.receive(order_message((one.held.key, "superseded")))
        await until(lambda: one.socket.methods[-1] == "result")
        assert one.told == []


# The database


@pytest.mark.parametrize("step", ["take_checks", "record", "sweep", "unwanted", "orders_for"])
async def test_an_order_to_look_survives_a_look_at_the_database_that_fails(alice, told, monkeypatch, step):
    """
    It is taken off the row at once; any other step of the look may fail, before or after.
    """
    call, was_ordered, failures = getattr(registry, step), False, 0

    def failing(*args):
        nonlocal failures
        if was_ordered and failures < 2:
            failures += 1
            raise OperationalError("down")
        return call(*args)

    monkeypatch.setattr("mcp_channels.listen.beat.SWEEP_INTERVAL", 0.0)
    monkeypatch.setattr("mcp_channels.listen.beat.DEAD_AFTER", timedelta(0))
    monkeypatch.setattr(node_module, "TICK", 0.1)
    monkeypatch.setattr(registry, step, failing)
    async with running() as hub, hub.open_stream(alice) as one:
        one.judge.verdict = None
        was_ordered = True
        one.mark(A)
        await until(lambda: one.told == ["a"])
        await sync_to_async(orders.check)([alice.pk])
        await until(lambda: one.stream.reason == "revoked", timeout=8)
        assert failures > 0


async def test_a_node_that_was_taken_for_dead_ends_its_streams_and_begins_anew(alice, caplog, monkeypatch):
    monkeypatch.setattr("mcp_channels.listen.beat.HEARTBEAT", 0.0)
    async with running() as hub:
        async with hub.open_stream(alice) as one:
            first = hub.node._row.pk
            await Node.objects.filter(pk=first).adelete()
            await until(lambda: one.socket.methods[-1] == "result", timeout=5)
            assert one.stream.reason == "server_error"
        async with hub.open_stream(alice) as other:
            assert hub.node._row.pk != first
            other.mark(A)
            await until(lambda: other.told == ["a"])
    assert [record.levelno for record in caplog.records if "taken for dead" in record.getMessage()] == [logging.ERROR]


async def test_who_died_without_a_word_is_taken_out_of_the_group_of_all_hubs(monkeypatch):
    monkeypatch.setattr(beat_module, "DEAD_AFTER", timedelta(0))
    monkeypatch.setattr(beat_module, "SWEEP_INTERVAL", 0)
    monkeypatch.setattr(node_module, "TICK", 0.05)
    alice = await Principal.objects.acreate(name="alice")
    async with running() as hub, hub.open_stream(alice):
        own = await Node.objects.aget()
        long_ago = timezone.now() - timedelta(seconds=30)
        for name in ("dead", "unknown"):
            channel = "specific.dead!1" if name == "dead" else ""
            await Node.objects.acreate(id=name, host="h", pid=1, seen_at=long_ago, channel=channel)
        group = hub.layer.groups[topics.EVERY_HUB]
        group["specific.dead!1"] = float("inf")
        assert own.channel in group
        await until(lambda: set(group) == {own.channel})


async def test_a_hub_leaves_the_layer_with_its_last_stream_at_a_shutdown():
    alice = await Principal.objects.acreate(name="alice")
    async with running() as hub:
        async with hub.open_stream(alice), hub.open_stream(alice):
            hub.drain()
            await until(lambda: not hub.streams)
        assert not hub.layer.groups
        # One that comes all the same gets a hub that hears.
        assert Hub.current(hub.layer) is not hub
