"""
``WWW-Authenticate``, and the URLs that it names.
"""

import pytest
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.test import RequestFactory
from mcp.client.auth.utils import extract_field_from_www_auth

from mcp_channels.auth.challenges import bearer_challenge, metadata_url, resource_url


class Shown:
    """
    A response, as the official client looks at one.
    """

    def __init__(self, challenge: str) -> None:
        self.headers = {"WWW-Authenticate": challenge}

    def __getitem__(self, name: str) -> str | None:
        return extract_field_from_www_auth(self, name)


def test_a_challenge_says_what_it_is_given():
    # RFC 6750 §3: at least one parameter follows the scheme.
    assert bearer_challenge() == 'Bearer realm="mcp"'
    challenge = bearer_challenge(error="insufficient_scope", scopes=["a", "b"], resource_metadata="https://x.example/m")
    assert challenge == (
        'Bearer realm="mcp", error="insufficient_scope", scope="a b", resource_metadata="https://x.example/m"'
    )
    assert Shown(challenge)["scope"] == "a b"
    assert Shown(challenge)["resource_metadata"] == "https://x.example/m"


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\r\nSet-Cookie: x", "ü", 'a", error="x'])
def test_a_value_stays_in_its_quotes(text):
    challenge = bearer_challenge(resource_metadata=text)
    assert challenge.isascii()
    assert challenge.isprintable()
    before, quoted = challenge.split("resource_metadata=")
    assert before == 'Bearer realm="mcp", '
    inner = quoted[1:-1].replace("\\\\", "").replace('\\"', "")
    assert quoted[0] == quoted[-1] == '"'
    assert '"' not in inner
    assert "\\" not in inner


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/mcp", "http://testserver/.well-known/oauth-protected-resource/mcp"),
        ("/a/b/mcp/", "http://testserver/.well-known/oauth-protected-resource/a/b/mcp/"),
        ("/", "http://testserver/.well-known/oauth-protected-resource"),
        ('/m"p', "http://testserver/.well-known/oauth-protected-resource/m%22p"),
        ("//evil.test/mcp", "http://testserver/.well-known/oauth-protected-resource//evil.test/mcp"),
    ],
)
def test_the_metadata_are_before_the_path(path, url):
    request = RequestFactory().post("/")
    request.path = request.path_info = path
    assert metadata_url(request) == url


def test_below_a_prefix_the_metadata_are_below_it_too():
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/mcp",
        "root_path": "/api",
        "query_string": b"a=b",
        "headers": [(b"host", b"testserver:8000")],
    }
    request = ASGIRequest(scope, None)
    assert resource_url(request) == "http://testserver:8000/api/mcp"
    assert metadata_url(request) == "http://testserver:8000/api/.well-known/oauth-protected-resource/mcp"
    request = RequestFactory().post("/mcp", SCRIPT_NAME="/api")
    assert metadata_url(request) == "http://testserver/api/.well-known/oauth-protected-resource/mcp"


def test_the_scheme_and_the_host_are_djangos_to_tell(settings):
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    request = RequestFactory().post("/mcp", HTTP_X_FORWARDED_PROTO="https", HTTP_HOST="evil.test")
    with pytest.raises(DisallowedHost):
        resource_url(request)
    settings.ALLOWED_HOSTS = ["evil.test"]
    assert resource_url(request) == "https://evil.test/mcp"
