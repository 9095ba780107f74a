"""
Who loses the right to listen stops listening: every way to lose it, on real servers.
"""

import asyncio
import json
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from tests.auth.test_http import HOW
from tests.integration.test_endings import check_closing
from tests.support.http import Response, listen_body, listen_headers, request
from tests.support.project import Project

FIND = """
import io
from datetime import timedelta
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from django.db.models import QuerySet
from django.test import Client
from django.utils import timezone
from oauth2_provider.models import AccessToken as OAuthToken, Application
from rest_framework.authtoken.models import Token
from rest_framework_simplejwt.tokens import AccessToken as JsonWebToken
from tests.admin.conftest import Admin

AccessToken, LiveStream, Principal, Scope = models.AccessToken, models.LiveStream, models.Principal, models.Scope
principal = Principal.objects.filter(name=name).first()
user = User.objects.filter(username=name).first()
own = AccessToken.objects.filter(principal__name=name, is_narrowed=False).first()
narrow = AccessToken.objects.filter(principal__name=name, is_narrowed=True).first()
"""

SIGN_IN = """
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
user = User.objects.create(username=name)
principal = Principal.objects.create(name=name, user=user, max_streams=100)
principal.scopes.set(Scope.named(scopes))
later = timezone.now() + timedelta(hours=1)
OAuthToken.objects.create(user=user, token="oauth-" + name, scope="notes:read", expires=later)
session = SessionStore()
session[SESSION_KEY] = str(user.pk)
session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
session[HASH_SESSION_KEY] = user.get_session_auth_hash()
session.save()
result = {
    "own": AccessToken.objects.issue(principal)[1],
    "narrowed": AccessToken.objects.issue(principal, scopes=["notes:read"])[1],
    "token": Token.objects.create(user=user).key,
    "jwt": str(JsonWebToken.for_user(user)),
    "oauth": "oauth-" + name,
    "session": session.session_key,
    "note": Note.objects.create(title="own", owner=user).pk,
    "keys": {"principal": principal.pk, "token": AccessToken.objects.get(principal=principal, is_narrowed=False).pk},
}
"""

SIGN_IN_ROOT = """
user = User.objects.create_superuser("root")
principal = Principal.objects.create(name="root", user=user)
result = AccessToken.objects.issue(principal)[1]
"""

SAVE = "\nfor note in Note.objects.filter(pk__in=pks):\n    note.save()"

WAYS = {**HOW, "narrowed": ("own", lambda made: {"Authorization": f"Bearer {made['narrowed']}"})}


class Place:
    """
    Servers of the project in ``tests/auth`` on one database, and a process that changes rows.
    """

    def __init__(self, directory, kinds, **env: str) -> None:
        self.project = Project(directory, DJANGO_SETTINGS_MODULE="tests.auth.settings", **env)
        application = "tests.auth.asgi:application"
        self.servers = [self.project.serve(kind, application=application) for kind in kinds]
        self.ports = [server.port for server in self.servers]
        # The admin's forms are read from the contexts of its templates.
        self.run("from django.test.utils import setup_test_environment; setup_test_environment()", name="")
        self.root = self.run(SIGN_IN_ROOT, name="root")
        self.shared = self.project.note()
        self.bob = self.sign_in("bob")
        self.has_outage = False
        self._number = 0

    def run(self, code: str, *, flush: bool = True, **values: object) -> Any:
        return self.project.worker.run(FIND + code, flush=flush, **values)

    def sign_in(self, name: str, scopes=("notes:read", "notes:write")) -> dict:
        return {**self.run(SIGN_IN, name=name, scopes=scopes), "name": name}

    def somebody(self) -> dict:
        self._number += 1
        return self.sign_in(f"user{self._number}")

    async def change(self, made: dict, code: str, *, flush: bool = True) -> None:
        """
        Change something of somebody, and save the notes at once.
        """
        await asyncio.to_thread(self.run, code + SAVE, flush=flush, name=made["name"], pks=[made["note"], self.shared])

    async def api(self, method: str, path: str, data: object = None) -> None:
        """
        Call the REST API of the first server.
        """
        body = b"" if data is None else json.dumps(data).encode()
        headers = {"Content-Type": "application/json"}
        url = f"/api/mcp/{path}"
        async with request(self.ports[0], method=method, path=url, headers=headers, body=body, token=self.root) as done:
            assert done.status in (200, 202, 204), (done.status, await done.body())

    @asynccontextmanager
    async def stream(self, port: int, made: dict, way: str, asked: dict):
        """
        A listen stream that is acknowledged.
        """
        path, headers = WAYS[way]
        every = {**listen_headers(), **headers(made)}
        async with request(port, path=f"/{path}", headers=every, body=listen_body(asked)) as response:
            assert response.status == 200, await response.body()
            acknowledgment = await response.message()
            assert acknowledgment["params"]["notifications"] == asked
            yield response

    @asynccontextmanager
    async def streams(self, made: dict, way: str, asked: dict):
        """
        One on each server, and beside each one of somebody else.
        """
        async with AsyncExitStack() as stack:
            others = {"resourceSubscriptions": [f"note://{self.shared}"]}
            yield (
                [await stack.enter_async_context(self.stream(port, made, way, asked)) for port in self.ports],
                [await stack.enter_async_context(self.stream(port, self.bob, "own", others)) for port in self.ports],
            )

    async def check_others(self, others: list[Response]) -> None:
        """
        Nobody else's stream is touched.
        """
        for other in others:
            assert (await other.message(timeout=5))["params"]["uri"] == f"note://{self.shared}"

    async def check_ended(self, streams: list[Response], *reasons: str) -> None:
        """
        The streams have their closing frames, nothing before them and nothing after, within two seconds.
        """
        started = time.monotonic()
        for stream in streams:
            messages = await stream.ending()
            assert len(messages) == 2, messages
            reason = messages[0]["params"]["reason"]
            assert reason in reasons
            check_closing(messages, reason)
        assert time.monotonic() - started < 2

    def stop(self) -> None:
        logs = "".join(server.read_log() for server in self.servers)
        self.project.stop()
        # The layer itself writes one when its broker goes.
        assert self.has_outage or "Traceback" not in logs


@pytest.fixture(scope="module")
def make_place(tmp_path_factory, redis):
    """
    A function that makes places; the database is migrated once.
    """
    made: list[Place] = []
    template = None

    def make(*kinds: str, redis_url: str | None = redis.url, **env: str) -> Place:
        nonlocal template
        directory = tmp_path_factory.mktemp("place")
        if template is None:
            Project(directory, DJANGO_SETTINGS_MODULE="tests.auth.settings").stop()
            template = directory / "db.sqlite3"
            directory = tmp_path_factory.mktemp("place")
        if redis_url is not None:
            env["REDIS_URL"] = redis_url
            env["CHANNEL_LAYER_CONFIG"] = json.dumps({"prefix": directory.name})
        made.append(Place(directory, kinds, template=template, **env))
        return made[-1]

    yield make
    for place in made:
        place.stop()


@pytest.fixture(scope="module")
def pair(make_place):
    """
    Two processes and Redis.
    """
    return make_place("uvicorn", "uvicorn")


class Case(NamedTuple):
    """
    A change, as code or as a call of the API, and how the streams of a credential end by it.
    """

    change: str | tuple
    way: str = "own"
    reasons: tuple[str, ...] = ("revoked",)


ADMIN_FORM = """
admin = Admin(User.objects.get(username="root"))
page = f"principal/{principal.pk}/change/"
answer = admin.post(page, admin.form(page, **changes))
assert answer.status_code == 302, answer.content
"""

ACT = """
admin = Admin(User.objects.get(username="root"))
answer = admin.act(page, action, rows)
assert answer.status_code == 302, answer.content
"""

CONFIRM = """
admin = Admin(User.objects.get(username="root"))
answer = admin.post(f"{page}/{row.pk}/delete/", {"post": "yes"})
assert answer.status_code == 302, answer.content
"""

USER_ADMIN = """
root = Client()
root.force_login(User.objects.get(username="root"))
page = f"/admin/auth/user/{user.pk}/change/"
fields = {"username": name, "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
answer = root.post(page, fields)
assert answer.status_code == 302, answer.content
assert not User.objects.get(pk=user.pk).is_active
"""

ENDINGS = {
    # The principal
    "a principal is deactivated": Case("principal.is_active = False; principal.save()"),
    "a principal is deactivated by a part of it": Case(
        "principal.is_active = False; principal.save(update_fields=['is_active'])"
    ),
    "a principal is deactivated in the admin": Case("changes = {'is_active': None}" + ADMIN_FORM),
    "a principal is deactivated by the API": Case(("PATCH", "principals/{principal}/", {"is_active": False})),
    "a principal is deleted": Case("principal.delete()"),
    "principals are deleted by a queryset": Case("Principal.objects.filter(name=name).delete()"),
    "a principal is deleted in the admin": Case("page, row = 'principal', principal" + CONFIRM),
    "a principal is deleted by the API": Case(("DELETE", "principals/{principal}/")),
    # Its user
    "a user is deactivated": Case("user.is_active = False; user.save()"),
    "a user is deactivated in the admin": Case(USER_ADMIN),
    "a user is deleted": Case("user.delete()"),
    # Its token
    "a token is revoked": Case("own.revoke()"),
    "a token is revoked by the command": Case("call_command('mcp_token', name, '--revoke', stdout=io.StringIO())"),
    "a token is revoked by an action": Case("page, action, rows = 'accesstoken/', 'revoke_selected', [own]" + ACT),
    "a token is revoked on its principal's page": Case(
        "number = list(principal.tokens.order_by('-created_at')).index(own)\n"
        "changes = {f'tokens-{number}-revoke': 'on'}" + ADMIN_FORM
    ),
    "a token is revoked by the API": Case(("POST", "tokens/{token}/revoke/")),
    "a token is deleted": Case("own.delete()"),
    "a token is deleted by the API": Case(("DELETE", "tokens/{token}/")),
    "a token has expired": Case(
        "own.expires_at = timezone.now() - timedelta(seconds=1); own.save()", reasons=("revoked", "token_expired")
    ),
    # Scopes: the streams ask for nothing but a note
    "a scope is taken": Case("principal.scopes.remove(Scope.objects.get(name='notes:read'))"),
    "all scopes are taken": Case("principal.scopes.clear()"),
    "a scope is taken in the admin": Case(
        "changes = {'scopes': [Scope.objects.get(name='notes:write').pk]}" + ADMIN_FORM
    ),
    "a scope is taken by the API": Case(("PATCH", "principals/{principal}/", {"scopes": ["notes:write"]})),
    "a scope is taken by the command": Case(
        "call_command('mcp_token', name, '--scope', 'notes:write', stdout=io.StringIO())"
    ),
    "a scope is taken from the other side": Case("Scope.objects.get(name='notes:read').principals.remove(principal)"),
    "a scope is taken from a token": Case("narrow.scopes.clear()", way="narrowed"),
    # Other packages' credentials
    "a token of DRF is deleted": Case("Token.objects.filter(user=user).delete()", way="token"),
    "the user of a token of DRF is deactivated": Case("user.is_active = False; user.save()", way="token"),
    "the user of a JWT is deactivated": Case("user.is_active = False; user.save()", way="jwt"),
    "the user of a JWT is deleted": Case("user.delete()", way="jwt"),
    "the principal of a JWT is deactivated": Case("principal.is_active = False; principal.save()", way="jwt"),
    "an OAuth token is deleted": Case("OAuthToken.objects.get(user=user).delete()", way="oauth"),
    "an OAuth token is revoked": Case("OAuthToken.objects.get(user=user).revoke()", way="oauth"),
    "an OAuth token loses its scope": Case(
        "token = OAuthToken.objects.get(user=user); token.scope = ''; token.save()", way="oauth"
    ),
    "an OAuth token has expired": Case(
        "token = OAuthToken.objects.get(user=user); token.expires = timezone.now(); token.save()",
        way="oauth",
        reasons=("revoked", "token_expired"),
    ),
    "the user of a session is deactivated": Case("user.is_active = False; user.save()", way="session"),
    # By hand
    "streams are ended in the admin": Case(
        "page, action, rows = 'livestream/', 'disconnect_selected', LiveStream.objects.filter(principal=principal)"
        + ACT
    ),
}


@pytest.mark.parametrize("case", ENDINGS.values(), ids=ENDINGS)
async def test_streams_end_with_what_they_hang_on(pair, case):
    await check_case(pair, case)


async def check_case(place: Place, case: Case) -> None:
    made = place.somebody()
    asked = {"resourceSubscriptions": [f"note://{made['note']}", f"note://{place.shared}"]}
    async with place.streams(made, case.way, asked) as (streams, others):
        if isinstance(case.change, str):
            await place.change(made, case.change)
        else:
            method, path, *data = case.change
            await place.api(method, path.format(**made["keys"]), *data)
            await place.change(made, "")
        await place.check_ended(streams, *case.reasons)
        await place.check_others(others)


NARROWINGS = {
    "a scope is taken": ("own", "principal.scopes.remove(Scope.objects.get(name='notes:read'))"),
    "all scopes are taken": ("own", "principal.scopes.clear()"),
    "a scope is taken from a token": ("narrowed", "narrow.scopes.clear()"),
    "an OAuth token loses its scope": (
        "oauth",
        "token = OAuthToken.objects.get(user=user); token.scope = ''; token.save()",
    ),
    "a user's token is left alone": ("own", "Token.objects.get(user=user).delete()"),
    "another token is revoked": ("own", "narrow.revoke()"),
    "a scope that isn't needed is taken": ("own", "principal.scopes.remove(Scope.objects.get(name='notes:write'))"),
}


@pytest.mark.parametrize("name", NARROWINGS)
async def test_streams_lose_what_a_scope_stood_for_and_nothing_else(pair, name):
    way, code = NARROWINGS[name]
    loses = name in list(NARROWINGS)[:4]
    made = pair.somebody()
    uris = [f"note://{made['note']}", f"note://{pair.shared}"]
    asked = {"toolsListChanged": True, "resourcesListChanged": True, "resourceSubscriptions": uris}
    async with pair.streams(made, way, asked) as (streams, others):
        await pair.change(made, code)
        await asyncio.to_thread(pair.run, "notify.notify_tools_changed()", name=made["name"])
        for stream in streams:
            heard = []
            while not heard or heard[-1]["method"] != "notifications/tools/list_changed":
                heard.append(await stream.message(timeout=2))
            assert {message["params"]["uri"] for message in heard[:-1]} == (set() if loses else set(uris))
        await pair.check_others(others)


async def test_a_deleted_scope_is_taken_from_all_who_have_it(pair):
    first, second = pair.somebody(), pair.somebody()
    asked = {"resourceSubscriptions": [f"note://{pair.shared}"]}
    async with (
        pair.stream(pair.ports[0], first, "own", asked) as one,
        pair.stream(pair.ports[1], second, "narrowed", {"toolsListChanged": True, **asked}) as two,
    ):
        await pair.change(first, "Scope.objects.get(name='notes:read').delete()")
        await pair.check_ended([one], "revoked")
        await asyncio.to_thread(pair.run, "notify.notify_tools_changed()", name="")
        assert (await two.message(timeout=2))["method"] == "notifications/tools/list_changed"
    pair.run("principal.scopes.set(Scope.named(['notes:read', 'notes:write']))", name="bob")


async def test_a_token_that_is_made_to_end_soon_ends_its_streams_then(pair):
    made = pair.somebody()
    asked = {"resourceSubscriptions": [f"note://{made['note']}"]}
    async with pair.streams(made, "own", asked) as (streams, others):
        await pair.change(made, "own.expires_at = timezone.now() + timedelta(seconds=1); own.save()")
        for stream in streams:
            # It may hear of the change still.
            messages = await stream.ending()
            check_closing(messages, messages[-2]["params"]["reason"])
            assert messages[-2]["params"]["reason"] in ("token_expired", "revoked")
        await pair.check_others(others)


async def test_a_change_that_is_rolled_back_ends_nothing(pair):
    made = pair.somebody()
    asked = {"resourceSubscriptions": [f"note://{made['note']}"]}
    code = """
from django.db import transaction
try:
    with transaction.atomic():
        principal.is_active = False
        principal.save()
        own.delete()
        principal.scopes.clear()
        raise LookupError
except LookupError:
    pass
"""
    async with pair.streams(made, "own", asked) as (streams, others):
        await pair.change(made, code)
        for stream in streams:
            assert (await stream.message(timeout=5))["params"]["uri"] == f"note://{made['note']}"
        await pair.check_others(others)


async def test_a_client_whose_stream_was_revoked_is_refused(pair):
    made = pair.somebody()
    await pair.change(made, "own.revoke()")
    headers = {**listen_headers(), "Authorization": f"Bearer {made['own']}"}
    async with request(pair.ports[0], path="/own", headers=headers, body=listen_body({})) as response:
        assert response.status == 401


# Elsewhere

FEW = [
    "a principal is deactivated",
    "a user is deactivated",
    "a token is revoked by the API",
    "a token is deleted",
    "a scope is taken",
    "an OAuth token is deleted",
]


@asynccontextmanager
async def opened(place: Place, names: list[str]):
    """
    For each case its streams, those beside them, who opened them, and the case.
    """
    async with AsyncExitStack() as stack:
        found = []
        for name in names:
            made, case = place.somebody(), ENDINGS[name]
            asked = {"resourceSubscriptions": [f"note://{made['note']}", f"note://{place.shared}"]}
            found.append((*await stack.enter_async_context(place.streams(made, case.way, asked)), made, case))
        yield found


async def test_streams_end_on_daphne(make_place):
    place = make_place("daphne")
    for name in FEW:
        await check_case(place, ENDINGS[name])


async def test_streams_end_where_no_layer_leads_to_their_process(make_place):
    """
    One process, a layer in its memory, and changes in another one.
    """
    place = make_place("uvicorn", redis_url=None)
    async with opened(place, FEW) as cases:
        for _, _, made, case in cases:
            if isinstance(case.change, str):
                await place.change(made, case.change)
            else:
                method, path, *data = case.change
                await place.api(method, path.format(**made["keys"]), *data)
        await asyncio.gather(*(place.check_ended(streams, *case.reasons) for streams, _, _, case in cases))
        await place.api("POST", "notify/", {"uris": [f"note://{place.shared}"]})
        for _, others, _, _ in cases:
            await place.check_others(others)


async def test_streams_end_while_redis_is_down(make_place, own_redis):
    place = make_place("uvicorn", "uvicorn", redis_url=own_redis.url)
    place.has_outage = True
    async with opened(place, [name for name in FEW if isinstance(ENDINGS[name].change, str)]) as cases:
        own_redis.stop()
        for _, _, made, case in cases:
            await place.change(made, case.change, flush=False)
        await asyncio.gather(*(place.check_ended(streams, *case.reasons) for streams, _, _, case in cases))
        own_redis.start()
        # What was missed is made up for, and nobody else has ended.
        for _, others, _, _ in cases:
            await place.check_others(others)


# Without a signal

SILENT = {
    "a principal is deactivated": ("own", "Principal.objects.filter(pk=principal.pk).update(is_active=False)"),
    "a token is revoked": ("own", "AccessToken.objects.filter(pk=own.pk).update(revoked_at=timezone.now())"),
    "a token has expired": ("own", "AccessToken.objects.filter(pk=own.pk).update(expires_at=timezone.now())"),
    "a user is deactivated": ("own", "User.objects.filter(pk=user.pk).update(is_active=False)"),
    "the user of a JWT is deactivated": ("jwt", "User.objects.filter(pk=user.pk).update(is_active=False)"),
    "scopes are taken": ("own", "Principal.scopes.through.objects.filter(principal=principal).delete()"),
    "scopes are taken from a token": (
        "narrowed",
        "AccessToken.scopes.through.objects.filter(accesstoken=narrow).delete()",
    ),
    "a token of DRF is deleted": ("token", "QuerySet(Token).filter(user=user)._raw_delete('default')"),
    "an OAuth token is deleted": ("oauth", "QuerySet(OAuthToken).filter(user=user)._raw_delete('default')"),
    "a session is over": ("session", "SessionStore(session).flush()"),
    "a note is hidden": ("own", "QuerySet(Note).filter(owner=user).update(owner=None)"),
}


async def test_what_no_signal_tells_of_is_found_within_half_a_minute(pair):
    everybody = {name: pair.somebody() for name in SILENT}
    watcher, gone = pair.somebody(), pair.run("result = Note.objects.create(title='gone', shared=True).pk", name="")
    hidden = pair.run("result = Note.objects.create(title='hidden', shared=True).pk", name="")
    async with AsyncExitStack() as stack:
        ending = {}
        for name, made in everybody.items():
            asked = {"resourceSubscriptions": [f"note://{made['note']}"]}
            streams = [
                await stack.enter_async_context(pair.stream(p, made, SILENT[name][0], asked)) for p in pair.ports
            ]
            ending[name] = [asyncio.create_task(stream.ending(timeout=60)) for stream in streams]
        asked = {"resourceSubscriptions": [f"note://{pk}" for pk in (pair.shared, gone, hidden)]}
        watching = await stack.enter_async_context(pair.stream(pair.ports[0], watcher, "own", asked))
        pair.run("Note.objects.get(pk=pk).delete()", name="", pk=gone)
        assert (await watching.message())["params"]["uri"] == f"note://{gone}"
        pair.run("QuerySet(Note).filter(pk=pk).update(shared=False)", name="", pk=hidden)
        for name, made in everybody.items():
            pair.run(SILENT[name][1], name=made["name"], session=made["session"])
        started = time.monotonic()

        async def heard_of() -> set[int]:
            """
            Of which of these notes the watcher hears.
            """
            pks = [gone, hidden, pair.shared]
            code = "for pk in pks:\n    notify.notify_resource_updated(f'note://{pk}')"
            await asyncio.to_thread(pair.run, code, name="", pks=pks)
            uris = set()
            while f"note://{pair.shared}" not in uris:
                uris.add((await watching.message(timeout=5))["params"]["uri"])
            return {pk for pk in pks if f"note://{pk}" in uris}

        while hidden in await heard_of():
            assert time.monotonic() - started < 30
            await asyncio.sleep(0.5)
        for name, tasks in ending.items():
            for task in tasks:
                async with asyncio.timeout(started + 30 - time.monotonic()):
                    messages = await task
                assert messages[-2]["params"]["reason"] in ("revoked", "token_expired"), name
                assert len(messages) == 2, name
        # A row that is gone may come back; one that was hidden is not heard of again, not even when it is shown.
        pair.run("Note(pk=pk, title='back', shared=True).save(force_insert=True)", name="", pk=gone)
        assert (await watching.message())["params"]["uri"] == f"note://{gone}"
        pair.run("Note.objects.filter(pk=pk).update(shared=True)", name="", pk=hidden)
        assert await heard_of() == {gone, pair.shared}
