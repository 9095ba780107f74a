"""
One mounted URL with one server.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, TypeVar

import mcp_types as types
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParserError

from mcp_channels import sdk
from mcp_channels.auth.challenges import SCOPE_NAME, bearer_challenge, metadata_url, resource_url
from mcp_channels.auth.principals import Caller, NotAuthenticatedError, NotPermittedError, authenticate, prefetch
from mcp_channels.conf import settings
from mcp_channels.endpoint.admissions import Admissions, Admitted, Asked
from mcp_channels.endpoint.request import Refusal
from mcp_channels.endpoint.upstream import Upstream
from mcp_channels.listen import frames
from mcp_channels.listen.filter import Filter
from mcp_channels.resources import authorize
from mcp_channels.server import MCPServer

_T = TypeVar("_T")


class Endpoint:
    """
    What all requests to one URL share: its server, who may call, and the way in.
    """

    def __init__(
        self,
        server: MCPServer,
        *,
        name: str | None = None,
        allow_anonymous: bool | None = None,
        authentication_classes: Sequence[Any] | None = None,
        scope: str | Collection[str] = (),
    ) -> None:
        """
        See ``MCPConsumer.as_asgi``.

        Raises:
            TypeError: the server is not an ``MCPServer``.
            ValueError: a scope's name has characters that OAuth doesn't allow.
        """
        if not isinstance(server, MCPServer):
            raise TypeError(f"server must be an mcp_channels.MCPServer, not {type(server).__name__}")
        self.server = server
        self.name = name or server.name
        self.scopes = scope_names(scope)
        self.upstream = Upstream(server, max_body_size=settings.max_body_size)
        self.server_info = frames.dumps(sdk.server_info(server))
        self.admissions = Admissions(self._decide)
        self._allow_anonymous = allow_anonymous
        self._authentication_classes = authentication_classes
        server.is_served = True

    def authenticate(self, request: HttpRequest) -> Caller:
        """
        Who is calling. Blocks.

        Raises:
            Refusal: 400, 401 or 403.
        """
        anonymous = self._allow_anonymous
        try:
            caller = authenticate(
                request,
                self._classes(),
                allow_anonymous=settings.allow_anonymous if anonymous is None else anonymous,
                audiences=(resource_url(request), *settings.audiences),
            )
        except NotAuthenticatedError as error:
            raise self._challenge(
                request, 401, str(error), "invalid_token" if error.is_shown else None, *error.schemes
            ) from None
        except NotPermittedError as error:
            raise Refusal(403, types.INVALID_REQUEST, str(error)) from None
        except BadRequest as error:
            raise Refusal(400, types.INVALID_REQUEST, str(error)) from None
        except (SuspiciousOperation, MultiPartParserError):
            raise Refusal(400, types.INVALID_REQUEST, "The request can't be read") from None
        if not all(map(caller.has_scope, self.scopes)):
            if caller.is_anonymous:
                raise self._challenge(request, 401, "Authentication credentials were not provided.")
            needed = f"The endpoint needs the scope {' '.join(self.scopes)}."
            raise self._challenge(request, 403, needed, "insufficient_scope")
        return caller

    def _challenge(
        self, request: HttpRequest, status: int, message: str, error: str | None = None, *others: str
    ) -> Refusal:
        """
        A refusal that tells how to be let in (RFC 6750 §3; MCP 2026-07-28 basic/authorization). Bearer comes first: MCP
        clients look for it.
        """
        bearer = bearer_challenge(
            error=error,
            scopes=self.scopes,
            resource_metadata=metadata_url(request) if settings.authorization_servers else None,
        )
        return Refusal(
            status, types.INVALID_REQUEST, message, headers={"WWW-Authenticate": ", ".join((bearer, *others))}
        )

    async def honour(self, admitted: Admitted, asked: Filter) -> Filter:
        """
        What of a filter the caller is granted.
        """
        server, uris = self.server, asked.resource_subscriptions
        readable: set[str] = set()
        if uris and "resources" in server.offers:
            readable = await server.readable(admitted.caller, uris, checked=admitted.rows)
        return asked.narrow(lists=server.offers, uris=readable)

    def _classes(self) -> Sequence[Any]:
        classes = self._authentication_classes
        return settings.authentication_classes if classes is None else classes

    def _decide(self, batch: Sequence[Asked]) -> list[Admitted | Exception]:
        prefetch([asked.request for asked in batch], self._classes())
        callers = [self._try(self.authenticate, asked.request) for asked in batch]
        readable = self._readable(batch, callers)
        decisions: list[Admitted | Exception] = []
        for asked, caller in zip(batch, callers, strict=True):
            if isinstance(caller, Exception):
                decisions.append(caller)
                continue
            rows = self._try(readable, caller, asked.filter.resource_subscriptions if asked.filter else ())
            decisions.append(rows if isinstance(rows, Exception) else Admitted(caller, rows))
        return decisions

    @staticmethod
    def _try(function: Callable[..., _T], *args: Any) -> "_T | Exception":
        # One request's trouble is not the others'.
        try:
            return function(*args)
        except Exception as error:  # it becomes the answer to this request
            return error

    def _readable(
        self, batch: Sequence[Asked], callers: Sequence[Caller | Exception]
    ) -> Callable[[Caller, Sequence[str]], frozenset[str]]:
        """
        What tells which rows a caller of this batch may read. Those who call as the same principal are authorised
        together, for all that they ask.
        """
        resources = self.server.model_resources

        def one_by_one(caller: Caller, uris: Sequence[str]) -> frozenset[str]:
            return frozenset(authorize.readable(resources, caller, uris)) if uris else frozenset()

        # Permission classes may look at the request, and no two requests are the same.
        if any(resource.permission_classes for resource in resources):
            return one_by_one
        wanted: dict[Hashable, dict[str, None]] = {}
        for asked, caller in zip(batch, callers, strict=True):
            if asked.filter is not None and isinstance(caller, Caller):
                wanted.setdefault(_identity(caller), {}).update(dict.fromkeys(asked.filter.resource_subscriptions))
        known: dict[Hashable, set[str]] = {}

        def together(caller: Caller, uris: Sequence[str]) -> frozenset[str]:
            key = _identity(caller)
            if uris and key not in known:
                known[key] = authorize.readable(resources, caller, list(wanted[key]))
            return frozenset(uri for uri in uris if uri in known[key])

        return together


def scope_names(scope: str | Collection[str] | None) -> tuple[str, ...]:
    """
    The names in a ``scope`` argument: one, several, or none.

    Raises:
        ValueError: a name has characters that OAuth doesn't allow (RFC 6749 §3.3).
    """
    names = (scope,) if isinstance(scope, str) else tuple(dict.fromkeys(scope or ()))
    for name in names:
        if not isinstance(name, str) or not SCOPE_NAME.fullmatch(name):
            raise ValueError(f"scope has {name!r}: a name is printable ASCII without blanks, quotes and backslashes")
    return names


def _identity(caller: Caller) -> Hashable:
    return caller.principal.pk, caller.principal.name, caller.scopes
