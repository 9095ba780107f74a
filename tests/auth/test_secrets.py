"""
A credential's value appears nowhere: not in logs, not in representations, not in error pages.
"""

import json
import logging
import sys

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.contrib.auth import get_user_model
from django.core import mail
from django.db import OperationalError
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.log import AdminEmailHandler
from django.views.debug import ExceptionReporter
from mcp.server.mcpserver import Context
from rest_framework.authtoken.models import Token
from rest_framework_simplejwt.tokens import AccessToken as JsonWebToken

from example_project.notes.mcp import server
from mcp_channels import MCPConsumer, MCPServer
from mcp_channels.auth.principals import NotAuthenticatedError, authenticate
from mcp_channels.endpoint.views import MCPView, ProtectedResourceView
from mcp_channels.listen.hub import Hub
from mcp_channels.models import AccessToken, Principal, TokenManager
from tests.auth import classes
from tests.endpoint.test_consumer import Connection, body
from tests.spec_requirements import requirement
from tests.support.http import META, listen_headers

WRONG = "mcp_a-secret-that-nobody-may-see-0123456789"

reflecting = MCPServer("reflecting")


@reflecting.tool()
async def reflect(context: Context) -> str:
    """
    All that a tool sees of its request.
    """
    request = context.request_context.request
    return repr([request.headers.items(), dict(request.scope["headers"])])


urlpatterns = [
    path("reflecting", MCPView.as_view(server=reflecting, authentication_classes=classes.EVERY)),
    path("mcp", MCPView.as_view(server=server, authentication_classes=classes.EVERY)),
    path("lost", ProtectedResourceView.as_view(server=server)),
]

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


@pytest.fixture
def shown():
    """
    Credentials of each kind, good and bad, as they stand in the header.
    """
    user = get_user_model().objects.create(username="alice")
    principal = Principal.objects.create(name="alice", user=user)
    return [
        f"Bearer {AccessToken.objects.issue(principal)[1]}",
        f"Bearer {WRONG}",
        f"Bearer {WRONG.removeprefix('mcp_')}",
        f"Bearer {JsonWebToken.for_user(user)}",
        f"Token {Token.objects.create(user=user).key}",
        f"Token {WRONG}",
    ]


@pytest.fixture
def everything_logged(caplog):
    for name in (
        "mcp_channels",
        "mcp_channels.streams",
        "mcp_channels.endpoint",
        "django",
        "django.db.backends",
        "mcp",
    ):
        caplog.set_level(logging.DEBUG, logger=name)
    caplog.set_level(logging.DEBUG)
    return caplog


def post(header, *, client=None, url="/mcp", method="tools/list", **params):
    headers = {
        **listen_headers(mcp_method=method),
        "Authorization": header,
        **({"Mcp-Name": "reflect"} if params else {}),
    }
    content_type = headers.pop("Content-Type")
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}})
    return (client or Client(raise_request_exception=False)).post(
        url, message, content_type=content_type, headers=headers
    )


def everything(record: logging.LogRecord) -> str:
    """
    All that a handler could write of a record.
    """
    return logging.Formatter().format(record) + repr(record.__dict__)


def broken(*args, **kwargs):
    raise OperationalError("the database is gone")


def test_nothing_of_a_credential_is_logged(shown, everything_logged, settings):
    settings.DEBUG = True
    statuses = {header: post(header).status_code for header in shown}
    assert sorted(statuses.values()) == [200, 200, 200, 401, 401, 401]
    # Something is: Django's word of a request that failed, and what the SDK and the database say.
    assert "django.request" in {record.name for record in everything_logged.records}
    for header in shown:
        value = header.split()[1]
        # DRF keeps its tokens as they are, so that the database's own log of statements has them.
        ours = [record for record in everything_logged.records if "django.db" not in record.name]
        assert [record for record in ours if value in everything(record)] == []


def test_no_statement_has_a_token_of_ours(shown, everything_logged, settings):
    settings.DEBUG = True
    everything_logged.clear()
    post(shown[0])
    statements = [record for record in everything_logged.records if record.name == "django.db.backends"]
    assert any("mcp_channels_accesstoken" in everything(record) for record in statements)
    assert not any(shown[0].split()[1] in everything(record) for record in statements)


def test_a_representation_shows_no_credential(shown):
    for header in shown:
        value = header.split()[1]
        request = RequestFactory().post("/mcp", headers={"Authorization": header})
        try:
            caller = authenticate(request, classes.EVERY, allow_anonymous=False)
        except NotAuthenticatedError as error:
            texts = [str(error), repr(error), repr(error.__dict__), repr(error.__cause__)]
        else:
            texts = [str(caller), repr(caller), repr(caller.token), str(caller.token)]
        assert not any(value in text for text in texts)
    token, value = AccessToken.objects.issue(Principal.objects.get())
    assert value not in repr(token.__dict__)


@requirement("auth:no-transit")
def test_a_credential_goes_no_further_than_the_endpoint(shown):
    client = Client(raise_request_exception=False)
    client.cookies["sessionid"] = "a-secret-session"
    for header in (shown[0], shown[3], shown[4]):
        answer = post(header, client=client, url="/reflecting", method="tools/call", name="reflect", arguments={})
        seen = answer.json()["result"]["content"][0]["text"]
        assert "mcp-protocol-version" in seen
        assert header.split()[1] not in seen
        assert "a-secret-session" not in seen


@pytest.mark.parametrize("debug", [True, False])
def test_an_error_is_answered_in_json_and_shows_nothing(shown, settings, monkeypatch, debug):
    settings.DEBUG = debug
    monkeypatch.setattr(TokenManager, "find", broken)
    response = post(shown[0], client=Client())
    assert response.status_code == 503
    assert response.headers["Retry-After"]
    assert response.json()["error"] == {"code": -32603, "message": "The database is not available"}
    monkeypatch.setattr(TokenManager, "find", lambda *args: 1 / 0)
    response = post(shown[0], client=Client())
    assert response.status_code == 500
    assert response.json()["error"] == {"code": -32603, "message": "Internal error"}


def test_a_mail_to_the_admins_shows_nothing(shown, settings, monkeypatch):
    """
    Of all that an error report holds, the variables of each frame are the most talkative.
    """
    settings.ADMINS = [("Admin", "admin@example.com")]
    value = shown[0].split()[1]
    handler = AdminEmailHandler(include_html=True)
    logger = logging.getLogger("mcp_channels.endpoint")
    logger.addHandler(handler)
    try:
        for name in ("filter", "using"):
            monkeypatch.setattr(f"mcp_channels.models.models.QuerySet.{name}", broken)
            assert post(shown[0]).status_code == 503
            monkeypatch.undo()
    finally:
        logger.removeHandler(handler)
    ours = [message for message in mail.outbox if message.alternatives]
    assert len(ours) == 2
    for message in ours:
        assert "the database is gone" in message.body
        # The frames of ours are there.
        assert "prefetch" in message.alternatives[0][0]
    # And Django's own mails of an answer of 500 and above.
    assert len(mail.outbox) == 4
    for message in mail.outbox:
        assert value not in message.body
        assert not any(value in html for html, _ in message.alternatives)


def test_djangos_page_of_an_error_hides_the_header(shown, settings):
    """
    The one view of ours that leads there, where it is mounted wrongly.
    """
    settings.DEBUG = True
    settings.MCP_CHANNELS = {"AUTHORIZATION_SERVERS": ["https://auth.example.com"]}
    for header in shown:
        response = Client(raise_request_exception=False).get("/lost", headers={"Authorization": header})
        assert response.status_code == 500
        page = response.content.decode()
        assert "HTTP_AUTHORIZATION" in page
        assert header.split()[1] not in page


def test_a_report_of_an_error_while_a_token_is_made_hides_it(monkeypatch):
    principal = Principal.objects.create(name="alice")
    made = []
    monkeypatch.setattr("mcp_channels.models.secrets.token_urlsafe", lambda size: made.append("s" * 43) or made[-1])
    monkeypatch.setattr(TokenManager, "create", broken)
    try:
        AccessToken.objects.issue(principal)
    except OperationalError:
        kind, error, traceback = sys.exc_info()
        # This frame knows the value.
        page = ExceptionReporter(RequestFactory().get("/"), kind, error, traceback.tb_next).get_traceback_html()
    assert "issue" in page
    assert made
    assert made[0] not in page


@pytest.mark.django_db(transaction=True)
async def test_a_stream_logs_nothing_of_its_credential(everything_logged):
    principal = await Principal.objects.acreate(name="alice")
    _, value = await sync_to_async(AccessToken.objects.issue)(principal)
    application = MCPConsumer.as_asgi(server=server)
    for shown in (value, WRONG):
        headers = [(name.lower().encode(), text.encode()) for name, text in listen_headers().items()]
        headers += [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {shown}".encode())]
        connection = Connection(application, body(), headers=headers)
        assert (await connection.next())["status"] == (200 if shown == value else 401)
        await connection.leave()
    await Hub.current(get_channel_layer()).close()
    assert "mcp_channels.endpoint" in {record.name for record in everything_logged.records}
    for record in everything_logged.records:
        assert value not in everything(record)
        assert WRONG not in everything(record)
