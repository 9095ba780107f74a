"""
Bearer tokens (RFC 6750) as a Django REST framework authentication class, for the endpoint and for any other view.
"""

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from mcp_channels.auth.challenges import bearer_challenge
from mcp_channels.models import TOKEN_PREFIX, AccessToken

LAST_USED_RESOLUTION: Final = timedelta(minutes=1)
"""How exact ``last_used_at`` is: most requests save a write."""


class BearerTokenAuthentication(BaseAuthentication):
    """
    Takes ``Authorization: Bearer <token>``; ``request.user`` becomes the principal's user, or anonymous for a service,
    and ``request.auth`` the ``AccessToken``.

    Without such a header, or where the token can't be one of ours (they all start with ``mcp_``), it leaves the request
    to the next class. A token that is unknown, revoked or expired, or whose principal or user is not active, is refused
    in the same words.
    """

    @classmethod
    @sensitive_variables()
    def prefetch(cls, requests: Collection[HttpRequest]) -> None:
        """
        Look up the tokens of many requests in one go; ``authenticate`` finds them there. Blocks.
        """
        wanted = {request: value for request in requests if (value := _bearer(request))}
        if not wanted:
            return
        found = AccessToken.objects.find(wanted.values())
        now = timezone.now()
        _touch([token for token in found.values() if token.is_good(now)])
        for request, value in wanted.items():
            setattr(request, _FOUND, found.get(value))

    @sensitive_variables()
    def authenticate(self, request: Request) -> tuple[Any, AccessToken] | None:
        """
        See the class.
        """
        value = _bearer(request)
        if value is None:
            return None
        # DRF's request stands before Django's.
        asked: Any = getattr(request, "_request", request)
        if not hasattr(asked, _FOUND):
            self.prefetch([asked])
        token: AccessToken | None = getattr(asked, _FOUND, None)
        if token is None or not token.is_good(timezone.now()):
            raise _rejected()
        principal = token.principal
        if not principal.is_active or (principal.user is not None and not principal.user.is_active):
            raise _rejected()
        return principal.user or AnonymousUser(), token

    def authenticate_header(self, request: Request) -> str:
        """
        The challenge of a 401 (RFC 6750 §3).
        """
        return bearer_challenge()


_FOUND = "_mcp_channels_token"


def _bearer(request: Any) -> str | None:
    """
    The token of ours that a request shows, or None if it shows none.
    """
    scheme, _, value = get_authorization_header(request).partition(b" ")
    token = value.strip().decode("latin-1")
    return token if scheme.lower() == b"bearer" and token.startswith(TOKEN_PREFIX) else None


def _rejected() -> AuthenticationFailed:
    return AuthenticationFailed("The token is not valid.")


def _touch(tokens: Iterable[AccessToken]) -> None:
    now = timezone.now()
    stale = [
        token.pk for token in tokens if token.last_used_at is None or now - token.last_used_at >= LAST_USED_RESOLUTION
    ]
    if stale:
        unused = Q(last_used_at=None) | Q(last_used_at__lte=now - LAST_USED_RESOLUTION)
        AccessToken.objects.filter(unused, pk__in=stale).update(last_used_at=now)
