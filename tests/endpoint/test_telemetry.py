"""
What a project's telemetry gets to see of real streams: no URI, no id and no principal, whatever happens to them.
"""

import asyncio
import json
from collections import Counter
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.contrib.auth import get_user_model
from django.db import connection as database

from example_project.notes.models import Note
from mcp_channels import signals, telemetry
from mcp_channels.listen.hub import Hub, tallies
from mcp_channels.listen.stream import REASONS
from mcp_channels.models import AccessToken, LiveStream, Principal, Scope
from mcp_channels.publisher import publisher
from tests.endpoint.test_admission import acknowledged, mounted, refused
from tests.endpoint.test_consumer import Connection, body, scope
from tests.listen.test_hub import until
from tests.support.http import META
from tests.support.otel import recording

pytestmark = pytest.mark.django_db(transaction=True)

KEY = 9_900_530_000_017
"""Keys of rows are above this, so that none is in the output by chance."""

SESSION, CLIENT, ADDRESS = "session-3e9d71", "client-5d1c02", "203.0.113.77"
META_OF_CLIENT = {**META, "io.modelcontextprotocol/clientInfo": {"name": CLIENT, "version": "1"}}


class Traced:
    """
    A caller all of whose names and keys can be searched for, with the requests that it makes.
    """

    def __init__(self) -> None:
        user = get_user_model().objects.create(pk=KEY + 1, username="user-61b0aa")
        self.principal = Principal.objects.create(pk=KEY + 2, name="principal-0c44f9", user=user, max_streams=2)
        self.principal.scopes.set(Scope.named(["notes:read"]))
        self.notes = [Note.objects.create(pk=KEY + 10 + number, title="x", owner=user) for number in range(4)]
        self.uris = [f"note://{note.pk}" for note in self.notes]
        self.application = mounted()
        self.asked = 0
        self.secrets = [str(KEY)[:-4], "note://", user.username, self.principal.name, SESSION, CLIENT, ADDRESS]
        self.secrets += ["request-", "127.0.0.1"]

    def issue(self, **options: object) -> str:
        token, value = AccessToken.objects.issue(self.principal, **options)
        assert token.pk > KEY
        self.secrets += [value, token.prefix, token.digest]
        return value

    def revoke(self) -> None:
        for token in AccessToken.objects.filter(principal=self.principal):
            token.revoke()

    def listen(self, value: str, asked: object = None, **headers: str) -> Connection:
        self.asked += 1
        given = {"authorization": f"Bearer {value}", "mcp-session-id": SESSION, **headers}
        pairs = [pair for pair in scope()["headers"] if pair[0].decode() not in given]
        pairs += [(name.encode(), text.encode()) for name, text in given.items()]
        message = body(asked, id=f"request-{self.asked}", meta=META_OF_CLIENT)
        return Connection(self.application, message, headers=pairs, client=(ADDRESS, 40_000))

    async def open(self, value: str) -> Connection:
        opened = self.listen(value, {"toolsListChanged": True, "resourceSubscriptions": self.uris})
        assert await acknowledged(opened) == {"toolsListChanged": True, "resourceSubscriptions": self.uris}
        async for row in LiveStream.objects.values_list("pk", "node_id"):
            assert row[0] > KEY
            self.secrets.append(row[1])
        return opened


@pytest.fixture
def keys_are_large(transactional_db):
    table = LiveStream._meta.db_table, AccessToken._meta.db_table
    with database.cursor() as cursor:
        for name in table:
            cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [name])
            cursor.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [name, KEY + 1000])
    yield
    with database.cursor() as cursor:
        cursor.execute("DELETE FROM sqlite_sequence WHERE name IN (%s, %s)", table)


@pytest.fixture
async def traced(keys_are_large):
    made = await sync_to_async(Traced)()
    # That its notes are there is no part of a test.
    assert await asyncio.to_thread(publisher.flush, 5)
    yield made
    await Hub.current(get_channel_layer()).close()


@pytest.fixture
def told():
    """
    What the receivers of the signals are given, by signal.
    """
    seen: list[tuple[str, dict]] = []
    names = ("stream_started", "stream_stopped", "notification_published", "notification_dropped")
    receivers = {}
    for name in names:

        def receiver(sender, signal, name=name, **kwargs):
            seen.append((name, {**kwargs, "sender": repr(sender)}))

        receivers[name] = receiver
        getattr(signals, name).connect(receiver)
    yield seen
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)


async def over(opened: Connection, reason: str) -> None:
    async with asyncio.timeout(10):
        await asyncio.wait([opened.task])
    sent = b"".join(message.get("body", b"") for message in opened.all).decode()
    assert reason == "client_closed" or f'"reason":"{reason}"' in sent


def hub() -> Hub:
    return Hub.current(get_channel_layer())


async def end_in_every_way(traced: Traced, settings) -> None:
    value = await sync_to_async(traced.issue)()
    left, oldest = await traced.open(value), await traced.open(value)
    traced.principal.max_streams = 1
    await traced.principal.asave()
    await left.leave()
    await over(left, "client_closed")
    failing = await traced.open(value)
    await over(oldest, "superseded")
    hub().node._fall()
    await over(failing, "server_error")
    await until(lambda: not hub().streams)
    settings.MCP_CHANNELS = {"MAX_STREAM_LIFETIME": 0.3}
    await over(await traced.open(value), "max_lifetime")
    settings.MCP_CHANNELS = {"LISTEN_IDLE_TIMEOUT": 0.2, "KEEP_ALIVE_INTERVAL": 0.1}
    await over(await traced.open(value), "idle_timeout")
    settings.MCP_CHANNELS = {}
    short = await sync_to_async(traced.issue)(lifetime=timedelta(seconds=1.5))
    await over(await traced.open(short), "token_expired")
    revoked = await traced.open(value)
    await sync_to_async(traced.revoke)()
    await over(revoked, "revoked")
    stopped = await traced.open(await sync_to_async(traced.issue)())
    hub().drain()
    await over(stopped, "shutdown")


async def drop(traced: Traced, settings) -> None:
    """
    Let a stream hear of one change, and skip others.
    """
    settings.MCP_CHANNELS = {"LISTEN_MAX_QUEUE": 1}
    opened = await traced.open(await sync_to_async(traced.issue)())
    await traced.notes[0].asave()
    assert (await opened.message())["params"]["uri"] == traced.uris[0]
    [stream] = hub().streams
    stream.hold()
    for note in traced.notes:
        await note.asave()
    await until(lambda: stream.pending)
    await opened.leave()
    settings.MCP_CHANNELS = {}


async def test_telemetry_tells_of_every_stream_once_and_of_no_uri_id_or_principal(traced, told, settings):
    with recording() as recorded:
        await drop(traced, settings)
        await end_in_every_way(traced, settings)
        assert await sync_to_async(telemetry.flush)(5)
        output = json.dumps(told) + recorded.serialised()
        spans = recorded.spans
        ended = recorded.values("mcp_channels.stream.ended")
    counts = Counter(name for name, _ in told)
    # One more than the ways to end: that of the drops.
    assert counts["stream_started"] == counts["stream_stopped"] == len(spans) == len(REASONS) + 1
    assert Counter(payload["reason"] for name, payload in told if name == "stream_stopped") == Counter(
        [*REASONS, "client_closed"]
    )
    assert sum(ended.values()) == len(REASONS) + 1
    assert counts["notification_published"] >= 2
    assert {payload["kind"] for name, payload in told if name == "notification_dropped"} == {"resource"}
    assert sum(payload["delivered"] for name, payload in told if name == "stream_stopped") >= 1
    # What may be in it, so that the search is one.
    assert all(word in output for word in ("subscriptions/listen", "resourceSubscriptions", "notes", *REASONS))
    assert len(traced.secrets) > 15
    assert [secret for secret in traced.secrets if not secret or secret in output] == []


async def test_a_listen_that_is_refused_neither_starts_nor_stops(traced, told, settings):
    before = tallies()
    value = await sync_to_async(traced.issue)()
    refusals = [
        (406, traced.listen(value, accept="application/json")),
        (401, traced.listen("mcp_wrong")),
        (403, traced.listen(value, origin="https://evil.example")),
        (400, traced.listen(value, {"toolsListChanged": "yes"})),
    ]
    for expected, connection in refusals:
        status, _, answer = await refused(connection)
        assert status == expected, answer
        assert expected != 400 or answer["error"]["code"] == -32602
    await Principal.objects.filter(pk=traced.principal.pk).aupdate(max_streams=0)
    assert (await refused(traced.listen(value)))[0] == 403
    hub().drain()
    assert (await refused(traced.listen(value)))[0] == 503
    assert await sync_to_async(telemetry.flush)(5)
    assert told == []
    assert {name: tally.streams for name, tally in tallies().items()} == dict.fromkeys(before, 0)


async def test_a_full_process_refuses_without_a_word(traced, told, settings):
    settings.MCP_CHANNELS = {"MAX_STREAMS": 1}
    value = await sync_to_async(traced.issue)()
    opened = await traced.open(value)
    assert (await refused(traced.listen(value)))[0] == 503
    await opened.leave()
    assert await sync_to_async(telemetry.flush)(5)
    assert [name for name, _ in told] == ["stream_started", "stream_stopped"]
