"""
What a credential says of itself, whichever package it is of: a JWT's claims (RFC 7519, RFC 9068), or the attributes of
a token's row, such as django-oauth-toolkit's.
"""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from django.http import HttpRequest
from django.utils import timezone

_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def expires_at(credential: Any) -> datetime | None:
    """
    When it ends: a row's ``expires_at``, ``expires`` or ``expiry``, or a JWT's ``exp`` (RFC 7519 §4.1.4). None: it
    doesn't say.
    """
    for name in ("expires_at", "expires", "expiry"):
        value = getattr(credential, name, None)
        if isinstance(value, datetime):
            return _aware(value)
    exp = claim(credential, "exp")
    if isinstance(exp, (int, float)) and not isinstance(exp, bool):
        try:
            return datetime.fromtimestamp(exp, tz=UTC)
        except (OverflowError, ValueError, OSError):  # beyond what a datetime can say
            return None
    return None


def session_ends_at(request: HttpRequest) -> datetime | None:
    """
    When the request's session ends, or None if it has none.
    """
    session: Any = getattr(request, "session", None)
    return None if session is None else _aware(session.get_expiry_date())


def scopes(credential: Any) -> frozenset[str] | None:
    """
    The names of the scopes that it is limited to: a row's ``scope``, or a JWT's ``scope`` (RFC 8693 §4.2) or ``scp``.
    None: it doesn't say, so it isn't limited.
    """
    value = getattr(credential, "scope", None)
    if not isinstance(value, str):
        value = next((found for name in ("scope", "scp") if (found := claim(credential, name)) is not None), None)
    return None if value is None else frozenset(name for text in _texts(value) for name in text.split())


def audiences(credential: Any) -> tuple[str, ...] | None:
    """
    Whom it is for: a JWT's ``aud`` (RFC 7519 §4.1.3), or a row's resource indicators (RFC 8707). None: for anybody.
    """
    resource = getattr(credential, "resource", None)
    # A row that names no resource is good for all, and an attribute of another type is something else.
    value = resource if isinstance(resource, (list, tuple)) and resource else claim(credential, "aud")
    return None if value is None else tuple(_texts(value))


def is_for(credential: Any, accepted: Iterable[str]) -> bool:
    """
    Whether it is for one of the ``accepted`` audiences, or for anybody. URLs are compared as RFC 3986 §6.2 says, and a
    slash at their end makes no difference.
    """
    named = audiences(credential)
    return named is None or not {_canonical(name) for name in named}.isdisjoint(map(_canonical, accepted))


def claim(credential: Any, name: str) -> Any:
    """
    A claim of a JWT, or None.
    """
    get = getattr(credential, "get", None)
    return get(name) if callable(get) else None


def _aware(moment: datetime) -> datetime:
    # Without USE_TZ, rows have naive ones.
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def _texts(value: Any) -> Collection[str]:
    """
    The texts of a claim that is one text or a list of them; nothing in one of another type.
    """
    if isinstance(value, str):
        return (value,)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, (list, tuple)) else ()


def _canonical(audience: str) -> str:
    try:
        parts = urlsplit(audience)
    except ValueError:
        return audience
    if not parts.netloc:
        return audience
    host = parts.netloc.lower().removesuffix(_DEFAULT_PORTS.get(parts.scheme, ""))
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), parts.query, parts.fragment))
