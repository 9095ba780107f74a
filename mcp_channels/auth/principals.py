"""
From a request's credentials to its caller: the principal, and what it may do with this credential.
"""

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.http import HttpRequest
from django.utils.module_loading import import_string
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException, AuthenticationFailed
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from mcp_channels.models import AccessToken, Principal


class NotAuthenticatedError(Exception):
    """
    The request has no credentials, or no good ones. ``challenge`` is for ``WWW-Authenticate``.
    """

    def __init__(self, detail: str, *, challenge: str) -> None:
        super().__init__(detail)
        self.challenge = challenge


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
    """The principal; unsaved (without a ``pk``) for an anonymous caller."""

    scopes: frozenset[str]
    """The names of the scopes that this credential grants."""

    expires_at: datetime | None = None
    """When the credential ends."""

    request: HttpRequest | None = None
    """The request as Django sees it, with its ``user``."""

    token: AccessToken | None = None
    """The token, if it is one of this project's own."""

    @property
    def is_anonymous(self) -> bool:
        """
        Whether nobody signed in.
        """
        return self.principal.pk is None

    def has_scope(self, name: str | None) -> bool:
        """
        Whether the credential grants the scope. None stands for: no scope is needed.
        """
        return name is None or name in self.scopes


def authenticate(request: HttpRequest, classes: Sequence[Any], *, allow_anonymous: bool) -> Caller:
    """
    Run DRF's authentication ``classes`` (or dotted paths) over ``request``. Blocks: it asks the database.

    Raises:
        NotAuthenticatedError: the answer is 401.
        NotPermittedError: the answer is 403.
    """
    authenticators = [_load(item)() for item in classes]
    drf_request = Request(request, parsers=[_NoBody()], authenticators=authenticators)
    try:
        user, auth = drf_request.user, drf_request.auth
    except AuthenticationFailed as error:
        raise NotAuthenticatedError(str(error.detail), challenge=_challenge(authenticators, drf_request)) from None
    except APIException as error:
        raise NotPermittedError(str(error.detail)) from None
    request.user = user
    if isinstance(auth, AccessToken):
        granted = frozenset[str]() if auth.granted is None else auth.granted
        return Caller(auth.principal, granted, auth.expires_at, request, auth)
    if user is not None and user.is_authenticated:
        principal = _principal_of(user)
        if not principal.is_active:
            raise NotAuthenticatedError(
                "The principal is not active.", challenge=_challenge(authenticators, drf_request)
            )
        return Caller(principal, _scopes(principal), _expiry(auth), request)
    if allow_anonymous:
        return Caller(Principal(name=anonymous_name(request.META.get("REMOTE_ADDR", ""))), frozenset(), None, request)
    raise NotAuthenticatedError(
        "Authentication credentials were not provided.", challenge=_challenge(authenticators, drf_request)
    )


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

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> dict[str, Any]:
        """
        See BaseParser.
        """
        return {}


def _load(item: Any) -> type[BaseAuthentication]:
    loaded: type[BaseAuthentication] = import_string(item) if isinstance(item, str) else item
    return loaded


def _challenge(authenticators: Sequence[BaseAuthentication], request: Request) -> str:
    # MCP clients look for Bearer, whichever class comes first.
    offered = [header for item in authenticators if (header := item.authenticate_header(request))]
    bearer = [header for header in offered if header.lower().startswith("bearer")]
    return (bearer or offered or ["Bearer"])[0]


def _scopes(principal: Principal) -> frozenset[str]:
    return frozenset(principal.scopes.order_by().values_list("name", flat=True))


def _principal_of(user: Any) -> Principal:
    principal = Principal.objects.filter(user=user).first()
    if principal is not None:
        return principal
    # A service may have this name already; the user's key makes it unique.
    for name in (user.get_username(), f"{user.get_username()} (user {user.pk})"):
        try:
            with transaction.atomic():
                return Principal.objects.create(name=name[:190], user=user)
        except IntegrityError:
            principal = Principal.objects.filter(user=user).first()
            if principal is not None:
                return principal
    raise NotPermittedError("No principal could be made for this user.")


def _expiry(auth: Any) -> datetime | None:
    """
    When a credential of another package ends: a JWT's ``exp`` (RFC 7519 §4.1.4), or a model's ``expires``.
    """
    expires = getattr(auth, "expires", None)
    if isinstance(expires, datetime):
        return expires
    get = getattr(auth, "get", None)
    exp = get("exp") if callable(get) else None
    if isinstance(exp, (int, float)) and not isinstance(exp, bool):
        return datetime.fromtimestamp(exp, tz=UTC)
    return None
