"""
Tokens.
"""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.signals import post_save
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from mcp_channels.models import AccessToken, Principal, Scope
from tests.rest.conftest import bearer

pytestmark = pytest.mark.django_db

URL = "/api/mcp/tokens/"


@pytest.fixture
def service():
    principal = Principal.objects.create(name="service")
    principal.scopes.set(Scope.named(["a", "b"]))
    return principal


def test_the_value_is_shown_once(root, service, caplog):
    end = timezone.now() + timedelta(days=3)
    answer = root.post(URL, {"principal": service.pk, "label": "nightly", "scopes": ["a"], "expires_at": end})
    assert answer.status_code == 201
    assert answer["Cache-Control"] == "no-store"
    shown = answer.json()
    value = shown.pop("value")
    token = AccessToken.objects.find([value])[value]
    assert token.principal == service
    assert token.granted == {"a"}
    assert token.expires_at == end
    assert value.startswith(shown["prefix"])
    assert (shown["principal"], shown["principal_name"]) == (service.pk, "service")
    assert (shown["label"], shown["scopes"]) == ("nightly", ["a"])
    assert parse_datetime(shown["expires_at"]) == end
    assert shown["last_used_at"] is shown["revoked_at"] is None
    assert root.get(f"{URL}{token.pk}/").json() == shown
    for other in (root.get(URL), root.get(f"{URL}{token.pk}/"), root.post(f"{URL}{token.pk}/revoke/")):
        assert value not in other.content.decode()
        assert token.digest not in other.content.decode()
    assert value not in caplog.text


@pytest.mark.parametrize(("scopes", "granted"), [(None, {"a", "b"}), ([], set()), (["b"], {"b"}), (["c"], set())])
def test_scopes_narrow_and_null_leaves_them(root, service, scopes, granted):
    Scope.named(["c"])
    shown = root.post(URL, {"principal": service.pk, "scopes": scopes}).json()
    assert shown["scopes"] == scopes
    assert AccessToken.objects.find([shown["value"]])[shown["value"]].granted == granted


def test_a_token_without_more_is_good_for_ever_and_not_narrowed(root, service):
    shown = root.post(URL, {"principal": service.pk}).json()
    assert shown["scopes"] is shown["expires_at"] is None
    assert bearer(shown["value"]).get(URL).status_code == 403  # known, and not permitted


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"principal": None}, "principal"),
        ({"principal": 10**6}, "principal"),
        ({"principal": 2**70}, "principal"),
        ({"principal": "service"}, "principal"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "0001-01-01T00:00:00+14:00"}, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
        ({"expires_at": "9999-12-31T23:59:59Z"}, "expires_at"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"scopes": ["unknown"]}, "scopes"),
        ({"label": "x" * 191}, "label"),
    ],
)
def test_what_can_not_be_is_refused_by_name(root, service, asked, field):
    before = AccessToken.objects.count()
    answer = root.post(URL, {"principal": service.pk, **asked})
    assert answer.status_code == 400
    assert list(answer.json()) == [field]
    assert AccessToken.objects.count() == before


def test_an_anonymous_principal_has_no_tokens(root):
    row = Principal.objects.create(name="anonymous:10.0.0.1", is_anonymous=True)
    assert root.post(URL, {"principal": row.pk}).status_code == 400


def test_a_revoked_token_is_refused_and_stays_revoked(root, client_of):
    other = client_of("view_scope", name="other")
    token = AccessToken.objects.get(principal__user=other.user)
    assert other.get("/api/mcp/scopes/").status_code == 200
    heard = []
    listener = lambda instance, **kw: heard.append(instance.revoked_at)  # noqa: E731
    post_save.connect(listener, sender=AccessToken)
    try:
        first = root.post(f"{URL}{token.pk}/revoke/")
        again = root.post(f"{URL}{token.pk}/revoke/")
    finally:
        post_save.disconnect(listener, sender=AccessToken)
    assert first.status_code == again.status_code == 200
    assert first.json()["revoked_at"] is not None
    assert first.json() == again.json()
    assert len(heard) == 1
    assert heard[0] is not None
    assert other.get("/api/mcp/scopes/").status_code == 401


def test_a_token_is_deleted(root, service):
    token, value = AccessToken.objects.issue(service)
    assert root.delete(f"{URL}{token.pk}/").status_code == 204
    assert AccessToken.objects.find([value]) == {}
    assert root.post(f"{URL}{token.pk}/revoke/").status_code == 404


def test_a_token_is_not_changed(root, service):
    token, _ = AccessToken.objects.issue(service)
    assert root.patch(f"{URL}{token.pk}/", {"label": "x"}).status_code == 405
    assert root.put(f"{URL}{token.pk}/", {"label": "x"}).status_code == 405


def test_a_list_is_filtered_and_searched(root, service):
    one, _ = AccessToken.objects.issue(service, label="nightly")
    two, _ = AccessToken.objects.issue(service, label="daily")
    AccessToken.objects.filter(pk=two.pk).update(revoked_at=timezone.now())

    def found(query):
        return [item["id"] for item in root.get(f"{URL}?{query}").json()["results"]]

    assert found(f"principal={service.pk}") == [two.pk, one.pk]
    assert found(f"principal={service.pk}&ordering=id") == [one.pk, two.pk]
    assert found(f"principal={service.pk}&is_revoked=false") == [one.pk]
    assert found("is_revoked=true") == [two.pk]
    assert found(f"prefix={one.prefix}") == [one.pk]
    assert found("search=NIGHT") == [one.pk]


def test_filters_are_for_lists(root, service):
    token, _ = AccessToken.objects.issue(service)
    assert root.get(f"{URL}{token.pk}/?is_revoked=true&search=other").status_code == 200
    assert root.get(f"{URL}?is_revoked=perhaps").status_code == 400


@pytest.mark.parametrize("query", ["", "?ordering=expires_at", "?ordering=-label"])
def test_equal_rows_keep_one_order(root, service, query):
    # Else a row may be on two pages, or on none.
    with CaptureQueriesContext(connection) as queries:
        root.get(URL + query)
    [listed] = [item["sql"] for item in queries if "ORDER BY" in item["sql"] and "LIMIT 1" in item["sql"]]
    assert '"mcp_channels_accesstoken"."id" ASC' in listed.partition("ORDER BY")[2]
