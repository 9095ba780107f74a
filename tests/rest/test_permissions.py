"""
Who may do what.
"""

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone
from rest_framework.test import APIClient

from mcp_channels.models import AccessToken, LiveStream, Principal, Scope
from tests.rest.conftest import bearer

pytestmark = pytest.mark.django_db

API = "/api/mcp/"


@pytest.fixture
def rows(open_stream):
    """
    One row of each kind, by the name of its list.
    """
    principal = Principal.objects.create(name="service")
    return {
        "principals": principal.pk,
        "scopes": Scope.objects.create(name="a").pk,
        "tokens": AccessToken.objects.issue(principal)[0].pk,
        "streams": open_stream(principal).pk,
    }


CALLS = [
    ("get", "principals/", None, "view_principal"),
    ("head", "principals/", None, "view_principal"),
    ("options", "principals/", None, "view_principal"),
    ("get", "principals/{}/", None, "view_principal"),
    ("post", "principals/", {"name": "x"}, "add_principal"),
    ("put", "principals/{}/", {"name": "x"}, "change_principal"),
    ("patch", "principals/{}/", {"notes": "x"}, "change_principal"),
    ("delete", "principals/{}/", None, "delete_principal"),
    ("get", "scopes/", None, "view_scope"),
    ("get", "scopes/{}/", None, "view_scope"),
    ("post", "scopes/", {"name": "x"}, "add_scope"),
    ("put", "scopes/{}/", {"name": "a"}, "change_scope"),
    ("patch", "scopes/{}/", {"description": "x"}, "change_scope"),
    ("delete", "scopes/{}/", None, "delete_scope"),
    ("get", "tokens/", None, "view_accesstoken"),
    ("get", "tokens/{}/", None, "view_accesstoken"),
    ("post", "tokens/", {"principal": "service"}, "add_accesstoken"),
    ("post", "tokens/{}/revoke/", None, "change_accesstoken"),
    ("delete", "tokens/{}/", None, "delete_accesstoken"),
    ("get", "streams/", None, "view_livestream"),
    ("get", "streams/{}/", None, "view_livestream"),
    ("delete", "streams/{}/", None, "delete_livestream"),
    ("post", "streams/{}/disconnect/", None, "delete_livestream"),
    ("post", "streams/disconnect/", {"ids": [1]}, "delete_livestream"),
    ("post", "notify/", {"tools": True}, "notify"),
]
PERMISSIONS = {
    *(f"{verb}_{kind}" for verb in ("view", "add", "change", "delete") for kind in ("principal", "scope")),
    *(f"{verb}_{kind}" for verb in ("view", "add", "change", "delete") for kind in ("accesstoken", "livestream")),
    "notify",
}


def send(client, rows, method, path, body):
    url = API + path.format(rows.get(path.split("/")[0]))
    if body == {"principal": "service"}:
        body = {"principal": rows["principals"]}
    return getattr(client, method)(url, body) if body is not None else getattr(client, method)(url)


@pytest.mark.parametrize(("method", "path", "body", "needed"), CALLS)
def test_each_call_needs_its_permission_and_no_other(client_of, rows, method, path, body, needed):
    without = client_of(*(PERMISSIONS - {needed}), name="without")
    assert send(without, rows, method, path, body).status_code == 403
    alone = client_of(needed, name="alone")
    assert send(alone, rows, method, path, body).status_code in (200, 201, 202, 204)


@pytest.mark.parametrize(("method", "path", "body", "needed"), CALLS)
def test_without_credentials_nothing_is_answered(rows, method, path, body, needed):
    answer = send(APIClient(), rows, method, path, body)
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == 'Bearer realm="mcp"'


def test_a_session_works_and_needs_the_csrf_token(make_user, rows):
    user = make_user("alice", "view_scope", "add_scope")
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(user)
    assert client.get(f"{API}scopes/").status_code == 200
    answer = client.post(f"{API}scopes/", {"name": "x"}, format="json")
    assert answer.status_code == 403
    assert not Scope.objects.filter(name="x").exists()


def test_a_token_needs_no_csrf_token(client_of):
    client = client_of("add_scope")
    client.handler.enforce_csrf_checks = True
    assert client.post(f"{API}scopes/", {"name": "x"}).status_code == 201


@pytest.mark.parametrize("spoil", ["revoked", "expired", "principal", "user", "unknown"])
def test_a_token_that_is_no_good_is_401(client_of, spoil):
    client = client_of("view_scope")
    token = AccessToken.objects.get()
    match spoil:
        case "revoked":
            AccessToken.objects.update(revoked_at=timezone.now())
        case "expired":
            AccessToken.objects.update(expires_at=timezone.now())
        case "principal":
            Principal.objects.update(is_active=False)
        case "user":
            get_user_model().objects.update(is_active=False)
        case "unknown":
            token.delete()
    assert client.get(f"{API}scopes/").status_code == 401


def test_a_service_has_no_permissions():
    _, value = AccessToken.objects.issue(Principal.objects.create(name="service"))
    assert bearer(value).get(f"{API}scopes/").status_code == 403


def test_a_narrowed_token_is_not_taken(client_of, root):
    client = client_of(*PERMISSIONS)
    Scope.named(["notes:read"])
    _, value = AccessToken.objects.issue(Principal.objects.get(user=client.user), scopes=["notes:read"])
    narrowed = bearer(value)
    for path in ("principals/", "scopes/", "tokens/", "streams/"):
        assert narrowed.get(API + path).status_code == 403
    assert narrowed.post(f"{API}notify/", {"tools": True}).status_code == 403
    assert narrowed.post(f"{API}tokens/", {"principal": 1}).status_code == 403


# Nobody gets to do more than they may


def test_who_may_change_principals_can_not_make_tokens(client_of, rows):
    client = client_of("add_principal", "change_principal", "view_accesstoken", "change_accesstoken")
    assert client.post(f"{API}tokens/", {"principal": rows["principals"]}).status_code == 403
    assert AccessToken.objects.filter(principal=rows["principals"]).count() == 1


@pytest.mark.parametrize(
    ("theirs", "fields", "allowed"),
    [
        ((), {}, True),
        (("view_scope",), {}, True),
        (("view_scope", "delete_scope"), {}, False),
        ((), {"is_staff": True}, False),
        ((), {"is_superuser": True}, False),
        ((), {"is_active": False}, False),
    ],
)
def test_nobody_speaks_for_a_user_who_may_do_more(client_of, make_user, theirs, fields, allowed):
    client = client_of("add_accesstoken", "add_principal", "change_principal", "view_scope")
    user = make_user("other", *theirs, **fields)
    service = Principal.objects.create(name="service")
    linked = client.patch(f"{API}principals/{service.pk}/", {"user": "other"})
    assert linked.status_code == (200 if allowed else 403)
    service.refresh_from_db()
    assert service.user == (user if allowed else None)
    if not allowed:
        assert client.post(f"{API}principals/", {"name": "x", "user": "other"}).status_code == 403
        assert not Principal.objects.filter(user=user).exists()
        service.user = user
        service.save()
    made = client.post(f"{API}tokens/", {"principal": service.pk})
    assert made.status_code == (201 if allowed else 403)
    assert service.tokens.exists() == allowed


def test_a_superuser_speaks_for_anybody(root, make_user):
    make_user("admin", is_superuser=True)
    made = root.post(f"{API}principals/", {"name": "x", "user": "admin"}).json()
    assert root.post(f"{API}tokens/", {"principal": made["id"]}).status_code == 201


def test_one_may_make_tokens_for_oneself(client_of):
    client = client_of("add_accesstoken")
    own = Principal.objects.get(user=client.user)
    assert client.post(f"{API}tokens/", {"principal": own.pk}).status_code == 201


def test_a_change_that_leaves_the_user_as_it_is_needs_no_more(client_of, make_user):
    client = client_of("change_principal")
    row = Principal.objects.create(name="x", user=make_user("admin", is_superuser=True))
    shown = client.patch(f"{API}principals/{row.pk}/", {"user": "admin", "is_active": False})
    assert (shown.status_code, shown.json()["is_active"]) == (200, False)


def test_what_is_refused_ends_nothing(client_of, rows):
    client = client_of("view_livestream", "change_livestream")
    for method, path in (("delete", "streams/{}/"), ("post", "streams/{}/disconnect/")):
        assert send(client, rows, method, path, None).status_code == 403
    assert LiveStream.objects.live().count() == 1
