"""
``can_subscribe``: what a project's hook answers, and what becomes of it.
"""

import asyncio
import functools
import logging
import threading

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth import get_user_model

from example_project.notes.models import Note, Tag
from mcp_channels import ModelResource
from mcp_channels.models import Principal
from mcp_channels.resources import subscribe

pytestmark = pytest.mark.django_db(transaction=True)


class Notes(ModelResource):
    uri = "note://{pk}"

    def get_content(self, instance, caller):
        return instance.title


class Tags(Notes):
    uri = "tag://{name}"


ALICE = Principal(name="alice")
URIS = [f"note://{number}" for number in range(1, 6)]


async def ask(hook, uris=URIS, resources=()):
    return await subscribe.allowed(hook, resources, ALICE, uris)


def even(principal, uri):
    return int(uri[-1]) % 2 == 0


async def even_later(principal, uri):
    await asyncio.sleep(0)
    return even(principal, uri)


class Rule:
    """
    Hooks as objects have them.
    """

    def __call__(self, principal, uri):
        return even(principal, uri)

    def method(self, principal, uri):
        return even(principal, uri)

    async def later(self, principal, uri):
        return await even_later(principal, uri)


class LateRule:
    async def __call__(self, principal, uri):
        return await even_later(principal, uri)


HOOKS = {
    "function": even,
    "coroutine function": even_later,
    "lambda": lambda principal, uri: even(principal, uri),
    "lambda that returns a coroutine": lambda principal, uri: even_later(principal, uri),
    "object": Rule(),
    "object with a coroutine": LateRule(),
    "method": Rule().method,
    "coroutine method": Rule().later,
    "partial": functools.partial(even),
    "partial of a coroutine function": functools.partial(even_later),
    "a mixture": lambda principal, uri: even_later(principal, uri) if int(uri[-1]) < 3 else even(principal, uri),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
async def test_a_hook_of_any_kind_is_asked_for_each_uri(hook, caplog):
    assert await ask(hook) == {"note://2", "note://4"}
    assert caplog.records == []


async def test_without_a_hook_all_may(caplog):
    assert await ask(None, resources=[Notes(Note)]) == set(URIS)


async def test_a_hook_is_not_asked_about_nothing():
    assert await ask(None, uris=[]) == set()
    assert await ask(lambda principal, uri: 1 / 0, uris=[]) == set()


async def test_a_hook_gets_the_principal_and_the_uri():
    asked = []
    await ask(lambda *args, **kwargs: asked.append((args, kwargs)))
    assert sorted(asked, key=lambda call: call[0][1]) == [((ALICE, uri), {}) for uri in URIS]


# Exceptions


def fail_some(principal, uri):
    if even(principal, uri):
        raise LookupError("no such thing")
    return True


async def fail_some_later(principal, uri):
    await asyncio.sleep(0)
    return fail_some(principal, uri)


def wrong(uri):
    return True


async def wrong_later(uri):
    return True


@pytest.mark.parametrize("hook", [fail_some, fail_some_later], ids=["sync", "async"])
async def test_an_exception_drops_its_uri_alone_and_is_logged_once(hook, caplog):
    assert await ask(hook) == {"note://1", "note://3", "note://5"}
    [record] = caplog.records
    assert (record.name, record.levelno) == ("mcp_channels.resources", logging.ERROR)
    assert record.getMessage() == "can_subscribe failed for 2 of 5 URIs; they are left out"
    assert record.exc_info[0] is LookupError
    assert "note://" not in record.getMessage()
    assert "alice" not in record.getMessage()


@pytest.mark.parametrize("hook", [wrong, wrong_later], ids=["sync", "async"])
async def test_a_hook_that_cannot_be_called_lets_nobody_in(hook, caplog):
    assert await ask(hook) == set()
    [record] = caplog.records
    assert record.exc_info[0] is TypeError


async def test_a_hook_that_is_cancelled_within_lets_nobody_in(caplog):
    async def cancelled(principal, uri):
        raise asyncio.CancelledError

    assert await ask(cancelled) == set()
    assert len(caplog.records) == 1


async def test_who_waits_may_be_cancelled():
    started = asyncio.Event()

    async def endless(principal, uri):
        started.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    asking = asyncio.create_task(ask(endless))
    async with asyncio.timeout(5):
        await started.wait()
    asking.cancel()
    await asyncio.wait([asking], timeout=5)
    assert asking.cancelled()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


# Answers


class Undecided:
    def __bool__(self):
        raise RuntimeError("neither")


async def nested(principal, uri):
    return even_later(principal, uri)


async def generating(principal, uri):
    yield True


@pytest.mark.parametrize("answer", [True, 1, "yes", [0], object(), Rule])
async def test_what_is_true_lets_in(answer, caplog):
    async def later(principal, uri):
        return answer

    assert await ask(lambda principal, uri: answer) == await ask(later) == set(URIS)
    assert caplog.records == []


@pytest.mark.parametrize("answer", [False, None, 0, "", [], {}, 0.0])
async def test_what_is_false_does_not(answer, caplog):
    async def later(principal, uri):
        return answer

    assert await ask(lambda principal, uri: answer) == await ask(later) == set()
    assert caplog.records == []


@pytest.mark.parametrize(
    "hook", [nested, generating, lambda principal, uri: Undecided()], ids=["await forgotten", "generator", "undecided"]
)
async def test_what_is_no_answer_lets_nobody_in_and_is_logged(hook, caplog):
    assert await ask(hook) == set()
    [record] = caplog.records
    assert record.getMessage().startswith("can_subscribe failed for 5 of 5")


async def test_an_exception_that_is_returned_is_no_yes(caplog):
    def hook(principal, uri):
        return LookupError("x")

    assert await ask(hook) == set()
    assert len(caplog.records) == 1


# The database


async def test_a_synchronous_hook_may_ask_the_database():
    await Note.objects.acreate(pk=2, title="x")
    pk = lambda uri: int(uri.removeprefix("note://"))  # noqa: E731
    assert await ask(lambda principal, uri: Note.objects.filter(pk=pk(uri)).exists()) == {"note://2"}
    # The answer itself may be what asks.
    assert await ask(lambda principal, uri: Note.objects.filter(pk=pk(uri))) == {"note://2"}


async def test_an_asynchronous_hook_may_ask_the_database():
    await Note.objects.acreate(pk=2, title="x")

    async def hook(principal, uri):
        return await Note.objects.filter(pk=int(uri.removeprefix("note://"))).aexists()

    assert await ask(hook) == {"note://2"}


async def test_a_synchronous_hook_runs_where_the_orm_does():
    place = await database_sync_to_async(threading.get_ident)()
    seen = set()
    await ask(lambda principal, uri: seen.add(threading.get_ident()))
    assert seen == {place}
    assert place != threading.get_ident()


async def test_a_thousand_uris_take_one_hop(monkeypatch):
    hops = []

    def counting(function):
        hops.append(function)
        return database_sync_to_async(function)

    monkeypatch.setattr(subscribe, "database_sync_to_async", counting)
    uris = [f"note://{number}" for number in range(1000)]
    assert len(await ask(even, uris)) == 500
    assert len(hops) == 1
    assert len(await ask(even_later, uris)) == 500
    assert len(hops) == 1


# Resources' own


async def test_a_resources_hook_is_asked_about_its_own_uris():
    asked = []

    class Some(Notes):
        def can_subscribe(self, principal, uri):
            asked.append(uri)
            return even(principal, uri)

    uris = [*URIS, "tag://x", "note://x", "other:2"]
    assert await ask(None, uris, [Tags(Tag), Some(Note)]) == {
        "note://2",
        "note://4",
        "tag://x",
        "note://x",
        "other:2",
    }
    assert sorted(asked) == URIS


@pytest.mark.parametrize("is_async", [False, True])
async def test_both_hooks_have_to_agree(is_async):
    class Some(Notes):
        if is_async:

            async def can_subscribe(self, principal, uri):
                return int(uri[-1]) > 2
        else:

            def can_subscribe(self, principal, uri):
                return int(uri[-1]) > 2

    asked = []

    def hook(principal, uri):
        asked.append(uri)
        return even(principal, uri)

    assert await ask(hook, resources=[Some(Note)]) == {"note://4"}
    # What the one refuses, the other is not asked about.
    assert sorted(asked) == ["note://3", "note://4", "note://5"]


async def test_a_resources_hook_that_fails_costs_no_others(caplog):
    class Broken(Notes):
        def can_subscribe(self, principal, uri):
            raise LookupError

    assert await ask(None, [*URIS, "tag://x"], [Broken(Note), Tags(Tag)]) == {"tag://x"}
    [record] = caplog.records
    assert record.getMessage() == "can_subscribe failed for 5 of 5 URIs; they are left out"


async def test_a_hook_may_look_at_the_principals_user():
    user = await get_user_model().objects.acreate(username="ada", is_staff=True)
    principal = await Principal.objects.acreate(name="ada", user=user)
    loaded = await Principal.objects.aget(pk=principal.pk)

    def hook(principal, uri):
        return principal.user is not None and principal.user.is_staff

    assert await subscribe.allowed(hook, [], loaded, URIS) == set(URIS)
