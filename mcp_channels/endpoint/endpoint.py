"""
One mounted URL with one server.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

import mcp_types as types
from channels.db import database_sync_to_async
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParserError

from mcp_channels import sdk
from mcp_channels.auth.challenges import SCOPE_NAME, bearer_challenge, metadata_url, resource_url
from mcp_channels.auth.principals import Caller, NotAuthenticatedError, NotPermittedError, authenticate, prefetch
from mcp_channels.batching import Batcher
from mcp_channels.conf import settings
from mcp_channels.endpoint.request import Credentials, Refusal
from mcp_channels.endpoint.upstream import Upstream
from mcp_channels.listen import frames
from mcp_channels.listen.checking import Verdict
from mcp_channels.listen.filter import Filter
from mcp_channels.listen.stream import Stream
from mcp_channels.resources import authorize, subscribe
from mcp_channels.resources.subscribe import CanSubscribe
from mcp_channels.resources.visible import Memory
from mcp_channels.server import MCPServer

_T = TypeVar("_T")

ENDPOINTS: Final["WeakSet[Endpoint]"] = WeakSet()
"""The endpoints of this process, for the system checks to look at."""


class Asked(NamedTuple):
    """
    A request to be let in; ``filter`` is None if it doesn't listen.
    """

    request: HttpRequest
    filter: Filter | None


class Admitted(NamedTuple):
    """
    A caller who may call, and those of the URIs asked for that are rows which they may read.
    """

    caller: Caller
    rows: frozenset[str]


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
        can_subscribe: CanSubscribe | None = None,
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
        self._decisions: Batcher[Asked, Admitted] = Batcher(self._decide)
        self._can_subscribe = can_subscribe
        self._allow_anonymous = allow_anonymous
        self._authentication_classes = authentication_classes
        server.is_served = True
        ENDPOINTS.add(self)

    @property
    def authentication_classes(self) -> Sequence[Any]:
        """
        DRF authentication classes, or their dotted paths: its own, or the setting's.
        """
        classes = self._authentication_classes
        return settings.authentication_classes if classes is None else classes

    @property
    def allows_anonymous(self) -> bool:
        """
        Whether callers without credentials are served.
        """
        return settings.allow_anonymous if self._allow_anonymous is None else self._allow_anonymous

    def authenticate(self, request: HttpRequest) -> Caller:
        """
        Who is calling. Blocks.

        Raises:
            Refusal: 400, 401 or 403.
        """
        try:
            caller = authenticate(
                request,
                self.authentication_classes,
                allow_anonymous=self.allows_anonymous,
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

    async def admit(self, request: HttpRequest, asked: Filter | None = None) -> Admitted:
        """
        Who is calling, and which of the rows asked for they may read. Requests that arrive while the database is busy
        with others are decided on together.

        Raises:
            Refusal: 401 or 403.
        """
        return await self._decisions.call(Asked(request, asked))

    async def check(self, stream: Stream, credentials: Credentials) -> Verdict | None:
        """
        Look whether an open stream may still listen, by the rule that let it in.
        """
        asked = Filter.of(stream.topics)
        try:
            admitted = await self.admit(credentials.request(), asked)
        except Refusal:
            return None
        granted = await self.honour(admitted, asked)
        kept = set(granted.resource_subscriptions)
        lost = [uri for uri in asked.resource_subscriptions if uri not in kept]
        if lost:
            # A row that was deleted may come again under its URI, and is then heard of.
            kept |= await database_sync_to_async(authorize.absent)(self.server.model_resources, admitted.caller, lost)
        return Verdict(set(asked.narrow(lists=granted.lists, uris=kept).topics()), seconds_until(admitted.caller))

    async def honour(self, admitted: Admitted, asked: Filter) -> Filter:
        """
        What of a filter the caller is granted.
        """
        server, uris = self.server, asked.resource_subscriptions
        readable: set[str] = set()
        if uris and "resources" in server.offers:
            readable = await server.readable(admitted.caller, uris, checked=admitted.rows)
            readable = await subscribe.allowed(
                self._can_subscribe, server.model_resources, admitted.caller.principal, readable
            )
        return asked.narrow(lists=server.offers, uris=readable)

    def _decide(self, batch: Sequence[Asked]) -> list[Admitted | Exception]:
        prefetch([asked.request for asked in batch], self.authentication_classes)
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
        memory: Memory = {}

        def together(caller: Caller, uris: Sequence[str]) -> frozenset[str]:
            key = _identity(caller)
            if uris and key not in known:
                known[key] = authorize.readable(resources, caller, list(wanted[key]), memory=memory)
            return frozenset(uri for uri in uris if uri in known[key])

        return together


def seconds_until(caller: Caller) -> float | None:
    """
    Seconds until the caller's credential ends; None: it doesn't.
    """
    return None if caller.expires_at is None else (caller.expires_at - datetime.now(UTC)).total_seconds()


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
