"""
The API in a browser.
"""

import pytest
from rest_framework.test import APIClient

from mcp_channels.models import AccessToken, Principal, Scope

pytestmark = pytest.mark.django_db


def test_each_view_can_be_browsed(make_user, open_stream):
    client = APIClient(headers={"Accept": "text/html"})
    client.force_login(make_user("root", is_superuser=True))
    principal = Principal.objects.create(name="service")
    token, value = AccessToken.objects.issue(principal)
    keys = {
        "principals": principal.pk,
        "scopes": Scope.objects.create(name="a").pk,
        "tokens": token.pk,
        "streams": open_stream(principal).pk,
    }
    for name, key in keys.items():
        for path in (f"{name}/", f"{name}/{key}/"):
            answer = client.get(f"/api/mcp/{path}")
            assert answer.status_code == 200
            assert answer["Content-Type"].startswith("text/html")
            assert value not in answer.content.decode()
    for path in ("notify/", "streams/disconnect/"):
        answer = client.get(f"/api/mcp/{path}")
        assert answer.status_code == 405
        assert answer["Content-Type"].startswith("text/html")
