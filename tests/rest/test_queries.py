"""
How many queries a list takes: as many for thirty rows as for one.
"""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from mcp_channels.models import AccessToken, Principal, Scope

pytestmark = pytest.mark.django_db


@pytest.fixture
def fill(make_user, open_stream):
    """
    A function that makes rows of all kinds.
    """

    def make(count):
        for _ in range(count):
            number = Principal.objects.count()
            scopes = Scope.named([f"a{number}", f"b{number}"])
            principal = Principal.objects.create(name=f"p{number}", user=make_user(f"user{number}"))
            principal.scopes.set(scopes)
            token, _ = AccessToken.objects.issue(principal, scopes=[f"a{number}"])
            open_stream(principal, token=token)

    return make


@pytest.mark.parametrize("path", ["principals/", "scopes/", "tokens/", "streams/"])
def test_a_list_takes_as_many_queries_for_many_rows_as_for_one(root, fill, path):
    def ask():
        with CaptureQueriesContext(
            connection,
        ) as queries:
            shown = root.get(f"/api/mcp/{path}").json()["results"]
        return len(shown), len(queries)

    fill(1)
    ask()  # the token's last use is noted once a minute
    few, asked_for_few = ask()
    fill(29)
    many, asked_for_many = ask()
    assert many >= few + 29
    assert asked_for_many == asked_for_few
    assert asked_for_many <= 8
