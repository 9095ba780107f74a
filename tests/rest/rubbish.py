"""
Requests that make no sense, for every way in.
"""

import json
from collections.abc import Iterator
from typing import Any

DEEP = 200_000
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    2**31,
    2**63,
    2**64,
    10**4000,
    "",
    " ",
    "\0",
    "a\0b",
    "\ud800",
    "a\udfffb",
    "😀" * 300,
    "x" * 100_000,
    "1",
    "true",
    "0001-01-01T00:00:00",
    "9999-12-31T23:59:59.999999-14:00",
    "2030-02-31",
    [],
    [[]],
    [None],
    [1],
    [2**70],
    ["\0"],
    ["\ud800"],
    ["x"] * 2000,
    [{"a": 1}],
    {},
    {"a": {"b": []}},
    {"\ud800": "\0"},
]
# What Python's json would not write, or not so.
BODIES: list[bytes] = [
    b"",
    b" ",
    b"{",
    b"nothing",
    b"\xff\xfe",
    b'"\xed\xa0\x80"',
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b'{"name": NaN, "principal": Infinity, "ids": [-Infinity]}',
    b'{"name": 1e400, "principal": 1e400, "ids": [1e400], "max_streams": 1e400, "uris": [1e400]}',
    b'{"principal": ' + b"9" * 10_000 + b"}",
    b"null",
    b"true",
    b"7",
    b'"text"',
    b"[]",
    b'[{"name": "x"}]',
]
WAYS: dict[str, tuple[str, list[str]]] = {
    "principals/": ("POST", ["name", "user", "is_active", "scopes", "max_streams", "notes", "is_anonymous", "id"]),
    "principals/{principal}/": ("PATCH", ["name", "user", "is_active", "scopes", "max_streams", "notes"]),
    "scopes/": ("POST", ["name", "description"]),
    "scopes/{scope}/": ("PATCH", ["name", "description"]),
    "tokens/": ("POST", ["principal", "label", "scopes", "expires_at", "value"]),
    "tokens/{token}/revoke/": ("POST", ["revoked_at"]),
    "streams/disconnect/": ("POST", ["ids"]),
    "streams/{stream}/disconnect/": ("POST", ["reason"]),
    "notify/": ("POST", ["tools", "prompts", "resources", "uris"]),
}
SENSIBLE: dict[str, Any] = {"principals/": {"name": "rubbish"}, "scopes/": {"name": "rubbish"}}
KEYS = ["0", "-1", "x", "%00", "%ED%A0%80", "9" * 20, "9" * 6000, "1.5", "１", "None", "..", "a%2Fb"]
QUERIES = ["", "\0", "%00", "%ED%A0%80", "%FF", "x", "-1", "0", "1e400", "9" * 30, "9" * 6000, "a," * 500, "a+" * 500]
PARAMETERS = {
    "principals/": ["name", "is_active", "is_anonymous", "scope", "is_service", "is_listening"],
    "scopes/": ["name"],
    "tokens/": ["principal", "prefix", "is_revoked"],
    "streams/": ["principal", "token", "endpoint", "address", "host"],
}
TYPES = [
    "application/json; charset=utf-16",
    "application/json; charset=none",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "multipart/form-data",
    "text/plain",
    "nothing",
    "",
]

Request = tuple[str, str, bytes, str]


def requests(keys: dict[str, Any]) -> Iterator[Request]:
    """
    Method, path, body, type. ``keys`` are those of existing rows.
    """
    for path, (method, fields) in WAYS.items():
        url = f"/api/mcp/{path.format(**keys)}"
        sensible = {"principal": keys["principal"]} if path == "tokens/" else SENSIBLE.get(path, {})
        bodies = [*BODIES, *(_dumps({**sensible, field: value}) for field in fields for value in VALUES)]
        yield from ((method, url, body, "application/json") for body in bodies)
        yield from ((method, url, b'{"name": "\xc3\xbc", "tools": true}', content_type) for content_type in TYPES)
    for path, parameters in PARAMETERS.items():
        names = [*parameters, "search", "ordering", "page", "page_size", "format", "unknown"]
        queries = [f"{name}={value}" for name in names for value in QUERIES]
        yield from (("GET", f"/api/mcp/{path}?{query}", b"", "") for query in queries)
        yield "GET", f"/api/mcp/{path}?name=%E4&search=%E4", b"", "text/plain; charset=utf-16"
        for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
            yield from ((method, f"/api/mcp/{path}{key}/", b"{}", "application/json") for key in KEYS)
    for key in KEYS:
        yield "POST", f"/api/mcp/tokens/{key}/revoke/", b"", ""
        yield "POST", f"/api/mcp/streams/{key}/disconnect/", b"", ""


def offences() -> list[str]:
    """
    The requests, of a superuser, that are answered as the server's fault; and how many there were.
    """
    from django.contrib.auth import get_user_model
    from rest_framework.test import APIClient

    from mcp_channels.models import AccessToken, LiveStream, Node, Principal, Scope

    user = get_user_model().objects.create(username="rubbish", is_superuser=True)
    _, value = AccessToken.objects.issue(Principal.objects.create(name="caller", user=user))
    principal = Principal.objects.create(name="target")
    node = Node.objects.create(id="a" * 32, host="web1", pid=17)
    keys = {
        "principal": principal.pk,
        "scope": Scope.objects.create(name="a").pk,
        "token": AccessToken.objects.issue(principal)[0].pk,
        "stream": LiveStream.objects.create(principal=principal, node=node, endpoint="notes").pk,
    }
    client = APIClient(headers={"Authorization": f"Bearer {value}", "Host": "localhost"})
    client.raise_request_exception = False
    found, count = [], 0
    for method, url, body, content_type in requests(keys):
        Node.objects.update(seen_at=_now())
        answer = client.generic(method, url, body, content_type=content_type)
        count += 1
        if answer.status_code >= 500:
            found.append(f"{answer.status_code} {method} {url[:200]} {body[:200]!r} {content_type}")
    found.append(str(count))
    return found


def _dumps(value: Any) -> bytes:
    # A lone surrogate is written as \udXXX.
    return json.dumps(value).encode()


def _now() -> Any:
    from django.db.models.functions import Now

    return Now()
