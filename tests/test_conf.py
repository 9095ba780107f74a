import pytest
from django.core.exceptions import ImproperlyConfigured

from mcp_channels.checks import check_settings
from mcp_channels.conf import DEFAULTS, settings as conf


def ids(messages) -> list[str]:
    return [message.id for message in messages]


def test_defaults_are_in_force_and_valid(settings):
    settings.MCP_CHANNELS = {}
    assert conf.max_streams == 10_000
    assert conf.max_listens_per_principal == 4
    assert conf.max_stream_lifetime == 3600
    assert conf.listen_idle_timeout is None
    assert conf.keep_alive_interval == 15
    assert conf.listen_max_queue == 1000
    assert conf.max_filter_entries == 1000
    assert conf.max_body_size == 4 * 1024 * 1024
    assert conf.allowed_origins == ()
    assert conf.allow_anonymous is False
    assert conf.channel_layer == "default"
    assert conf.send_timeout == 30
    assert check_settings() == []


def test_a_change_of_the_setting_is_seen(settings):
    settings.MCP_CHANNELS = {"MAX_STREAMS": 5}
    assert conf.max_streams == 5
    settings.MCP_CHANNELS = {"MAX_STREAMS": 6}
    assert conf.max_streams == 6


def test_a_setting_that_is_no_dict_is_an_error(settings):
    settings.MCP_CHANNELS = [1]
    [message] = check_settings()
    assert message.id == "mcp_channels.E001"


def test_an_unknown_name_is_an_error_with_the_nearest_known_one(settings):
    settings.MCP_CHANNELS = {"MAX_STREAM": 5}
    [message] = check_settings()
    assert message.id == "mcp_channels.E002"
    assert "'MAX_STREAMS'" in message.hint


@pytest.mark.parametrize(
    "name",
    [
        "MAX_STREAMS",
        "MAX_LISTENS_PER_PRINCIPAL",
        "LISTEN_MAX_QUEUE",
        "MAX_FILTER_ENTRIES",
        "MAX_BODY_SIZE",
        "RESOURCE_PAGE_SIZE",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 1.5, "7", None, True, []])
def test_a_count_that_is_no_positive_integer_is_an_error(settings, name, value):
    settings.MCP_CHANNELS = {name: value}
    [message] = check_settings()
    assert message.id == "mcp_channels.E003"
    assert name in message.msg
    with pytest.raises(ImproperlyConfigured, match=name):
        getattr(conf, name.lower())


@pytest.mark.parametrize("name", ["KEEP_ALIVE_INTERVAL", "SEND_TIMEOUT", "MAX_STREAM_LIFETIME", "LISTEN_IDLE_TIMEOUT"])
@pytest.mark.parametrize("value", [0, -1, "7", True, float("inf"), float("nan")])
def test_a_duration_that_is_no_positive_number_is_an_error(settings, name, value):
    settings.MCP_CHANNELS = {name: value}
    assert ids(check_settings()) == ["mcp_channels.E003"]


@pytest.mark.parametrize("name", ["MAX_STREAM_LIFETIME", "LISTEN_IDLE_TIMEOUT"])
def test_none_means_no_limit(settings, name):
    settings.MCP_CHANNELS = {name: None}
    assert check_settings() == []
    assert getattr(conf, name.lower()) is None


@pytest.mark.parametrize("name", ["ALLOWED_ORIGINS", "AUTHENTICATION_CLASSES"])
def test_a_text_where_a_list_belongs_is_an_error(settings, name):
    settings.MCP_CHANNELS = {name: "https://a.example"}
    assert ids(check_settings()) == ["mcp_channels.E003"]


def test_every_default_has_a_property_with_a_docstring():
    for name in DEFAULTS:
        assert getattr(type(conf), name.lower()).__doc__
