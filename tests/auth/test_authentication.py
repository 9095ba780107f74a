"""
Tokens, and the callers that they lead to.
"""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.management import CommandError, call_command
from django.test import RequestFactory
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication

from mcp_channels.auth.authentication import BearerTokenAuthentication
from mcp_channels.auth.principals import (
    NotAuthenticatedError,
    anonymous_name,
    authenticate,
)
from mcp_channels.models import AccessToken, Principal, Scope

pytestmark = pytest.mark.django_db


@pytest.fixture
def principal():
    principal = Principal.objects.create(name="service")
    principal.scopes.set(Scope.named(["a", "b"]))
    return principal


def request(token=None, **extra):
    headers = {} if token is None else {"HTTP_AUTHORIZATION": token}
    return RequestFactory().post("/mcp", **headers, **extra)


def bearer(value, *, classes=(BearerTokenAuthentication,), allow_anonymous=False):
    return authenticate(request(f"Bearer {value}"), classes, allow_anonymous=allow_anonymous)


def test_a_good_token_leads_to_its_principal(principal):
    token, value = AccessToken.objects.issue(principal, lifetime=timedelta(hours=1))
    caller = bearer(value)
    assert caller.principal == principal
    assert caller.scopes == {"a", "b"}
    assert caller.expires_at == token.expires_at
    assert not caller.is_anonymous
    assert isinstance(caller.request.user, AnonymousUser)


def test_a_users_token_makes_the_user_the_requests(principal):
    user = get_user_model().objects.create(username="alice")
    principal.user = user
    principal.save()
    assert bearer(AccessToken.objects.issue(principal)[1]).request.user == user


def test_a_tokens_scopes_narrow_the_principals(principal):
    _, value = AccessToken.objects.issue(principal, scopes=["b", "c"])
    assert bearer(value).scopes == {"b"}
    _, value = AccessToken.objects.issue(principal, scopes=[])
    assert bearer(value).scopes == set()


def test_the_value_is_not_kept(principal):
    token, value = AccessToken.objects.issue(principal)
    stored = str(AccessToken.objects.values().get())
    assert value not in stored
    assert value not in repr(token)
    assert value not in str(token)
    assert value.startswith(token.prefix)
    assert len(value) > 40


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: AccessToken.objects.update(revoked_at=timezone.now()),
        lambda token: AccessToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1)),
        lambda token: Principal.objects.update(is_active=False),
        lambda token: token.delete(),
        lambda token: token.principal.delete(),
    ],
)
def test_a_token_that_is_no_longer_good_is_refused_in_the_same_words(principal, spoil):
    token, value = AccessToken.objects.issue(principal)
    spoil(token)
    with pytest.raises(NotAuthenticatedError) as refused:
        bearer(value)
    assert str(refused.value) == "The token is not valid."
    assert value not in str(refused.value)
    assert refused.value.is_shown


def test_a_user_who_is_not_active_is_refused(principal):
    principal.user = get_user_model().objects.create(username="alice", is_active=False)
    principal.save()
    with pytest.raises(NotAuthenticatedError):
        bearer(AccessToken.objects.issue(principal)[1])


@pytest.mark.parametrize("value", ["", "mcp_", "mcp_x", "ü", "a b", "mcp_" + "x" * 10_000])
def test_a_strange_token_is_refused(value):
    for allow_anonymous in (False, True):
        with pytest.raises(NotAuthenticatedError) as refused:
            bearer(value, allow_anonymous=allow_anonymous)
        assert refused.value.is_shown
        assert str(refused.value) == "The token is not valid."


def test_the_last_use_is_written_once_a_minute(principal, django_assert_num_queries):
    token, value = AccessToken.objects.issue(principal)
    bearer(value)
    token.refresh_from_db()
    assert token.last_used_at is not None
    # The token with its principal and user, and the scopes.
    with django_assert_num_queries(1):
        bearer(value)
    AccessToken.objects.update(last_used_at=timezone.now() - timedelta(minutes=2))
    with django_assert_num_queries(2):
        bearer(value)


def test_many_tokens_are_found_in_one_query(principal, django_assert_num_queries):
    user = get_user_model().objects.create(username="alice")
    principal.user = user
    principal.save()
    bare = Principal.objects.create(name="bare")
    values = {
        "full": AccessToken.objects.issue(principal)[1],
        "narrow": AccessToken.objects.issue(principal, scopes=["b", "c"])[1],
        "none": AccessToken.objects.issue(principal, scopes=[])[1],
        "bare": AccessToken.objects.issue(bare)[1],
        "bare and narrow": AccessToken.objects.issue(bare, scopes=["a"])[1],
    }
    with django_assert_num_queries(1):
        found = AccessToken.objects.find([*values.values(), "mcp_unknown"])
        granted = {name: found[value].granted for name, value in values.items()}
        users = {found[value].principal.user for value in values.values()}
    assert granted == {
        "full": {"a", "b"},
        "narrow": {"b"},
        "none": set(),
        "bare": set(),
        "bare and narrow": set(),
    }
    assert users == {user, None}
    assert "mcp_unknown" not in found


def test_any_name_of_a_scope_is_granted(principal):
    names = ['quote"', "back\\slash", "ü, [x]", "💧", "a b"]
    principal.scopes.set(Scope.named(names))
    assert bearer(AccessToken.objects.issue(principal, scopes=names[1:])[1]).scopes == set(names[1:])
    assert Principal.objects.find(pk=principal.pk).granted == set(names)


def test_a_bad_token_is_refused_even_where_nobody_need_sign_in():
    with pytest.raises(NotAuthenticatedError):
        bearer("mcp_wrong", allow_anonymous=True)


def test_without_credentials_a_caller_is_anonymous_or_refused():
    anonymous = authenticate(request(), [BearerTokenAuthentication], allow_anonymous=True)
    assert anonymous.is_anonymous
    assert anonymous.principal.name == "anonymous:127.0.0.1"
    assert anonymous.scopes == set()
    with pytest.raises(NotAuthenticatedError):
        authenticate(request(), [BearerTokenAuthentication], allow_anonymous=False)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "anonymous:192.0.2.7"),
        ("2001:db8::1", "anonymous:2001:db8::/64"),
        ("2001:db8::ffff:1", "anonymous:2001:db8::/64"),
        ("::ffff:192.0.2.7", "anonymous:192.0.2.7"),
        ("", "anonymous"),
        ("unix:", "anonymous"),
    ],
)
def test_anonymous_callers_of_one_network_are_one(address, name):
    assert anonymous_name(address) == name


class Fixed(BaseAuthentication):
    """
    Signs everybody in as alice, with a token of some other package.
    """

    auth: object = None

    def authenticate(self, request):
        return get_user_model().objects.get_or_create(username="alice")[0], self.auth


def test_a_user_of_another_authentication_gets_a_principal():
    caller = authenticate(request(), [Fixed], allow_anonymous=False)
    assert caller.principal.name == "alice"
    assert caller.principal == authenticate(request(), [Fixed], allow_anonymous=False).principal
    caller.principal.is_active = False
    caller.principal.save()
    with pytest.raises(NotAuthenticatedError):
        authenticate(request(), [Fixed], allow_anonymous=False)


def test_a_service_of_the_users_name_is_not_taken_over():
    service = Principal.objects.create(name="alice")
    caller = authenticate(request(), [Fixed], allow_anonymous=False)
    assert caller.principal != service
    assert caller.principal.user.username == "alice"


@pytest.mark.parametrize(
    "auth", [{"exp": 2_000_000_000}, type("Token", (), {"expires": datetime.fromtimestamp(2_000_000_000, UTC)})()]
)
def test_the_expiry_of_another_packages_credential_is_known(auth):
    classes = [type("Expiring", (Fixed,), {"auth": auth})]
    caller = authenticate(request(), classes, allow_anonymous=False)
    assert caller.expires_at == datetime.fromtimestamp(2_000_000_000, UTC)


@pytest.mark.parametrize("auth", [None, "opaque", {}, {"exp": "soon"}, {"exp": True}])
def test_a_credential_without_an_expiry_has_none(auth):
    classes = [type("Lasting", (Fixed,), {"auth": auth})]
    assert authenticate(request(), classes, allow_anonymous=False).expires_at is None


@pytest.mark.parametrize("username", ["anonymous", "anonymous:192.0.2.7", "Anonymous:x", "external:7", "client:x", ""])
def test_a_user_with_a_name_that_stands_for_others_gets_another(username):
    user = get_user_model().objects.create(username=username)
    classes = [type("As", (Fixed,), {"authenticate": lambda self, request: (user, None)})]
    principal = authenticate(request(), classes, allow_anonymous=False).principal
    assert principal.name == f"user {user.pk}"
    principal.full_clean()
    assert authenticate(request(), classes, allow_anonymous=False).principal == principal


def test_a_users_principal_has_a_name_of_its_own_however_long():
    user = get_user_model().objects.create(username="x" * 200)
    Principal.objects.create(name="x" * 190)
    classes = [type("As", (Fixed,), {"authenticate": lambda self, request: (user, None)})]
    principal = authenticate(request(), classes, allow_anonymous=False).principal
    assert principal.name.endswith(f" (user {user.pk})")
    principal.full_clean()


def test_a_principal_of_anonymous_callers_has_no_token():
    for fields in ({"name": "anonymous:192.0.2.7"}, {"name": "x", "is_anonymous": True}):
        with pytest.raises(ValueError, match="anonymous"):
            AccessToken.objects.issue(Principal.objects.create(**fields))
    assert not AccessToken.objects.exists()


@pytest.mark.parametrize("name", ["anonymous", "anonymous:192.0.2.7", "ANONYMOUS:1", "x" * 191, ""])
def test_mcp_token_makes_no_principal_of_an_impossible_name(name):
    with pytest.raises(CommandError):
        call_command("mcp_token", name)
    assert not Principal.objects.exists()


def test_mcp_token_makes_no_token_for_anonymous_callers():
    Principal.objects.create(name="anonymous:192.0.2.7", is_anonymous=True)
    with pytest.raises(CommandError, match="anonymous"):
        call_command("mcp_token", "anonymous:192.0.2.7")


def test_classes_may_be_named_by_their_path(principal):
    _, value = AccessToken.objects.issue(principal)
    path = "mcp_channels.auth.authentication.BearerTokenAuthentication"
    assert bearer(value, classes=[path]).principal == principal
