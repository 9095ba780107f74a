"""
What credentials of other packages say of themselves.
"""

from datetime import UTC, datetime
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from django.test import RequestFactory

from mcp_channels.auth import credentials

MOMENT = datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC)
ENDPOINT = "https://mcp.example.com/mcp"


@pytest.mark.parametrize(
    "credential",
    [
        {"exp": 2_000_000_000},
        {"exp": 2_000_000_000.0},
        SimpleNamespace(expires=MOMENT),
        SimpleNamespace(expires_at=MOMENT),
        SimpleNamespace(expiry=MOMENT),
    ],
)
def test_an_expiry_is_known(credential):
    assert credentials.expires_at(credential) == MOMENT


@pytest.mark.parametrize("exp", [None, "soon", True, float("inf"), float("nan"), 1e30, -1e30, 10**400, [], {"a": 1}])
def test_an_expiry_that_is_none_is_none(exp):
    assert credentials.expires_at({"exp": exp}) is None


def test_an_expiry_without_a_time_zone_is_in_the_projects(settings):
    settings.TIME_ZONE = "Europe/Paris"
    naive = SimpleNamespace(expires=datetime(2033, 5, 18, 5, 33, 20))
    assert credentials.expires_at(naive) == datetime(2033, 5, 18, 5, 33, 20, tzinfo=ZoneInfo("Europe/Paris"))


def test_a_request_without_a_session_has_no_end():
    assert credentials.session_ends_at(RequestFactory().post("/mcp")) is None


@pytest.mark.parametrize(
    ("credential", "scopes"),
    [
        (None, None),
        ("opaque", None),
        (object(), None),
        ({}, None),
        ({"scope": None}, None),
        (SimpleNamespace(scope="a b"), {"a", "b"}),
        (SimpleNamespace(scope=None), None),
        ({"scope": "a\tb\n"}, {"a", "b"}),
        ({"scope": None, "scp": "b"}, {"b"}),
        ({"scp": [["a"], "b", None]}, {"b"}),
        ({"scope": True}, set()),
    ],
)
def test_scopes(credential, scopes):
    assert credentials.scopes(credential) == scopes


@pytest.mark.parametrize(
    ("credential", "audiences"),
    [
        (None, None),
        ("opaque", None),
        ({}, None),
        ({"aud": None}, None),
        ({"aud": "a"}, ("a",)),
        ({"aud": ["a", 1, "b"]}, ("a", "b")),
        ({"aud": []}, ()),
        ({"aud": {}}, ()),
        (SimpleNamespace(resource=["a"]), ("a",)),
        # A row that names no resource is good for all, and an attribute of another type is something else.
        (SimpleNamespace(resource=[]), None),
        (SimpleNamespace(resource="a"), None),
        (SimpleNamespace(resource=SimpleNamespace(pk=1)), None),
    ],
)
def test_audiences(credential, audiences):
    assert credentials.audiences(credential) == audiences


@pytest.mark.parametrize(
    ("audience", "is_it"),
    [
        (ENDPOINT, True),
        (f"{ENDPOINT}/", True),
        ("https://mcp.example.com:443/mcp", True),
        ("HTTPS://MCP.Example.com/mcp", True),
        ("urn:example:mcp", True),
        ("urn:example:mcp/", False),
        ("URN:example:mcp", False),
        ("https://mcp.example.com/MCP", False),
        ("https://mcp.example.com:80/mcp", False),
        ("http://mcp.example.com/mcp", False),
        ("https://mcp.example.com/mcp?a=b", False),
        ("https://mcp.example.com/mcp#a", False),
        ("https://mcp.example.com/mcp/..", False),
        ("https://mcp.example.com", False),
        ("https://mcp.example.com.evil.test/mcp", False),
        ("https://user@mcp.example.com/mcp", False),
        ("https://[/mcp", False),
        ("*", False),
        ("", False),
    ],
)
def test_a_credential_is_for_those_whom_it_names(audience, is_it):
    accepted = [ENDPOINT, "urn:example:mcp"]
    assert credentials.is_for({"aud": audience}, accepted) is is_it
    assert credentials.is_for({"aud": ["another", audience]}, accepted) is is_it
    assert credentials.is_for({}, accepted)
