"""
The API's description, by drf-spectacular, and the API without it.
"""

import json
import os
import subprocess
import sys

import pytest
from django.core.management import call_command

from tests.support.processes import ROOT


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "schema.json"
    call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json", "--file", str(path))
    return json.loads(path.read_text())


def test_every_way_in_is_described(schema):
    described = {
        f"{method.upper()} {path.removeprefix('/api/mcp')}"
        for path, methods in schema["paths"].items()
        for method in methods
    }
    whole = {
        *(f"{method} /{kind}/" for kind in ("principals", "scopes") for method in ("GET", "POST")),
        *(
            f"{method} /{kind}/{{id}}/"
            for kind in ("principals", "scopes")
            for method in ("GET", "PUT", "PATCH", "DELETE")
        ),
    }
    assert described == whole | {
        "GET /tokens/",
        "POST /tokens/",
        "GET /tokens/{id}/",
        "DELETE /tokens/{id}/",
        "POST /tokens/{id}/revoke/",
        "GET /streams/",
        "GET /streams/{id}/",
        "DELETE /streams/{id}/",
        "POST /streams/{id}/disconnect/",
        "POST /streams/disconnect/",
        "POST /notify/",
    }


def test_the_value_is_in_the_answer_to_the_creation_alone(schema):
    holders = [name for name, item in schema["components"]["schemas"].items() if "value" in item["properties"]]
    assert holders == ["NewToken"]
    users = [
        (path, method, status)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        for status, answer in operation["responses"].items()
        if "schemas/NewToken" in json.dumps(answer)
    ]
    assert users == [("/api/mcp/tokens/", "post", "201")]


@pytest.mark.parametrize(
    ("path", "method", "body", "status", "answer"),
    [
        ("/tokens/{id}/revoke/", "post", None, "200", "Token"),
        ("/streams/{id}/disconnect/", "post", None, "202", "Disconnected"),
        ("/streams/disconnect/", "post", "Ids", "202", "Disconnected"),
        ("/streams/{id}/", "delete", None, "204", None),
        ("/notify/", "post", "Notify", "202", "Accepted"),
    ],
)
def test_actions_are_described_as_they_answer(schema, path, method, body, status, answer):
    operation = schema["paths"][f"/api/mcp{path}"][method]
    assert list(operation["responses"]) == [status]
    shown = operation["responses"][status].get("content")
    if answer is None:
        assert shown is None
    else:
        assert shown["application/json"]["schema"]["$ref"].endswith(f"/{answer}")
    asked = operation.get("requestBody")
    if body is None:
        assert asked is None
    else:
        assert list(asked["content"]) == ["application/json"]
        assert asked["content"]["application/json"]["schema"]["$ref"].endswith(f"/{body}")


def test_filters_and_our_tokens_are_described(schema):
    operation = schema["paths"]["/api/mcp/tokens/"]["get"]
    types = {item["name"]: item["schema"]["type"] for item in operation["parameters"]}
    assert types == {
        "principal": "integer",
        "prefix": "string",
        "is_revoked": "boolean",
        "search": "string",
        "ordering": "string",
        "page": "integer",
        "page_size": "integer",
    }
    assert schema["components"]["securitySchemes"]["mcpBearer"] == {"type": "http", "scheme": "bearer"}
    assert {"mcpBearer": []} in operation["security"]


def test_without_drf_spectacular_the_api_works():
    code = """
import sys
sys.modules["drf_spectacular"] = None
import django
django.setup()
from django.core.management import call_command
from django.test.utils import setup_test_environment
from rest_framework.test import APIClient
from mcp_channels.models import AccessToken, Principal
from django.contrib.auth import get_user_model
setup_test_environment()
call_command("migrate", verbosity=0)
user = get_user_model().objects.create(username="root", is_superuser=True)
_, value = AccessToken.objects.issue(Principal.objects.create(name="root", user=user))
client = APIClient(headers={"Authorization": f"Bearer {value}"})
assert client.get("/api/mcp/principals/").json()["count"] == 1
assert client.post("/api/mcp/scopes/", {"name": "a"}, format="json").status_code == 201
assert client.post("/api/mcp/streams/disconnect/", {"ids": [1]}, format="json").status_code == 202
assert client.options("/api/mcp/tokens/").status_code == 200
assert client.post("/api/mcp/notify/", {"tools": True}, format="json").status_code == 202
"""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.rest.settings_bare"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
