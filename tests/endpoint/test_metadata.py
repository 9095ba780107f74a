"""
The protected-resource metadata (RFC 9728), and what the endpoint's refusals say of it.
"""

import json

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, RequestFactory
from django.urls import path
from mcp.client.auth.utils import build_protected_resource_metadata_discovery_urls
from mcp.shared.auth import ProtectedResourceMetadata

from mcp_channels import MCPConsumer, MCPServer
from mcp_channels.endpoint.views import MCPView, ProtectedResourceView
from mcp_channels.models import AccessToken, Principal, Scope
from tests.spec_requirements import requirement
from tests.support.http import META, listen_headers

ISSUERS = ["https://auth.example.com", "https://auth.example.com/tenant"]

server = MCPServer("documents", title="Our documents")


@server.resource("doc:{name}", scope="docs:read")
async def document(name: str) -> str:
    return name


@server.tool(scope="docs:write")
async def write() -> str:
    return "done"


@server.tool(scope="offline_access")
async def odd() -> str:
    return "done"


WELL_KNOWN = ".well-known/oauth-protected-resource"
urlpatterns = [
    path("mcp", MCPView.as_view(server=server)),
    path("scoped/mcp/", MCPView.as_view(server=server, scope=["docs:read", "docs:use"])),
    path("open", MCPView.as_view(server=server, scope="docs:use", allow_anonymous=True)),
    path(f"{WELL_KNOWN}/mcp", ProtectedResourceView.as_view(server=server)),
    path(f"{WELL_KNOWN}/scoped/mcp/", ProtectedResourceView.as_view(server=server, scope="docs:use")),
    path(WELL_KNOWN, ProtectedResourceView.as_view(server=server)),
    path("elsewhere", ProtectedResourceView.as_view(server=server, path="/mcp")),
    path("lost", ProtectedResourceView.as_view(server=server)),
]

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


@pytest.fixture(autouse=True)
def oauth(settings):
    settings.MCP_CHANNELS = {"AUTHORIZATION_SERVERS": ISSUERS}


def token(*scopes):
    principal = Principal.objects.create(name="alice")
    principal.scopes.set(Scope.named(scopes))
    return AccessToken.objects.issue(principal)[1]


def post(url, value=None):
    headers = listen_headers(mcp_method="tools/list")
    content_type = headers.pop("Content-Type")
    if value is not None:
        headers["Authorization"] = f"Bearer {value}"
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
    return Client().post(url, json.dumps(body), content_type=content_type, headers=headers)


@requirement("auth:metadata", "auth:no-offline-access")
def test_the_document_says_who_issues_tokens_and_for_what(client):
    response = client.get(f"/{WELL_KNOWN}/mcp")
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    assert response.json() == {
        "resource": "http://testserver/mcp",
        "authorization_servers": ISSUERS,
        # offline_access is the client's business (MCP 2026-07-28 basic/authorization, "Refresh Tokens").
        "scopes_supported": ["docs:read", "docs:write"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Our documents",
    }
    assert str(ProtectedResourceMetadata.model_validate_json(response.content).resource) == "http://testserver/mcp"


def test_the_official_client_looks_where_it_is(client):
    urls = build_protected_resource_metadata_discovery_urls(None, "http://testserver/mcp")
    assert client.get(urls[0]).json()["resource"] == "http://testserver/mcp"


def test_the_path_is_that_of_the_endpoint(client):
    response = client.get(f"/{WELL_KNOWN}/scoped/mcp/").json()
    assert response["resource"] == "http://testserver/scoped/mcp/"
    assert response["scopes_supported"] == ["docs:read", "docs:use", "docs:write"]
    assert client.get(f"/{WELL_KNOWN}").json()["resource"] == "http://testserver"
    assert client.get("/elsewhere").json()["resource"] == "http://testserver/mcp"
    with pytest.raises(ImproperlyConfigured, match="path"):
        client.get("/lost")


def test_the_host_is_checked(client, settings):
    settings.ALLOWED_HOSTS = ["example.com"]
    assert client.get(f"/{WELL_KNOWN}/mcp", headers={"Host": "evil.test"}).status_code == 400
    response = client.get(f"/{WELL_KNOWN}/mcp", headers={"Host": "example.com"})
    assert response.json()["resource"] == "http://example.com/mcp"


def test_without_an_authorization_server_there_is_no_document(client, settings):
    settings.MCP_CHANNELS = {}
    assert client.get(f"/{WELL_KNOWN}/mcp").status_code == 404


def test_it_is_read_only_and_open_to_browsers(client):
    assert client.head(f"/{WELL_KNOWN}/mcp").content == b""
    preflight = client.options(f"/{WELL_KNOWN}/mcp", headers={"Origin": "https://inspector.example"})
    assert preflight.status_code == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "*"
    assert preflight.headers["Access-Control-Allow-Headers"] == "*"
    for method in ("post", "put", "patch", "delete"):
        response = getattr(client, method)(f"/{WELL_KNOWN}/mcp")
        assert response.status_code == 405
        assert response.headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("options", [{}, {"server": "notes"}, {"server": server, "scope": "a b"}])
def test_a_view_that_cannot_serve_is_refused_when_it_is_routed(options):
    with pytest.raises((TypeError, ValueError)):
        ProtectedResourceView.as_view(**options)


@requirement("auth:discovery")
def test_a_refusal_leads_to_the_document(client):
    response = post("/mcp")
    assert response.status_code == 401
    challenge = f'Bearer realm="mcp", resource_metadata="http://testserver/{WELL_KNOWN}/mcp"'
    assert response.headers["WWW-Authenticate"] == challenge
    assert client.get(challenge.split('"')[-2]).json()["resource"] == "http://testserver/mcp"
    challenge = f'Bearer realm="mcp", error="invalid_token", resource_metadata="http://testserver/{WELL_KNOWN}/mcp"'
    assert post("/mcp", "mcp_wrong").headers["WWW-Authenticate"] == challenge


def test_without_an_authorization_server_a_refusal_leads_nowhere(settings):
    settings.MCP_CHANNELS = {}
    assert post("/mcp").headers["WWW-Authenticate"] == 'Bearer realm="mcp"'


@requirement("auth:scope-in-challenge", "auth:insufficient-scope")
def test_an_endpoints_scope_is_asked_of_every_caller():
    metadata = f'resource_metadata="http://testserver/{WELL_KNOWN}/scoped/mcp/"'
    lacking = post("/scoped/mcp/", token("docs:read"))
    assert lacking.status_code == 403
    assert lacking.json()["error"]["code"] == -32600
    assert lacking.headers["WWW-Authenticate"] == (
        f'Bearer realm="mcp", error="insufficient_scope", scope="docs:read docs:use", {metadata}'
    )
    Principal.objects.get().scopes.set(Scope.named(["docs:read", "docs:use"]))
    assert post("/scoped/mcp/", AccessToken.objects.issue(Principal.objects.get())[1]).status_code == 200
    nobody = post("/scoped/mcp/")
    assert nobody.status_code == 401
    assert nobody.headers["WWW-Authenticate"] == f'Bearer realm="mcp", scope="docs:read docs:use", {metadata}'


def test_anonymous_callers_have_no_scope():
    response = post("/open")
    assert response.status_code == 401
    assert 'scope="docs:use"' in response.headers["WWW-Authenticate"]
    assert "error=" not in response.headers["WWW-Authenticate"]
    assert post("/open", token("docs:use")).status_code == 200


@pytest.mark.parametrize("scope", ["", "a b", 'a"b', "a\\b", "ü", ["a", ""], [7]])
@pytest.mark.parametrize("factory", [MCPView.as_view, MCPConsumer.as_asgi])
def test_a_scope_that_oauth_cannot_carry_is_refused(factory, scope):
    with pytest.raises(ValueError, match="scope"):
        factory(server=server, scope=scope)


def test_audiences_are_those_of_the_endpoint_and_of_the_setting(settings):
    from rest_framework_simplejwt.tokens import AccessToken as JsonWebToken

    view = MCPView.as_view(
        server=server, authentication_classes=["rest_framework_simplejwt.authentication.JWTAuthentication"]
    )
    user = Principal.objects.create(name="x", user=_user()).user

    def status(audience, at="/mcp"):
        shown = JsonWebToken.for_user(user)
        shown["aud"] = audience
        headers = {**listen_headers(mcp_method="tools/list"), "Authorization": f"Bearer {shown}"}
        content_type = headers.pop("Content-Type")
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}})
        return view(RequestFactory().post(at, body, content_type=content_type, headers=headers)).status_code

    assert status("http://testserver/mcp") == 200
    assert status("http://testserver/mcp", at="/mcp?a=b") == 200
    assert status("http://testserver/other") == 401
    assert status("our-api") == 401
    settings.MCP_CHANNELS = {"AUDIENCES": ["our-api", "https://api.example.com"]}
    assert status("our-api") == 200
    assert status("https://api.example.com/") == 200
    assert status("http://testserver/mcp") == 200


def _user():
    from django.contrib.auth import get_user_model

    return get_user_model().objects.create(username="x")
