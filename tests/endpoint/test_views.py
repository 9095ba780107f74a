"""
The endpoint as a Django view.
"""

import json

import pytest
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from example_project.notes.mcp import open_server, server
from example_project.notes.models import Note
from mcp_channels.endpoint.views import MCPView
from mcp_channels.models import AccessToken, Principal, Scope
from tests.support.http import META, listen_body, listen_headers

urlpatterns = [
    path("mcp", MCPView.as_view(server=server)),
    path("open", MCPView.as_view(server=open_server, allow_anonymous=True)),
]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


@pytest.fixture
def token():
    principal = Principal.objects.create(name="alice")
    principal.scopes.set(Scope.named(["notes:read", "notes:write"]))
    return AccessToken.objects.issue(principal)[1]


def post(url, method, params=None, *, token=None, body=None, client=None, **changes):
    params = {**(params or {}), "_meta": META}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = listen_headers(mcp_method=method, **changes)
    name = params.get("name") or params.get("uri")
    if name:
        headers["Mcp-Name"] = name
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    content_type = headers.pop("Content-Type")
    return (client or Client()).post(
        url, json.dumps(message) if body is None else body, content_type=content_type, headers=headers
    )


def test_tools_and_resources_are_served(token):
    note = Note.objects.create(title="x", shared=True)
    tools = post("/mcp", "tools/list", token=token).json()["result"]["tools"]
    assert "create_note" in [tool["name"] for tool in tools]
    read = post("/mcp", "resources/read", {"uri": f"note://{note.pk}"}, token=token).json()
    assert json.loads(read["result"]["contents"][0]["text"])["title"] == "x"
    called = post("/mcp", "tools/call", {"name": "create_note", "arguments": {"title": "y"}}, token=token).json()
    assert not called["result"]["isError"]
    assert Note.objects.filter(title="y").exists()


def test_a_listen_is_told_that_it_needs_a_stream(token):
    response = post("/mcp", "subscriptions/listen", token=token, body=listen_body({"toolsListChanged": True}))
    assert response.status_code == 404
    assert response.json()["error"]["code"] == -32601
    assert "streaming transport" in response.json()["error"]["message"]


def test_no_notification_is_promised(token):
    capabilities = post("/mcp", "server/discover", token=token).json()["result"]["capabilities"]
    assert not capabilities["tools"].get("listChanged")
    assert not capabilities["prompts"].get("listChanged")
    assert not capabilities["resources"].get("listChanged")
    assert not capabilities["resources"].get("subscribe")


def test_who_may_not_call_is_refused():
    response = post("/mcp", "tools/list")
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert post("/open", "tools/list").status_code == 200


def test_origin_and_host_are_checked(token):
    assert post("/mcp", "tools/list", token=token, origin="https://evil.test").status_code == 403
    with override_settings(ALLOWED_HOSTS=["example.com"]):
        assert post("/mcp", "tools/list", token=token).status_code == 400


def test_other_methods_are_405():
    response = Client().get("/mcp")
    assert response.status_code == 405
    assert response.headers["Allow"] == "POST"


def test_bad_input_is_an_error_and_no_trace(token):
    for body in (b"{", b"[]", b"\xff", b"7"):
        response = post("/mcp", "tools/list", token=token, body=body)
        assert response.status_code == 400, body
        assert response.json()["error"]["code"] in (-32700, -32600)


def test_a_body_over_the_limit_is_413(token, settings):
    settings.MCP_CHANNELS = {"MAX_BODY_SIZE": 100}
    assert post("/mcp", "tools/list", token=token, body=b"x" * 101).status_code == 413


def test_no_csrf_token_is_needed_with_a_bearer_token(token):
    assert post("/mcp", "tools/list", token=token, client=Client(enforce_csrf_checks=True)).status_code == 200


def test_a_session_with_a_csrf_token_may_call(client, django_user_model):
    user = django_user_model.objects.create_user("bob", password="x")
    view = MCPView.as_view(
        server=server, authentication_classes=["rest_framework.authentication.SessionAuthentication"]
    )
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}})
    token = "x" * 32
    for headers, status in (({}, 403), ({"X-CSRFToken": token}, 200)):
        headers = {**listen_headers(mcp_method="tools/list"), **headers, "Cookie": f"csrftoken={token}"}
        content_type = headers.pop("Content-Type")
        request = RequestFactory(enforce_csrf_checks=True).post(
            "/mcp", body, content_type=content_type, headers=headers
        )
        request.user = user
        assert view(request).status_code == status


def test_a_view_without_a_server_is_refused_when_it_is_routed():
    with pytest.raises(TypeError, match="MCPServer"):
        MCPView.as_view()


def test_a_views_attributes_may_stand_on_a_class_of_ones_own(token):
    class Own(MCPView):
        server = server
        allow_anonymous = True

    headers = listen_headers(mcp_method="tools/list")
    content_type = headers.pop("Content-Type")
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}})
    request = RequestFactory().post("/mcp", body, content_type=content_type, headers=headers)
    assert Own.as_view()(request).status_code == 200
    assert Own.as_view(allow_anonymous=False)(request).status_code == 401
