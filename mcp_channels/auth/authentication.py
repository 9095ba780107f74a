"""
Bearer tokens (RFC 6750) as a Django REST framework authentication class, for the endpoint and for any other view.
"""

from datetime import timedelta
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser
from django.db.models import Q
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from mcp_channels.models import AccessToken, digest

REALM: Final = "mcp"

LAST_USED_RESOLUTION: Final = timedelta(minutes=1)
"""How exact ``last_used_at`` is: most requests save a write."""


class BearerTokenAuthentication(BaseAuthentication):
    """
    Takes ``Authorization: Bearer <token>``; ``request.user`` becomes the principal's user, or anonymous for a service,
    and ``request.auth`` the ``AccessToken``.

    Without such a header it leaves the request to the next class. A token that is unknown, revoked or expired, or whose
    principal or user is not active, is refused in the same words.
    """

    def authenticate(self, request: Request) -> tuple[Any, AccessToken] | None:
        """
        See the class.
        """
        scheme, _, value = get_authorization_header(request).partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        now = timezone.now()
        token = self._find(value.strip())
        if token is None or not token.is_good(now):
            raise _rejected()
        principal = token.principal
        if not principal.is_active or (principal.user is not None and not principal.user.is_active):
            raise _rejected()
        _touch(token)
        return principal.user or AnonymousUser(), token

    def authenticate_header(self, request: Request) -> str:
        """
        The challenge of a 401 (RFC 6750 §3).
        """
        return f'Bearer realm="{REALM}"'

    def _find(self, value: bytes) -> AccessToken | None:
        try:
            text = value.decode("ascii")
        except UnicodeDecodeError:
            return None
        return AccessToken.objects.select_related("principal__user").filter(digest=digest(text)).first()


def _rejected() -> AuthenticationFailed:
    return AuthenticationFailed("The token is not valid.")


def _touch(token: AccessToken) -> None:
    now = timezone.now()
    if token.last_used_at is not None and now - token.last_used_at < LAST_USED_RESOLUTION:
        return
    unused = Q(last_used_at=None) | Q(last_used_at__lt=now - LAST_USED_RESOLUTION)
    AccessToken.objects.filter(unused, pk=token.pk).update(last_used_at=now)
