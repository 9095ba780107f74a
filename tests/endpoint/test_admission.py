"""
A listen on its way in, in pytest's own process: what changes meanwhile, hooks, and what it asks the database.
"""

import asyncio
import json
import logging
import threading

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.contrib.auth import get_user_model
from django.db import OperationalError
from django.urls import path

from example_project.notes.mcp import server
from example_project.notes.models import Note
from mcp_channels import MCPConsumer, MCPServer, ModelResource, notify_resource_updated
from mcp_channels.listen import admission, checking
from mcp_channels.listen.hub import Hub
from mcp_channels.models import AccessToken, LiveStream, Principal, Scope
from tests.endpoint.test_consumer import Connection, body, scope
from tests.listen.test_hub import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def no_hub_is_left():
    yield
    await Hub.current(get_channel_layer()).close()


class Somebody:
    """
    A principal with a user, a token, and notes.
    """

    def __init__(self, name="alice", **fields) -> None:
        self.user = get_user_model().objects.create(username=name)
        self.principal = Principal.objects.create(name=name, user=self.user, **fields)
        self.principal.scopes.set(Scope.named(["notes:read"]))
        self.token, self.value = AccessToken.objects.issue(self.principal)
        self.notes = [Note.objects.create(title=f"n{number}", owner=self.user) for number in range(3)]
        self.uris = [f"note://{note.pk}" for note in self.notes]


@pytest.fixture
def alice(transactional_db):
    return Somebody()


def mounted(**options):
    return URLRouter([path("mcp", MCPConsumer.as_asgi(server=options.pop("server", server), **options))])


def listen(application, who, asked, **options):
    headers = [*scope()["headers"], (b"authorization", f"Bearer {who.value}".encode())]
    return Connection(application, body(asked, **options), headers=headers)


async def acknowledged(connection) -> dict:
    start = await connection.next()
    assert start["status"] == 200, await connection.next()
    return (await connection.message())["params"]["notifications"]


async def refused(connection) -> tuple[int, dict, dict]:
    """
    The status, the headers and the JSON of an answer without a stream.
    """
    start, rest = await connection.next(), await connection.next()
    async with asyncio.timeout(5):
        await connection.task
    assert len(connection.all) == 2
    return start["status"], dict(start["headers"]), json.loads(rest["body"])


def messages(connection) -> list[dict]:
    """
    What was sent, without comments.
    """
    text = b"".join(message.get("body", b"") for message in connection.all).decode()
    return [json.loads(frame.split("data: ", 1)[1]) for frame in text.split("\r\n\r\n") if frame.startswith("event")]


async def elsewhere(function):
    """
    Call in a thread of its own: the one of the database may be held.
    """
    return await sync_to_async(function, thread_sensitive=False)()


# What changes meanwhile


@pytest.fixture
def gate(monkeypatch):
    """
    Holds every admission before its transaction.
    """

    class Gate:
        entered, open = threading.Event(), threading.Event()

        async def reached(self):
            assert await asyncio.to_thread(self.entered.wait, 5)

    made, admit = Gate(), admission.admit

    def gated(*args, **kwargs):
        made.entered.set()
        assert made.open.wait(10)
        return admit(*args, **kwargs)

    monkeypatch.setattr(admission, "admit", gated)
    yield made
    made.open.set()


def revoke(who):
    who.token.revoke()


def take_scopes(who):
    who.principal.scopes.clear()


def take_scopes_from_the_other_side(who):
    for item in Scope.objects.all():
        item.principals.clear()


def delete_scopes(who):
    Scope.objects.all().delete()


def deactivate_user(who):
    who.user.is_active = False
    who.user.save()


@pytest.mark.parametrize(
    "change", [revoke, take_scopes, take_scopes_from_the_other_side, delete_scopes, deactivate_user]
)
async def test_what_is_taken_while_a_stream_is_let_in_ends_it(alice, gate, change):
    connection = listen(mounted(), alice, {"resourceSubscriptions": alice.uris})
    await gate.reached()
    await elsewhere(lambda: change(alice))
    hub = Hub.current(get_channel_layer())
    await until(lambda: alice.principal.pk in hub.node._suspects)
    await elsewhere(alice.notes[0].save)
    gate.open.set()
    async with asyncio.timeout(5):
        await connection.task
    acknowledgment, cancelled, result = messages(connection)
    assert acknowledgment["params"]["notifications"] in ({}, {"resourceSubscriptions": alice.uris})
    assert cancelled["params"]["reason"] == "revoked"
    assert result["result"]["resultType"] == "complete"
    assert not await LiveStream.objects.aexists()


@pytest.mark.parametrize("way", ["save", "update", "delete"])
async def test_a_principal_that_goes_while_its_stream_is_let_in_is_refused(alice, gate, way):
    def change():
        rows = Principal.objects.filter(pk=alice.principal.pk)
        if way == "save":
            alice.principal.is_active = False
            alice.principal.save()
        elif way == "update":
            rows.update(is_active=False)
        else:
            rows.delete()

    connection = listen(mounted(), alice, {"resourceSubscriptions": alice.uris}, id="x")
    await gate.reached()
    await elsewhere(change)
    gate.open.set()
    status, _, answer = await refused(connection)
    assert (status, answer["id"], answer["error"]["code"]) == (403, "x", -32600)
    assert answer["error"]["message"] == "This principal may hold no listen streams."


async def test_part_of_a_filter_that_is_taken_meanwhile_is_not_acknowledged(alice, gate):
    connection = listen(mounted(), alice, {"toolsListChanged": True, "resourceSubscriptions": alice.uris})
    await gate.reached()
    await elsewhere(alice.principal.scopes.clear)
    hub = Hub.current(get_channel_layer())
    await until(lambda: alice.principal.pk in hub.node._suspects)
    gate.open.set()
    assert await acknowledged(connection) == {"toolsListChanged": True}
    await connection.leave()


async def test_a_database_that_fails_the_second_look_is_unavailable(alice, gate, monkeypatch, caplog):
    connection = listen(mounted(), alice, {"resourceSubscriptions": alice.uris}, id="x")
    await gate.reached()
    await elsewhere(alice.principal.save)
    hub = Hub.current(get_channel_layer())
    await until(lambda: alice.principal.pk in hub.node._suspects)

    def down(*args, **kwargs):
        raise OperationalError("a secret")

    monkeypatch.setattr("mcp_channels.endpoint.endpoint.authenticate", down)
    gate.open.set()
    status, headers, answer = await refused(connection)
    assert (status, answer["error"]["message"]) == (503, "The database is not available")
    assert b"retry-after" in headers
    await until(lambda: not hub.node._held and not hub.node._leaving)
    assert not await LiveStream.objects.aexists()


async def test_a_principal_of_no_streams_is_refused(transactional_db):
    nobody = await sync_to_async(Somebody)("nobody", max_streams=0)
    status, headers, answer = await refused(listen(mounted(), nobody, {"toolsListChanged": True}, id=7))
    assert status == 403
    assert headers[b"content-type"] == b"application/json"
    assert answer == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {"code": -32600, "message": "This principal may hold no listen streams."},
    }
    assert not await LiveStream.objects.aexists()


async def test_a_principal_of_no_streams_may_call_what_does_not_listen(transactional_db):
    nobody = await sync_to_async(Somebody)("nobody", max_streams=0)
    replaced = {b"mcp-method": b"tools/list", b"authorization": f"Bearer {nobody.value}".encode()}
    headers = [pair for pair in scope()["headers"] if pair[0] not in replaced]
    call = json.loads(body({})["body"])
    call["method"] = "tools/list"
    message = {"type": "http.request", "body": json.dumps(call).encode(), "more_body": False}
    connection = Connection(mounted(), message, headers=[*headers, *replaced.items()])
    assert (await connection.next())["status"] == 200
    async with asyncio.timeout(5):
        await connection.task


# Hooks


async def test_an_endpoints_hook_drops_in_silence(alice):
    asked = []

    def hook(principal, uri):
        asked.append((principal.name, uri))
        return uri != alice.uris[1]

    other = await Note.objects.acreate(title="somebody else's")
    wanted = [*alice.uris, f"note://{other.pk}", "note://999999", "unknown:x"]
    connection = listen(mounted(can_subscribe=hook), alice, {"resourceSubscriptions": wanted})
    assert await acknowledged(connection) == {"resourceSubscriptions": [alice.uris[0], alice.uris[2]]}
    # It is asked of what the caller may read, and of nothing else.
    assert sorted(asked) == sorted(("alice", uri) for uri in alice.uris)
    for uri in wanted:
        await sync_to_async(notify_resource_updated)(uri)
    await until(lambda: len(messages(connection)) == 3)
    assert [message["params"]["uri"] for message in messages(connection)[1:]] == [alice.uris[0], alice.uris[2]]
    await connection.leave()


async def test_a_hook_does_not_keep_from_reading(alice):
    connection = listen(mounted(can_subscribe=lambda *args: False), alice, {"resourceSubscriptions": alice.uris})
    assert await acknowledged(connection) == {}
    await connection.leave()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_hook_that_fails_lets_nobody_in_and_is_logged(alice, caplog, is_async):
    def hook(principal, uri):
        if uri == alice.uris[0]:
            return True
        raise LookupError("broken")

    async def later(principal, uri):
        return hook(principal, uri)

    application = mounted(can_subscribe=later if is_async else hook)
    connection = listen(application, alice, {"toolsListChanged": True, "resourceSubscriptions": alice.uris})
    assert await acknowledged(connection) == {"toolsListChanged": True, "resourceSubscriptions": alice.uris[:1]}
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "can_subscribe failed for 2 of 3 URIs; they are left out"
    assert "LookupError: broken" in caplog.text
    await connection.leave()


async def test_a_resources_hook_and_an_endpoints_have_to_agree(alice):
    both = MCPServer("both")

    @both.register(Note)
    class Own(ModelResource):
        uri = "note://{pk}"

        def get_content(self, instance, caller):
            return instance.title

        async def can_subscribe(self, principal, uri):
            # What the database says, asked from a coroutine.
            note = await Note.objects.aget(pk=uri.removeprefix("note://"))
            return note.title != "n0"

    application = mounted(server=both, can_subscribe=lambda principal, uri: uri != alice.uris[1])
    connection = listen(application, alice, {"resourceSubscriptions": alice.uris})
    assert await acknowledged(connection) == {"resourceSubscriptions": alice.uris[2:]}
    await connection.leave()


async def test_a_hook_is_asked_again_from_time_to_time(alice, monkeypatch):
    monkeypatch.setattr(checking, "CHECK_INTERVAL", 0.2)
    refused_now: set[str] = set()
    connection = listen(
        mounted(can_subscribe=lambda principal, uri: uri not in refused_now),
        alice,
        {"resourceSubscriptions": alice.uris},
    )
    await acknowledged(connection)
    refused_now.add(alice.uris[0])
    hub = Hub.current(get_channel_layer())
    [stream] = hub.streams
    await until(lambda: len(stream.topics) == 2)
    await sync_to_async(notify_resource_updated)(alice.uris[0])
    await sync_to_async(notify_resource_updated)(alice.uris[1])
    assert (await connection.message())["params"]["uri"] == alice.uris[1]
    refused_now.update(alice.uris)
    async with asyncio.timeout(5):
        await connection.task
    assert messages(connection)[-2]["params"]["reason"] == "revoked"


async def test_a_hook_is_not_asked_about_a_row_that_is_gone(alice, monkeypatch):
    """
    Its URI stays, and is heard of when a row has it again.
    """
    monkeypatch.setattr(checking, "CHECK_INTERVAL", 0.2)
    asked: list[str] = []

    def hook(principal, uri):
        asked.append(uri)
        return True

    connection = listen(mounted(can_subscribe=hook), alice, {"resourceSubscriptions": alice.uris})
    await acknowledged(connection)
    await alice.notes[0].adelete()
    assert (await connection.message())["params"]["uri"] == alice.uris[0]
    asked.clear()
    await until(lambda: len(asked) >= 2)
    assert alice.uris[0] not in asked
    key = int(alice.uris[0].removeprefix("note://"))
    await Note.objects.acreate(pk=key, title="again", owner=alice.user)
    assert (await connection.message())["params"]["uri"] == alice.uris[0]
    await until(lambda: alice.uris[0] in asked)
    await connection.leave()
