"""
The thread between events and the receivers of signals.
"""

import asyncio
import functools
import logging
import os
import subprocess
import sys
import threading

import pytest
from django.db import connection
from django.dispatch import Signal

from mcp_channels import telemetry
from mcp_channels.telemetry import Dispatcher
from tests.support.processes import ROOT


@pytest.fixture
def dispatcher(monkeypatch):
    made = Dispatcher()
    monkeypatch.setattr(telemetry, "_dispatcher", made)
    yield made
    made.stop()


@pytest.fixture
def signal():
    return Signal()


def test_without_a_receiver_nothing_is_queued_and_no_thread_starts(dispatcher, signal):
    telemetry.emit(signal, Dispatcher, number=1)
    assert not dispatcher._waiting
    assert dispatcher._thread is None
    assert telemetry.flush(0)


def test_receivers_are_called_in_order_in_a_thread_of_their_own(dispatcher, signal):
    seen, threads = [], set()

    def receiver(sender, signal, **kwargs):
        seen.append((sender, kwargs.pop("at") > 0, kwargs))
        threads.add(threading.current_thread())
        assert not telemetry.flush(5), "a receiver that waits for itself would hold up the others"

    signal.connect(receiver)
    for number in range(300):
        telemetry.emit(signal, Dispatcher, number=number)
    assert telemetry.flush(5)
    assert seen == [(Dispatcher, True, {"number": number}) for number in range(300)]
    assert threads.isdisjoint({threading.current_thread()})
    assert len(threads) == 1


def test_a_receiver_that_raises_is_logged_once_and_the_others_hear(dispatcher, signal, caplog):
    seen = []

    def bad(sender, **kwargs):
        raise RuntimeError("mine")

    async def later(sender, number, **kwargs):
        await asyncio.sleep(0)
        seen.append(number)

    signal.connect(bad)
    signal.connect(later)
    telemetry.emit(signal, Dispatcher, number=1)
    assert telemetry.flush(5)
    assert [record.name for record in caplog.records] == ["django.dispatch"]
    assert seen == [1]


@pytest.mark.parametrize("error", [SystemExit, RuntimeError])
def test_nothing_that_a_receiver_raises_ends_the_thread(dispatcher, signal, caplog, error):
    seen = []

    def bad(number, **kwargs):
        seen.append(number)
        raise error

    # Django's own log of a failure asks for a name that a partial hasn't.
    signal.connect(functools.partial(bad), weak=False)
    for number in (1, 2):
        telemetry.emit(signal, Dispatcher, number=number)
        assert telemetry.flush(5)
    assert seen == [1, 2]
    assert [record.name for record in caplog.records] == ["mcp_channels.telemetry"] * 2


def test_what_is_over_the_bound_is_dropped_and_logged_once_a_minute(dispatcher, signal, caplog, monkeypatch):
    monkeypatch.setattr(telemetry, "MAX_WAITING", 2)
    entered, may_go_on, seen = threading.Event(), threading.Event(), []

    def slow(number, **kwargs):
        entered.set()
        may_go_on.wait(10)
        seen.append(number)

    signal.connect(slow)
    telemetry.emit(signal, Dispatcher, number=0)
    assert entered.wait(5)
    for number in range(1, 6):
        telemetry.emit(signal, Dispatcher, number=number)
    assert not telemetry.flush(0)
    assert telemetry.dropped() == 3
    may_go_on.set()
    assert telemetry.flush(5)
    assert seen == [0, 1, 2]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    dispatcher._logged_at -= telemetry.LOG_INTERVAL
    may_go_on.clear()
    entered.clear()
    telemetry.emit(signal, Dispatcher, number=6)
    assert entered.wait(5)
    for number in range(7, 10):
        telemetry.emit(signal, Dispatcher, number=number)
    may_go_on.set()
    assert [record.args for record in caplog.records] == [(1,), (4,)]


@pytest.mark.django_db
def test_a_receivers_connection_is_closed_as_after_a_request(dispatcher, signal, tmp_path, monkeypatch):
    # A database in memory is never closed.
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "db.sqlite3"))
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 0)
    used = []

    def receiver(**kwargs):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        used.append(connection.connection)

    signal.connect(receiver)
    telemetry.emit(signal, Dispatcher)
    assert telemetry.flush(5)
    telemetry.emit(signal, Dispatcher)
    assert telemetry.flush(5)
    first, second = used
    assert first is not second


def test_what_waits_for_the_project_is_asked_until_it_is_there(dispatcher, signal, monkeypatch, caplog):
    monkeypatch.setattr(telemetry, "LOOK_INTERVAL", 0.0)
    monkeypatch.setattr(telemetry, "_unconnected", [])
    answers, seen = iter([False, True]), []

    def receiver(number, **kwargs):
        seen.append(number)

    def connect():
        is_ready = next(answers)
        if is_ready:
            signal.connect(receiver)
        return is_ready

    def broken():
        raise RuntimeError("mine")

    telemetry.connect_when_ready(broken)
    telemetry.connect_when_ready(connect)
    for number in range(4):
        telemetry.emit(signal, Dispatcher, number=number)
    assert telemetry.flush(5)
    assert seen == [1, 2, 3]
    assert len(caplog.records) == 1


PROCESS = """
import asyncio, os, time
from multiprocessing import get_context
import django
django.setup()
from mcp_channels import signals, telemetry
from mcp_channels.publisher import publisher
from mcp_channels.topics import TOOLS

def say(what):
    os.write(1, f"{os.getpid() == parent and 'parent' or 'child'} {what}\\n".encode())

def receiver(sender, signal, **kwargs):
    time.sleep(0.2)
    say(kwargs["kind"])

async def published(sender, signal, **kwargs):
    await asyncio.sleep(0.2)
    # It needs a thread of a pool.
    await asyncio.to_thread(say, kwargs["kinds"][0])

def block(sender, signal, **kwargs):
    time.sleep(60)

def child():
    telemetry.emit(signals.notification_dropped, None, endpoint="", kind="dropped")
    signals.stream_started.connect(block)
    telemetry.emit(signals.stream_started, None, endpoint="", kinds=())

parent = os.getpid()
signals.notification_dropped.connect(receiver)
signals.notification_published.connect(published)
telemetry.emit(signals.notification_dropped, None, endpoint="", kind="dropped")
process = get_context("fork").Process(target=child)
started = time.monotonic()
process.start()
process.join()
assert time.monotonic() - started < 10
publisher.publish([TOOLS])
"""


def test_at_exit_and_after_a_fork_each_process_sends_its_own_and_waits_for_nobody_for_long():
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-W", "ignore", "-c", PROCESS]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    # The parent's last notification leaves at its exit, and its event after it.
    assert sorted(done.stdout.splitlines()) == ["child dropped", "parent dropped", "parent tools"]
