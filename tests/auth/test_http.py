"""
Every way of authenticating over HTTP: a real server, and the real packages.
"""

import asyncio
import itertools
import json
import re
from urllib.parse import urlencode

import httpx2
import pytest
from mcp import Client
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client

from tests.spec_requirements import requirement
from tests.support.http import Response, call, listen, listen_body, listen_headers, listening, request
from tests.support.processes import free_port
from tests.support.project import Project

TOOLS = {"toolsListChanged": True}
SIGN_IN = """
import secrets
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from oauth2_provider.models import AccessToken as OAuthToken
from rest_framework.authtoken.models import Token
from rest_framework_simplejwt.tokens import AccessToken as JsonWebToken
from django.utils import timezone
from datetime import timedelta

user, _ = User.objects.get_or_create(username=name)
principal, _ = models.Principal.objects.get_or_create(name=name, defaults={"user": user})
principal.scopes.set(models.Scope.named(scopes))
lifetime = timedelta(seconds=ttl)
jwt = JsonWebToken.for_user(user)
jwt.set_exp(lifetime=lifetime)
if audience:
    jwt["aud"] = audience
oauth = secrets.token_urlsafe()
resource = [audience] if audience else []
expires = timezone.now() + lifetime
OAuthToken.objects.create(user=user, token=oauth, scope="notes:read", expires=expires, resource=resource)
session = SessionStore()
session[SESSION_KEY] = str(user.pk)
session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
session[HASH_SESSION_KEY] = user.get_session_auth_hash()
session.save()
result = {
    "own": models.AccessToken.objects.issue(principal, lifetime=lifetime)[1],
    "token": Token.objects.get_or_create(user=user)[0].key,
    "jwt": str(jwt),
    "oauth": oauth,
    "session": session.session_key,
}
"""


class Place:
    """
    A running server of the project in ``tests/auth``.
    """

    def __init__(self, directory) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.project = Project(
            directory,
            DJANGO_SETTINGS_MODULE="tests.auth.settings",
            MCP_CHANNELS_JSON=json.dumps({"AUTHORIZATION_SERVERS": [self.url], "KEEP_ALIVE_INTERVAL": 0.2}),
        )
        self.server = self.project.serve("uvicorn", application="tests.auth.asgi:application", port=self.port)

    def sign_in(self, *, name="alice", scopes=("notes:read", "notes:write"), ttl=3600, audience=None):
        """
        Credentials of each kind, of a user with these scopes.
        """
        return self.project.worker.run(SIGN_IN, name=name, scopes=scopes, ttl=ttl, audience=audience)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("place"))
    yield made
    assert "Traceback" not in made.server.read_log()
    made.project.stop()


@pytest.fixture
def alice(place):
    return place.sign_in()


CSRF = "x" * 32
HOW = {
    "own": ("own", lambda made: {"Authorization": f"Bearer {made['own']}"}),
    "token": ("token", lambda made: {"Authorization": f"Token {made['token']}"}),
    "keyword": ("keyword", lambda made: {"Authorization": f"Bearer {made['token']}"}),
    "jwt": ("jwt", lambda made: {"Authorization": f"Bearer {made['jwt']}"}),
    "stateless": ("stateless", lambda made: {"Authorization": f"Bearer {made['jwt']}"}),
    "oauth": ("oauth", lambda made: {"Authorization": f"Bearer {made['oauth']}"}),
    "session": (
        "session",
        lambda made: {"Cookie": f"sessionid={made['session']}; csrftoken={CSRF}", "X-CSRFToken": CSRF},
    ),
    "token and cookie": (
        "every",
        lambda made: {"Authorization": f"Bearer {made['own']}", "Cookie": f"sessionid={made['session']}"},
    ),
    "oauth and cookie": (
        "every",
        lambda made: {"Authorization": f"Bearer {made['oauth']}", "Cookie": f"sessionid={made['session']}"},
    ),
}


def asking(place, path, headers):
    """
    A listen request.
    """
    every = {**listen_headers(), **headers}
    return request(place.port, path=f"/{path}", headers=every, body=listen_body(TOOLS))


async def refused(response: Response) -> str | None:
    """
    Check that a refusal is JSON-RPC, and return its challenge.
    """
    error = (await response.json())["error"]
    assert error["code"] == -32600
    assert error["message"]
    return response.header("www-authenticate")


@pytest.mark.parametrize("way", HOW)
async def test_a_stream_opens_for_every_kind_of_credential(place, alice, way):
    path, headers = HOW[way]
    async with asking(place, path, headers(alice)) as response:
        assert response.status == 200
        assert (await response.message())["method"] == "notifications/subscriptions/acknowledged"


@pytest.mark.parametrize("path", ["own", "token", "keyword", "jwt", "stateless", "oauth", "session", "every", "mcp"])
async def test_without_credentials_it_is_401_and_says_how_to_come_in(place, path):
    async with asking(place, path, {}) as response:
        assert response.status == 401
        challenge = await refused(response)
    assert challenge.startswith("Bearer ")
    assert "error=" not in challenge
    metadata = f"{place.url}/.well-known/oauth-protected-resource/{path}"
    assert f'resource_metadata="{metadata}"' in challenge
    assert challenge.endswith(", Token") is (path in ("token", "every"))


@pytest.mark.parametrize("path", ["own", "keyword", "jwt", "stateless", "oauth", "session", "every", "open", "mcp"])
@pytest.mark.parametrize("value", ["mcp_wrong", "a.b.c", "\xff\xfe", "", "a b", "x" * 5000])
async def test_a_bad_token_is_401_even_with_a_good_cookie(place, alice, path, value):
    session = HOW["session"][1](alice)
    async with asking(place, path, {"Authorization": f"Bearer {value}", **session}) as response:
        assert response.status == 401
        assert 'error="invalid_token"' in await refused(response)


async def test_a_session_needs_a_csrf_token_and_a_bearer_token_none(place, alice):
    cookie = {"Cookie": f"sessionid={alice['session']}; csrftoken={CSRF}"}
    for path in ("session", "every"):
        async with asking(place, path, cookie) as response:
            assert response.status == 403
            await refused(response)
        async with asking(place, path, {**cookie, "X-CSRFToken": CSRF}) as response:
            assert response.status == 200
    # A form of another site.
    form = {**cookie, "Content-Type": "text/plain", "Origin": "https://evil.test"}
    async with asking(place, "session", form) as response:
        assert response.status == 403


async def test_a_session_that_is_over_is_401(place, alice):
    place.project.worker.run(
        "from django.contrib.sessions.models import Session; Session.objects.filter(pk=key).delete()",
        key=alice["session"],
    )
    async with asking(place, "session", HOW["session"][1](alice)) as response:
        assert response.status == 401


@pytest.mark.parametrize("way", ["own", "jwt", "oauth", "stateless"])
@requirement("auth:401")
async def test_a_stream_ends_with_its_credential(place, way):
    made = place.sign_in(ttl=3)
    path, headers = HOW[way]
    async with asking(place, path, headers(made)) as response:
        assert response.status == 200
        messages = await response.ending()
    assert messages[-2]["params"]["reason"] == "token_expired"
    async with asking(place, path, headers(made)) as response:
        assert response.status == 401
        assert 'error="invalid_token"' in await refused(response)


async def test_a_token_that_was_revoked_opens_no_new_stream(place):
    """
    What was known of the token when the first stream opened counts no more.
    """
    made = place.sign_in(name="bob")
    other = place.sign_in(name="carol")
    async with listening(place.port, TOOLS, token=other["own"], path="/own") as bystander:
        async with listening(place.port, TOOLS, token=made["own"], path="/own"):
            pass
        place.project.manage("mcp_token", "bob", "--revoke")
        async with listen(place.port, TOOLS, token=made["own"], path="/own") as again:
            assert again.status == 401
            assert 'error="invalid_token"' in await refused(again)
        await bystander.silence(0.5)


@pytest.mark.parametrize("way", ["jwt", "oauth"])
@requirement("auth:audience", "auth:own-tokens")
async def test_a_token_for_another_audience_is_401(place, way):
    path, headers = HOW[way]
    async with asking(place, path, headers(place.sign_in(audience="https://other.example"))) as response:
        assert response.status == 401
        assert 'error="invalid_token"' in await refused(response)
    async with asking(place, path, headers(place.sign_in(audience=f"{place.url}/{path}"))) as response:
        assert response.status == 200


@requirement("auth:insufficient-scope", "auth:all-scopes-at-once")
async def test_a_scope_of_the_endpoint_is_asked_of_every_method(place):
    lacking = place.sign_in(name="dave", scopes=["notes:read"])["own"]
    needed = 'scope="notes:read notes:write"'
    for method in ("subscriptions/listen", "tools/list", "server/discover", "initialize"):
        body = listen_body(TOOLS).replace(b"subscriptions/listen", method.encode())
        for token, status, error in ((lacking, 403, 'error="insufficient_scope"'), (None, 401, None)):
            headers = listen_headers(mcp_method=method)
            async with request(place.port, path="/scoped", headers=headers, body=body, token=token) as response:
                assert response.status == status
                challenge = await refused(response)
                assert needed in challenge
                assert (error or "Bearer") in challenge
    enough = place.sign_in(name="erin")["own"]
    async with listen(place.port, TOOLS, token=enough, path="/scoped") as response:
        assert response.status == 200
    for method in ("GET", "DELETE"):
        # With the session of an older revision.
        headers = listen_headers(content_type=None, mcp_session_id="abc")
        async with request(place.port, path="/scoped", method=method, headers=headers, token=lacking) as response:
            assert response.status == 403


async def test_an_oauth_token_narrows_what_its_user_may_do(place, alice):
    create = {"name": "create_note", "arguments": {"title": "x"}}
    for way, is_refused in (("jwt", False), ("oauth", True)):
        answer = await call(place.port, "tools/call", create, token=alice[way], path=f"/{way}")
        assert answer["result"].get("isError", False) is is_refused


async def test_a_token_in_the_url_is_400(place, alice):
    async with asking(place, f"oauth?{urlencode({'access_token': alice['oauth']})}", {}) as response:
        assert response.status == 400
        await refused(response)


@pytest.mark.parametrize("path", ["oauth?a=%G0", "every?a=%G0", "oauth?%ff=%00;&&", "open?a=%G0"])
async def test_a_strange_query_is_no_error_of_the_server(place, alice, path):
    async with asking(place, path, {"Authorization": f"Bearer {alice['oauth']}"}) as response:
        assert response.status in (200, 400)


@pytest.mark.parametrize("content_type", ["multipart/form-data", "application/x-www-form-urlencoded; charset=x", "a"])
@pytest.mark.parametrize("path", ["oauth", "every", "view", "session"])
async def test_a_strange_content_type_is_no_error_of_the_server(place, alice, path, content_type):
    headers = {"Authorization": f"Bearer {alice['oauth']}", "Content-Type": content_type}
    async with asking(place, path, headers) as response:
        assert 400 <= response.status < 500


async def test_a_class_that_asks_the_database_and_dawdles_holds_up_nobody(place, alice):
    async with listening(place.port, TOOLS, token=alice["own"], path="/own") as stream:
        loop = asyncio.get_running_loop()

        async def beats() -> list[float]:
            moments = [loop.time()]
            while moments[-1] - moments[0] < 1.5:
                assert await stream.frame() == b":"
                moments.append(loop.time())
            return moments

        async with asyncio.TaskGroup() as group:
            beating = group.create_task(beats())
            async with asking(place, "slow", {}) as slow:
                assert slow.status == 200
        moments = beating.result()
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    # A keep-alive is due every 0.2 s.
    assert max(gaps) < 0.2 + 0.5


class Storage:
    """
    Where the official client keeps its tokens.
    """

    tokens = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return None

    async def set_client_info(self, client_info):
        raise AssertionError("the client is known")


@requirement("auth:metadata", "auth:discovery")
async def test_the_official_client_finds_its_way_to_a_token(place):
    """
    From a 401 over the metadata to the authorization server (django-oauth-toolkit), and back with a token for this
    endpoint.
    """
    secret = place.project.worker.run(
        """
from oauth2_provider.models import Application
Application.objects.create(
    name="nightly", client_id="nightly", client_secret=secret, client_type="confidential",
    authorization_grant_type="client-credentials",
)
principal = models.Principal.objects.create(name="client:nightly")
principal.scopes.set(models.Scope.named(["notes:read"]))
result = secret
""",
        secret="a secret of the client",
    )
    storage = Storage()
    url = f"{place.url}/mcp"
    provider = ClientCredentialsOAuthProvider(
        server_url=url,
        storage=storage,
        client_id="nightly",
        client_secret=secret,
        issuer=place.url,
    )
    async with (
        httpx2.AsyncClient(auth=provider, timeout=httpx2.Timeout(10), trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), read_timeout_seconds=10) as client,
    ):
        assert "create_note" in [tool.name for tool in (await client.list_tools()).tools]
        # The client got all that the document names; its principal may read alone.
        assert (await client.call_tool("create_note", {"title": "x"})).is_error
    granted = place.project.worker.run(
        """
from oauth2_provider.models import AccessToken as OAuthToken
token = OAuthToken.objects.get(application__client_id="nightly")
result = [token.scope.split(), token.resource]
"""
    )
    assert granted == [["notes:read", "notes:write"], [url]]
    async with asking(place, "oauth", {"Authorization": f"Bearer {storage.tokens.access_token}"}) as elsewhere:
        assert elsewhere.status == 401


async def test_the_example_project_shows_its_metadata(make_project):
    project = make_project(MCP_CHANNELS_JSON=json.dumps({"AUTHORIZATION_SERVERS": ["https://auth.example.com"]}))
    server = project.serve("uvicorn")
    async with listen(server.port, TOOLS) as response:
        assert response.status == 401
        [url] = re.findall(r'resource_metadata="([^"]+)"', response.header("www-authenticate"))
    assert url == f"{server.url}/.well-known/oauth-protected-resource/mcp"
    path = url.removeprefix(server.url)
    async with request(server.port, path=path, method="GET") as response:
        assert response.status == 200
        document = await response.json()
    assert document["resource"] == f"{server.url}/mcp"
    assert document["authorization_servers"] == ["https://auth.example.com"]
    assert document["scopes_supported"] == ["notes:read", "notes:write"]
    async with request(server.port, path=path, method="GET", headers={"Host": "evil.test"}) as response:
        assert response.status == 400
