"""
The authentication classes of DRF and of other packages, each with the real package.
"""

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.backends.db import SessionStore
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.test import RequestFactory
from django.utils import timezone
from oauth2_provider.models import AccessToken as OAuthToken, Application
from rest_framework.authtoken.models import Token
from rest_framework_simplejwt.tokens import AccessToken as JsonWebToken, RefreshToken

from mcp_channels.auth.principals import NotAuthenticatedError, NotPermittedError, authenticate
from mcp_channels.models import AccessToken, Principal, Scope
from tests.auth import classes

pytestmark = pytest.mark.django_db

HERE = "http://testserver/mcp"


@pytest.fixture
def alice():
    user = get_user_model().objects.create_user("alice", password="x")
    principal = Principal.objects.create(name="alice", user=user)
    principal.scopes.set(Scope.named(["a", "b"]))
    return user


def request(header=None, *, user=None, **extra):
    headers = {} if header is None else {"HTTP_AUTHORIZATION": header}
    made = RequestFactory(enforce_csrf_checks=True).post("/mcp", **headers, **extra)
    if user is not None:
        made.user = user
    return made


def call(header, authentication_classes, *, allow_anonymous=False, **extra):
    asked = request(header, **extra)
    return authenticate(asked, authentication_classes, allow_anonymous=allow_anonymous, audiences=[HERE])


def jwt_of(user, **claims):
    token = JsonWebToken.for_user(user)
    for name, value in claims.items():
        token[name] = value
    return f"Bearer {token}"


def oauth(user, *, scope="a b c", lifetime=timedelta(hours=1), resource=(), application=None):
    value = f"oauth{OAuthToken.objects.count()}"
    OAuthToken.objects.create(
        user=user,
        token=value,
        scope=scope,
        expires=timezone.now() + lifetime,
        resource=list(resource),
        application=application,
    )
    return f"Bearer {value}"


def client_application(**fields):
    return Application.objects.create(
        name="nightly", client_type="confidential", authorization_grant_type="client-credentials", **fields
    )


# DRF's own


@pytest.mark.parametrize(("keyword", "class_"), [("Token", classes.TOKEN[0]), ("Bearer", classes.BearerKeyword)])
def test_drf_tokens(alice, keyword, class_):
    header = f"{keyword} {Token.objects.create(user=alice).key}"
    caller = call(header, [class_])
    assert (caller.principal.user, caller.scopes, caller.expires_at) == (alice, {"a", "b"}, None)
    with pytest.raises(NotAuthenticatedError) as refused:
        call(f"{keyword} wrong", [class_])
    assert refused.value.is_shown
    alice.is_active = False
    alice.save()
    with pytest.raises(NotAuthenticatedError):
        call(header, [class_])


def test_a_challenge_names_the_schemes_of_all_classes():
    with pytest.raises(NotAuthenticatedError) as refused:
        call(None, classes.EVERY)
    assert not refused.value.is_shown
    assert refused.value.schemes == ("Token",)


def test_a_session_needs_a_csrf_token(alice):
    with pytest.raises(NotPermittedError, match="CSRF"):
        call(None, classes.SESSION, user=alice)
    token = "x" * 32
    caller = call(None, classes.SESSION, user=alice, HTTP_COOKIE=f"csrftoken={token}", HTTP_X_CSRFTOKEN=token)
    assert caller.principal.user == alice


def test_a_caller_leaves_with_its_session(alice):
    token = "x" * 32
    asked = request(user=alice, HTTP_COOKIE=f"csrftoken={token}", HTTP_X_CSRFTOKEN=token)
    asked.session = SessionStore()
    ends_at = timezone.now() + timedelta(minutes=5)
    asked.session.set_expiry(ends_at)
    assert authenticate(asked, classes.SESSION, allow_anonymous=False).expires_at == ends_at


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_form_of_another_site_is_refused(alice, content_type):
    body = {"data": b"a=b", "content_type": content_type, "HTTP_ORIGIN": "https://evil.test"}
    asked = RequestFactory(enforce_csrf_checks=True).generic("POST", "/mcp", **body)
    asked.user = alice
    with pytest.raises(NotPermittedError):
        authenticate(asked, classes.SESSION, allow_anonymous=True)


@pytest.mark.parametrize("order", [[*classes.SESSION, *classes.OWN], [*classes.OWN, *classes.SESSION]])
def test_a_token_stands_before_a_session_whatever_the_order(alice, order):
    other = Principal.objects.create(name="service")
    _, value = AccessToken.objects.issue(other)
    # The cookie's user would need a CSRF token.
    assert call(f"Bearer {value}", order, user=alice).principal == other


@pytest.mark.parametrize("class_", [*classes.OWN, *classes.OAUTH, *classes.JWT, classes.BearerKeyword])
@pytest.mark.parametrize("value", ["mcp_wrong", "wrong", "a.b.c", ""])
def test_a_bad_token_is_refused_whatever_else_would_let_the_caller_in(alice, class_, value):
    token = "x" * 32
    session = {"user": alice, "HTTP_COOKIE": f"csrftoken={token}", "HTTP_X_CSRFTOKEN": token}
    for order in ([class_, *classes.SESSION], [*classes.SESSION, class_]):
        with pytest.raises(NotAuthenticatedError) as refused:
            call(f"Bearer {value}", order, allow_anonymous=True, **session)
        assert refused.value.is_shown


def test_a_header_of_another_scheme_is_no_token(alice):
    """
    It may be meant for a proxy.
    """
    assert call("Basic eDp5", classes.OWN, allow_anonymous=True).is_anonymous
    with pytest.raises(NotAuthenticatedError) as refused:
        call("Basic eDp5", classes.OWN)
    assert not refused.value.is_shown


def test_all_ways_lead_in_side_by_side(alice):
    _, own = AccessToken.objects.issue(Principal.objects.get())
    shown = [f"Bearer {own}", oauth(alice), f"Token {Token.objects.create(user=alice).key}", jwt_of(alice)]
    assert [call(header, classes.EVERY).principal.name for header in shown] == ["alice"] * 4
    assert [call(header, classes.EVERY).token is not None for header in shown] == [True, False, False, False]


# djangorestframework-simplejwt


def test_a_jwt(alice):
    token = JsonWebToken.for_user(alice)
    caller = call(f"Bearer {token}", classes.JWT)
    assert (caller.principal.user, caller.scopes) == (alice, {"a", "b"})
    assert caller.expires_at == datetime.fromtimestamp(token["exp"], UTC)
    assert caller.request.user == alice


def test_a_jwt_that_is_not_good_is_refused_in_plain_words(alice):
    expired = JsonWebToken.for_user(alice)
    expired.set_exp(lifetime=-timedelta(seconds=1))
    stranger = JsonWebToken()
    stranger["user_id"] = 999
    good = jwt_of(alice)
    forged = good[:-10] + ("A" * 10 if good[-10:] != "A" * 10 else "B" * 10)
    for header in (f"Bearer {expired}", f"Bearer {RefreshToken.for_user(alice)}", f"Bearer {stranger}", forged):
        with pytest.raises(NotAuthenticatedError) as refused:
            call(header, classes.JWT)
        assert refused.value.is_shown
        assert "{" not in str(refused.value)
        assert header.split()[1] not in str(refused.value)


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({}, {"a", "b"}),
        ({"scope": "a"}, {"a"}),
        ({"scope": "a  c"}, {"a"}),
        ({"scope": ["b"]}, {"b"}),
        ({"scope": ""}, set()),
        ({"scp": "b c"}, {"b"}),
        ({"scp": ["a", "b", 7]}, {"a", "b"}),
        ({"scp": []}, set()),
        ({"scope": "a", "scp": "b"}, {"a"}),
        ({"scope": 7}, set()),
        ({"scope": {"a": 1}}, set()),
    ],
)
def test_a_jwts_scopes_narrow_the_principals(alice, claims, scopes):
    assert call(jwt_of(alice, **claims), classes.JWT).scopes == scopes


@pytest.mark.parametrize(
    ("audience", "is_accepted"),
    [
        (HERE, True),
        (HERE + "/", True),
        ("HTTP://TestServer:80/mcp", True),
        (["other", HERE], True),
        ("http://testserver", False),
        ("http://testserver/mcp/deeper", False),
        ("http://testserver:8000/mcp", False),
        ("https://testserver/mcp", False),
        ("other", False),
        ([], False),
        ("", False),
        (7, False),
        ("http://[", False),
    ],
)
def test_a_jwt_is_only_good_for_its_audience(alice, audience, is_accepted):
    if is_accepted:
        assert call(jwt_of(alice, aud=audience), classes.JWT).principal.user == alice
    else:
        with pytest.raises(NotAuthenticatedError) as refused:
            call(jwt_of(alice, aud=audience), classes.JWT)
        assert refused.value.is_shown
        # Nor does it leave anything behind.
        with pytest.raises(NotAuthenticatedError):
            call(jwt_of(alice, aud=audience), classes.STATELESS)
        assert [principal.name for principal in Principal.objects.all()] == ["alice"]


def test_a_stateless_user_is_a_principal_without_a_user(alice, django_assert_num_queries):
    # The key may be that of a user of this database; the issuer's users are others.
    header = jwt_of(alice, scope="a c", username="alice", is_superuser=True)
    caller = call(header, classes.STATELESS)
    assert (caller.principal.name, caller.principal.user) == (f"external:{alice.pk}", None)
    assert caller.scopes == set()
    caller.principal.scopes.set(Scope.named(["a", "b"]))
    with django_assert_num_queries(1):
        caller = call(header, classes.STATELESS)
    assert caller.scopes == {"a"}
    assert caller.expires_at is not None
    Principal.objects.filter(pk=caller.principal.pk).update(is_active=False)
    with pytest.raises(NotAuthenticatedError):
        call(header, classes.STATELESS)


def test_stateless_users_of_two_issuers_are_two(alice):
    first, second = (jwt_of(alice, iss=f"https://{name}.example") for name in ("one", "two"))
    names = [call(header, classes.STATELESS).principal.name for header in (first, second)]
    assert names == [f"external:https://{name}.example#{alice.pk}" for name in ("one", "two")]


@pytest.mark.parametrize("user_id", [None, "", "x" * 1000, "anonymous", "ü\n"])
def test_a_stateless_user_of_any_key_is_let_in_or_refused(user_id):
    token = JsonWebToken()
    token["user_id"] = user_id
    if user_id:
        principal = call(f"Bearer {token}", classes.STATELESS).principal
        principal.full_clean()
        assert principal == call(f"Bearer {token}", classes.STATELESS).principal
    else:
        with pytest.raises(NotAuthenticatedError):
            call(f"Bearer {token}", classes.STATELESS)


def test_a_user_does_not_take_a_stateless_users_name():
    token = JsonWebToken()
    token["user_id"] = "7"
    impostor = get_user_model().objects.create(username="external:7")
    assert call(jwt_of(impostor), classes.JWT).principal.name == f"user {impostor.pk}"
    # Where one has it all the same, nobody gets it.
    Principal.objects.update(name="external:7")
    with pytest.raises(NotPermittedError):
        call(f"Bearer {token}", classes.STATELESS)


# django-oauth-toolkit


def test_an_oauth_token(alice):
    caller = call(oauth(alice, scope="a c"), classes.OAUTH)
    assert (caller.principal.user, caller.scopes) == (alice, {"a"})
    assert caller.expires_at == OAuthToken.objects.get().expires
    assert call(oauth(alice, scope=""), classes.OAUTH).scopes == set()


def test_an_oauth_token_that_is_not_good_is_refused(alice):
    expired = oauth(alice, lifetime=-timedelta(seconds=1))
    good = oauth(alice)
    for header in (expired, "Bearer wrong", "Bearer ü", "Bearer a b", "Bearer "):
        with pytest.raises(NotAuthenticatedError) as refused:
            call(header, classes.OAUTH, allow_anonymous=True)
        assert refused.value.is_shown
    alice.is_active = False
    alice.save()
    with pytest.raises(NotAuthenticatedError):
        call(good, classes.OAUTH)


def test_an_oauth_token_is_only_good_for_its_resources(alice):
    assert call(oauth(alice, resource=[HERE]), classes.OAUTH).principal.user == alice
    # A prefix is enough for django-oauth-toolkit, and names too much.
    for resource in ("http://testserver/", "http://testserver/other", "https://other.example/mcp"):
        with pytest.raises(NotAuthenticatedError):
            call(oauth(alice, resource=[resource]), classes.OAUTH)


def test_an_oauth_client_that_calls_for_itself_is_a_principal():
    application = client_application(client_id="abc")
    caller = call(oauth(None, application=application), classes.OAUTH)
    assert (caller.principal.name, caller.principal.user, caller.scopes) == ("client:abc", None, set())
    assert isinstance(caller.request.user, AnonymousUser)
    caller.principal.scopes.set(Scope.named(["a", "d"]))
    assert call(oauth(None, application=application), classes.OAUTH).scopes == {"a"}


def test_an_oauth_token_of_nobody_is_refused():
    with pytest.raises(NotAuthenticatedError):
        call(oauth(None), classes.OAUTH, allow_anonymous=True)


def test_a_token_in_the_url_is_refused(alice):
    value = oauth(alice).split()[1]
    with pytest.raises(BadRequest):
        call(None, classes.OAUTH, QUERY_STRING=f"access_token={value}")


def test_a_request_that_a_class_cannot_read_says_so(alice):
    with pytest.raises(SuspiciousOperation):
        call(oauth(alice), classes.OAUTH, QUERY_STRING="a=%G0")


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "application/x-www-form-urlencoded; charset=latin-1", "a/b; charset=x", "nonsense", ""],
)
def test_no_class_reads_the_body(alice, content_type):
    asked = RequestFactory().generic(
        "POST", "/mcp", b"\xff=", content_type=content_type, HTTP_AUTHORIZATION=oauth(alice)
    )
    assert authenticate(asked, classes.EVERY, allow_anonymous=False).principal.user == alice


# All of them


@pytest.mark.parametrize(
    ("class_", "show", "queries"),
    [
        # The user, then the principal with its scopes.
        (classes.JWT[0], jwt_of, 2),
        (classes.TOKEN[0], lambda user: f"Token {Token.objects.create(user=user).key}", 2),
        (classes.OAUTH[0], oauth, 2),
        # A session's user is there before.
        (classes.SESSION[0], None, 1),
        (classes.OWN[0], lambda user: f"Bearer {AccessToken.objects.issue(user.mcp_principal)[1]}", 1),
    ],
)
def test_a_principal_and_its_scopes_take_one_query(alice, django_assert_num_queries, class_, show, queries):
    header = None if show is None else show(alice)
    extra = {}
    if header is None:
        extra = {"user": alice, "HTTP_COOKIE": f"csrftoken={'x' * 32}", "HTTP_X_CSRFTOKEN": "x" * 32}
    AccessToken.objects.update(last_used_at=timezone.now())
    with django_assert_num_queries(queries):
        caller = call(header, [class_], **extra)
        assert caller.principal.user == alice
    assert caller.scopes == {"a", "b"}
