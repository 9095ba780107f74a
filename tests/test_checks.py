"""
The system checks, each where it speaks and where it is silent.
"""

import json
import os

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from mcp_types import ToolAnnotations

from mcp_channels import MCPServer
from mcp_channels.auth.authentication import BearerTokenAuthentication
from mcp_channels.checks import (
    PROCESS_COUNTS,
    check_authentication_classes,
    check_database,
    check_endpoints,
    check_layer,
    check_settings,
)
from mcp_channels.conf import DEFAULTS, settings as conf
from mcp_channels.endpoint.endpoint import ENDPOINTS, Endpoint

MEMORY = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
CORE = "channels_redis.core.RedisChannelLayer"
PUBSUB = "channels_redis.pubsub.RedisPubSubChannelLayer"


def ids(messages) -> list[str]:
    return [message.id for message in messages]


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """
    An environment that says nothing of processes.
    """
    for name in PROCESS_COUNTS:
        monkeypatch.delenv(name, raising=False)


# Settings


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("value", [object(), {"a": 1}, 1j])
def test_no_setting_takes_just_anything(settings, name, value):
    settings.MCP_CHANNELS = {name: value}
    [message] = check_settings()
    assert message.id == "mcp_channels.E003"
    assert name in message.msg
    with pytest.raises(ImproperlyConfigured, match=name):
        getattr(conf, name.lower())


@pytest.mark.parametrize("value", ["true", "False", "", 0, 1, None])
def test_a_flag_that_is_no_boolean_is_an_error(settings, value):
    settings.MCP_CHANNELS = {"ALLOW_ANONYMOUS": value}
    assert ids(check_settings()) == ["mcp_channels.E003"]
    settings.MCP_CHANNELS = {"ALLOW_ANONYMOUS": True}
    assert check_settings() == []


@pytest.mark.parametrize("value", ["", None, 7, b"default"])
def test_a_layers_name_that_is_no_text_is_an_error(settings, value):
    settings.MCP_CHANNELS = {"CHANNEL_LAYER": value}
    assert ids(check_settings()) == ["mcp_channels.E003"]
    assert check_layer() == []


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "*",
        "app.example.com",
        "https://",
        "https://app.example.com/",
        "https://app.example.com/path",
        "https://*.example.com",
        "https://App.example.com",
        "https://user@app.example.com",
        "https://a.example https://b.example",
        None,
        7,
    ],
)
def test_what_no_browser_sends_as_origin_is_an_error(settings, origin):
    settings.MCP_CHANNELS = {"ALLOWED_ORIGINS": ["https://good.example", origin]}
    [message] = check_settings()
    assert message.id == "mcp_channels.E003"
    assert repr(origin) in message.msg


def test_origins_are_taken(settings):
    origins = ["https://app.example.com", "http://[::1]:8000", "http://localhost:6274", "vscode-webview://abc", "null"]
    settings.MCP_CHANNELS = {"ALLOWED_ORIGINS": origins}
    assert check_settings() == []
    assert conf.allowed_origins == tuple(origins)


def test_a_long_silence_is_a_warning(settings):
    settings.MCP_CHANNELS = {"KEEP_ALIVE_INTERVAL": 60}
    assert ids(check_settings()) == ["mcp_channels.W005"]
    settings.MCP_CHANNELS = {"KEEP_ALIVE_INTERVAL": 59.9}
    assert check_settings() == []
    settings.MCP_CHANNELS = {"KEEP_ALIVE_INTERVAL": 0}
    assert ids(check_settings()) == ["mcp_channels.E003"]


@pytest.mark.parametrize(
    "item",
    [
        "mcp_channels.auth.authentication.Nothing",
        "nowhere.Authentication",
        "BearerTokenAuthentication",
        "mcp_channels.models.Principal",
        "mcp_channels.models.digest",
        BearerTokenAuthentication(),
        object,
        None,
        7,
    ],
)
def test_what_can_not_authenticate_is_an_error(settings, item):
    settings.MCP_CHANNELS = {"AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication", item]}
    [message] = check_authentication_classes()
    assert message.id == "mcp_channels.E004"
    assert repr(item) in message.msg


def test_authentication_classes_are_taken_as_such_and_by_path(settings):
    assert check_authentication_classes() == []
    settings.MCP_CHANNELS = {
        "AUTHENTICATION_CLASSES": [BearerTokenAuthentication, "rest_framework.authentication.SessionAuthentication"]
    }
    assert check_authentication_classes() == []


# The layer


@pytest.mark.parametrize("layers", [None, {}, {"other": MEMORY["default"]}])
def test_a_missing_layer_is_an_error(settings, layers):
    settings.CHANNEL_LAYERS = layers
    assert ids(check_layer()) == ["mcp_channels.E010"]


@pytest.mark.parametrize(
    "layer",
    [
        {},
        {"BACKEND": "nowhere.Layer"},
        {"BACKEND": "channels.layers.Nothing"},
        {"BACKEND": CORE, "CONFIG": {"hosts": 7}},
        {"BACKEND": "channels.layers.InMemoryChannelLayer", "CONFIG": {"hosts": ["redis://:secret@db"]}},
    ],
)
def test_a_layer_that_can_not_be_made_is_an_error(settings, layer):
    settings.CHANNEL_LAYERS = {"default": layer}
    [message] = check_layer()
    assert message.id == "mcp_channels.E013"
    assert "secret" not in message.msg


def test_a_layer_in_memory_outside_debug_is_a_warning(settings):
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "tests.test_checks.Subclass"}}
    settings.DEBUG = False
    assert ids(check_layer()) == ["mcp_channels.W011"]
    settings.DEBUG = True
    assert check_layer() == []
    settings.DEBUG = False
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": PUBSUB}}
    assert check_layer() == []


def __getattr__(name):
    # A layer of another name; made late, so that pytest doesn't take it for a test.
    if name == "Subclass":
        from channels.layers import InMemoryChannelLayer

        return type("Subclass", (InMemoryChannelLayer,), {})
    raise AttributeError(name)


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize("name", PROCESS_COUNTS)
def test_a_layer_in_memory_and_several_processes_is_a_warning(settings, monkeypatch, name, debug):
    settings.CHANNEL_LAYERS = MEMORY
    settings.DEBUG = debug
    monkeypatch.setenv(name, "2")
    [message] = check_layer()
    assert message.id == "mcp_channels.W012"
    assert f"{name}=2" in message.msg
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": PUBSUB}}
    assert check_layer() == []


@pytest.mark.parametrize("value", ["1", "0", "", "many"])
def test_one_process_is_none_too_many(settings, monkeypatch, value):
    settings.CHANNEL_LAYERS = MEMORY
    settings.DEBUG = True
    monkeypatch.setenv("WEB_CONCURRENCY", value)
    assert check_layer() == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ["mcp_channels.W014"]),
        ({"capacity": 999}, ["mcp_channels.W014"]),
        ({"capacity": 1000}, []),
        ({"capacity": 5000, "channel_capacity": {"specific.*": 10}}, ["mcp_channels.W014"]),
        ({"capacity": 100, "channel_capacity": {"specific.*": 5000}}, ["mcp_channels.W014"]),
        ({"capacity": 5000, "channel_capacity": {"http.*": 10}}, []),
    ],
)
def test_a_layer_whose_queues_are_short_is_a_warning(settings, config, expected):
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": CORE, "CONFIG": config}}
    assert ids(check_layer()) == expected


def test_another_layers_queues_are_its_own_business(settings):
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": CORE}, "mcp": {"BACKEND": PUBSUB}}
    settings.MCP_CHANNELS = {"CHANNEL_LAYER": "mcp"}
    assert check_layer() == []


# Endpoints


def said_of(name) -> list[str]:
    """
    The ids of what is said of an endpoint; others may be alive in this process.
    """
    return [message.id for message in check_endpoints() if f"{name!r}" in message.msg]


@pytest.mark.parametrize("anonymous", [True, False])
def test_an_endpoint_without_authentication_outside_debug_is_a_warning(settings, anonymous):
    settings.DEBUG = False
    bare = Endpoint(MCPServer(f"bare {anonymous}"), authentication_classes=[], allow_anonymous=anonymous)
    guarded = Endpoint(MCPServer(f"guarded {anonymous}"), allow_anonymous=anonymous)
    assert said_of(bare.name) == ["mcp_channels.W020"]
    assert said_of(guarded.name) == []
    settings.MCP_CHANNELS = {"AUTHENTICATION_CLASSES": []}
    assert said_of(guarded.name) == ["mcp_channels.W020"]
    settings.DEBUG = True
    assert said_of(bare.name) == said_of(guarded.name) == []


def test_an_endpoint_that_is_gone_is_not_looked_at(settings):
    settings.DEBUG = False
    endpoint = Endpoint(MCPServer("gone"), authentication_classes=[])
    assert endpoint in ENDPOINTS
    name = endpoint.name
    ENDPOINTS.discard(endpoint)
    assert said_of(name) == []


def test_an_endpoints_own_classes_are_looked_at(settings):
    settings.DEBUG = True
    endpoint = Endpoint(MCPServer("odd"), authentication_classes=["nowhere.Authentication"])
    assert said_of(endpoint.name) == ["mcp_channels.E004"]


def test_anonymous_callers_who_may_change_something_are_a_warning(settings):
    settings.DEBUG = False
    server = MCPServer("open to all")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def look() -> str:
        """Look."""
        return ""

    @server.tool(scope="write")
    def write() -> str:
        """Write."""
        return ""

    endpoint = Endpoint(server, allow_anonymous=True)
    closed = Endpoint(server, name="closed", allow_anonymous=False)
    assert said_of(endpoint.name) == []

    @server.tool()
    def wipe() -> str:
        """Wipe."""
        return ""

    assert said_of(endpoint.name) == ["mcp_channels.W021"]
    assert any("wipe" in message.msg for message in check_endpoints())
    assert said_of(closed.name) == []
    settings.DEBUG = True
    assert said_of(endpoint.name) == []


def test_an_endpoint_whose_settings_are_wrong_is_left_to_their_check(settings):
    settings.DEBUG = False
    endpoint = Endpoint(MCPServer("unsettled"))
    settings.MCP_CHANNELS = {"AUTHENTICATION_CLASSES": 7, "ALLOW_ANONYMOUS": "no"}
    assert said_of(endpoint.name) == []
    assert ids(check_settings()) == ["mcp_channels.E003", "mcp_channels.E003"]


@pytest.mark.parametrize("debug", ["", "1"])
def test_the_command_finds_what_the_asgi_module_makes(make_project, debug):
    project = make_project(MCP_CHANNELS_JSON=json.dumps({"AUTHENTICATION_CLASSES": []}), DEBUG=debug)
    said = project.manage("check").stderr
    for name in ("notes", "open notes"):
        assert (f"(mcp_channels.W020) The endpoint {name!r}" in said) == (not debug)


def test_without_an_asgi_module_the_setting_is_looked_at(make_project, tmp_path):
    # Whatever goes wrong in the module is not the check's.
    (tmp_path / "broken_settings.py").write_text(
        "from example_project.settings import *\n"
        'ASGI_APPLICATION = "broken_asgi.application"\n'
        'MCP_CHANNELS = {"AUTHENTICATION_CLASSES": ()}\n'
    )
    (tmp_path / "broken_asgi.py").write_text("raise RuntimeError('broken on purpose')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    project = make_project(PYTHONPATH=path)
    project.env["DJANGO_SETTINGS_MODULE"] = "broken_settings"
    done = project.manage("check")
    assert "(mcp_channels.W020) MCP_CHANNELS['AUTHENTICATION_CLASSES']" in done.stderr
    assert "broken on purpose" not in done.stderr


def test_the_example_project_is_well_set_up(make_project, redis):
    said = make_project(REDIS_URL=redis.url).manage("check")
    assert "no issues" in said.stdout + said.stderr


# The database


@pytest.fixture
def on_sqlite(monkeypatch, tmp_path):
    """
    A function that sets the options of the default database, as if it were a file.
    """
    connection = connections["default"]

    def use(options):
        monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "db.sqlite3"))
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    return use


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["mcp_channels.W030", "mcp_channels.W031"]),
        ({"timeout": 4, "transaction_mode": "IMMEDIATE"}, ["mcp_channels.W030"]),
        ({"timeout": None, "transaction_mode": "immediate"}, ["mcp_channels.W030"]),
        ({"timeout": 20}, ["mcp_channels.W031"]),
        ({"timeout": 20, "transaction_mode": None}, ["mcp_channels.W031"]),
        ({"timeout": 20, "transaction_mode": "DEFERRED"}, ["mcp_channels.W031"]),
        ({"timeout": 5, "transaction_mode": "IMMEDIATE"}, []),
        ({"timeout": 20.5, "transaction_mode": "exclusive"}, []),
    ],
)
def test_sqlite_that_fails_where_it_could_wait_is_a_warning(on_sqlite, options, expected):
    on_sqlite(options)
    assert ids(check_database()) == expected


def test_a_database_in_memory_has_no_other_writers():
    assert check_database() == []


class Elsewhere:
    """
    A router that has everything on another database.
    """

    def db_for_write(self, model, **hints):
        return "other"


def test_the_database_that_is_looked_at_is_the_models(settings, on_sqlite):
    on_sqlite({})
    settings.DATABASE_ROUTERS = ["tests.test_checks.Elsewhere"]
    assert check_database() == []


def test_other_databases_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    assert check_database() == []


# All of them


def test_all_checks_are_registered(settings, on_sqlite, monkeypatch):
    settings.MCP_CHANNELS = {"KEEP_ALIVE_INTERVAL": 90, "AUTHENTICATION_CLASSES": ["nowhere.X"]}
    settings.CHANNEL_LAYERS = MEMORY
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    on_sqlite({"timeout": 20})
    found = {message.id for message in run_checks(tags=["mcp_channels"])}
    assert {"mcp_channels.W005", "mcp_channels.E004", "mcp_channels.W012", "mcp_channels.W031"} <= found
