"""
From a request's credentials to its caller: the principal, and what it may do with this credential.
"""

import ipaddress
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import BadRequest
from django.db import IntegrityError, models, transaction
from django.http import HttpRequest, QueryDict
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import APIException, AuthenticationFailed
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from mcp_channels.auth import credentials
from mcp_channels.models import AccessToken, Principal, digest, is_anonymous_name

EXTERNAL: Final = "external:"
"""What the names of principals start with that stand for users of another system, and have no Django user."""

CLIENT: Final = "client:"
"""What the names of principals start with that stand for an OAuth client itself (RFC 6749 §4.4)."""

_LONGEST_NAME: Final = 190

_NOT_VALID: Final = "The token is not valid."


class NotAuthenticatedError(Exception):
    """
    The request has no credentials, or no good ones.
    """

    def __init__(self, detail: str, *, is_shown: bool, schemes: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.is_shown = is_shown
        """Whether it has credentials, but no good ones."""
        self.schemes = tuple(schemes)
        """The challenges of other schemes than Bearer, for ``WWW-Authenticate``."""


class NotPermittedError(Exception):
    """
    The credentials were read, and the request is refused all the same (a missing CSRF token, say).
    """


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Who is calling, and what the credential of this call lets them do.
    """

    principal: Principal
    """The principal; for an anonymous caller, it need not be saved."""

    scopes: frozenset[str]
    """The names of the scopes that this credential grants."""

    expires_at: datetime | None = None
    """When the credential ends."""

    request: HttpRequest | None = None
    """The request as Django sees it, with its ``user``."""

    token: AccessToken | None = None
    """The token of our own, where one was shown."""

    @property
    def is_anonymous(self) -> bool:
        """
        Whether nobody signed in.
        """
        return self.principal.is_anonymous or self.principal.pk is None

    def has_scope(self, name: str | None) -> bool:
        """
        Whether the credential grants the scope. None stands for: no scope is needed.
        """
        return name is None or name in self.scopes


def authenticate(
    request: HttpRequest, classes: Sequence[Any], *, allow_anonymous: bool, audiences: Collection[str] = ()
) -> Caller:
    """
    Run DRF's authentication ``classes`` (or dotted paths) over ``request``. Blocks: it asks the database.

    A request that shows a token is judged by it alone: its session isn't looked at. A credential that says whom it is
    for must name one of ``audiences``, and one that says what it is for narrows the principal's scopes.

    Raises:
        NotAuthenticatedError: the answer is 401.
        NotPermittedError: the answer is 403.
        BadRequest, SuspiciousOperation, MultiPartParserError: the request can't be read; the answer is 400.
    """
    if "access_token" in request.GET:
        # URLs are logged (RFC 9700 §4.3.2), and some classes would take it.
        raise BadRequest("An access token belongs in the Authorization header")
    authenticators = [_load(item)() for item in classes]
    drf_request = Request(request, parsers=[_NoBody()])
    offered = [header for item in authenticators if (header := item.authenticate_header(drf_request))]
    others = [header for header in dict.fromkeys(offered) if _scheme(header) != "bearer"]
    shown = _scheme(get_authorization_header(drf_request).decode("latin-1")) in {"bearer", *map(_scheme, offered)}
    if shown:
        authenticators = [item for item in authenticators if not isinstance(item, SessionAuthentication)]
    drf_request.authenticators = authenticators
    try:
        caller = _caller(request, drf_request, audiences)
    except AuthenticationFailed as error:
        raise NotAuthenticatedError(_text(error.detail), is_shown=True, schemes=others) from None
    except APIException as error:
        raise NotPermittedError(_text(error.detail)) from None
    if caller is not None:
        return caller
    if shown:
        raise NotAuthenticatedError(_NOT_VALID, is_shown=True, schemes=others)
    if allow_anonymous:
        name = anonymous_name(request.META.get("REMOTE_ADDR", ""))
        return Caller(Principal(name=name, is_anonymous=True), frozenset(), None, request)
    raise NotAuthenticatedError("Authentication credentials were not provided.", is_shown=False, schemes=others)


def prefetch(requests: Collection[HttpRequest], classes: Sequence[Any]) -> None:
    """
    Let those of ``classes`` that can (by a class method of this name) look up the credentials of many requests at
    once. Blocks.
    """
    for item in classes:
        look_up = getattr(_load(item), "prefetch", None)
        if look_up is not None:
            look_up(requests)


def anonymous_name(address: str) -> str:
    """
    The name of the principal that anonymous callers from ``address`` share: an IPv6 /64 counts as one.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return "anonymous"
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return f"anonymous:{ip.ipv4_mapped}"
        return f"anonymous:{ipaddress.ip_network((ip, 64), strict=False)}"
    return f"anonymous:{ip}"


class _NoBody(BaseParser):
    """
    Reads nothing: DRF's check of the CSRF token looks for one in a form, and the body is none.
    """

    media_type = "*/*"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> QueryDict:
        """
        See BaseParser.
        """
        return QueryDict()


def _load(item: Any) -> type[BaseAuthentication]:
    loaded: type[BaseAuthentication] = import_string(item) if isinstance(item, str) else item
    return loaded


def _scheme(header: str) -> str:
    return header.strip().partition(" ")[0].lower()


def _text(detail: Any) -> str:
    """
    What a refusal of DRF's, or of a class of another package, says in one sentence.
    """
    if isinstance(detail, dict):
        detail = detail.get("detail") or next(iter(detail.values()), "")
    if isinstance(detail, list):
        detail = detail[0] if detail else ""
    return str(detail)


def _caller(request: HttpRequest, drf_request: Request, audiences: Collection[str]) -> Caller | None:
    """
    Whom DRF's classes found, if anybody.
    """
    # A token may stand for no user.
    user, auth = drf_request.user or AnonymousUser(), drf_request.auth
    request.user = user
    if drf_request.successful_authenticator is None or (auth is None and not user.is_authenticated):
        return None
    if not credentials.is_for(auth, audiences):
        raise AuthenticationFailed(_NOT_VALID)
    token = auth if isinstance(auth, AccessToken) else None
    principal = _principal_of(user, auth) if token is None else token.principal
    # django-oauth-toolkit doesn't look whether a user is active; an AnonymousUser never is.
    owner = user if user.is_authenticated else principal.user
    if not principal.is_active or not getattr(owner, "is_active", True):
        raise AuthenticationFailed("The principal is not active.")
    granted = (principal if token is None else token).granted or frozenset()
    narrower = credentials.scopes(auth)
    if isinstance(drf_request.successful_authenticator, SessionAuthentication):
        ends_at = credentials.session_ends_at(request)
    else:
        ends_at = credentials.expires_at(auth)
    return Caller(principal, granted if narrower is None else granted & narrower, ends_at, request, token)


def _principal_of(user: Any, auth: Any) -> Principal:
    """
    The principal that a user or a credential of another package leads to; it is made when it first calls.

    Raises:
        AuthenticationFailed: they name nobody.
        NotPermittedError: another principal has the name.
    """
    lookups: dict[str, Any]
    if isinstance(user, get_user_model()):
        lookups, names = {"user": user}, list(_names_of(user))
    else:
        name = _external_name(user, auth)
        if name is None:
            raise AuthenticationFailed("The token stands for nobody.")
        lookups, names = {"name": name, "user": None}, [name]
    found = Principal.objects.find(**lookups)
    for name in () if found is not None else names:
        try:
            with transaction.atomic():
                found = Principal.objects.create(**{"name": name, **lookups})
                found.granted = frozenset()
                break
        except IntegrityError:  # the name is taken, or another request was faster
            found = Principal.objects.find(**lookups)
            if found is not None:
                break
    if found is None:
        raise NotPermittedError("No principal could be made for this user.")
    return found


def _names_of(user: Any) -> Iterator[str]:
    """
    Names for a Django user's principal. A service may have the user's; the key makes it unique.
    """
    name, key = user.get_username(), str(user.pk)
    if name and not is_anonymous_name(name) and not name.startswith((EXTERNAL, CLIENT)):
        yield name[:_LONGEST_NAME]
        yield f"{name[: _LONGEST_NAME - len(key) - 8]} (user {key})"
    yield f"user {key}"


def _external_name(user: Any, auth: Any) -> str | None:
    """
    The name of the principal of a user whom this project's database doesn't hold (a stateless user of simplejwt), or of
    an OAuth client that calls for itself.
    """
    if user.is_authenticated and user.pk not in (None, ""):
        kind = user._meta.label_lower if isinstance(user, models.Model) else credentials.claim(auth, "iss")
        name = f"{EXTERNAL}{kind}#{user.pk}" if kind else f"{EXTERNAL}{user.pk}"
    elif client := getattr(getattr(auth, "application", None), "client_id", None):
        return client_name(client)
    else:
        return None
    return _fitting(name)


def client_name(client: str) -> str:
    """
    The name of the principal of an OAuth client that calls for itself, by its ``client_id``.
    """
    return _fitting(f"{CLIENT}{client}")


def _fitting(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name.partition(':')[0]}:{digest(name)}"
