"""
One mounted URL with one server.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import mcp_types as types
from django.http import HttpRequest

from mcp_channels import sdk
from mcp_channels.auth.principals import Caller, NotAuthenticatedError, NotPermittedError, authenticate, prefetch
from mcp_channels.conf import settings
from mcp_channels.endpoint.admissions import Admissions, Admitted, Asked
from mcp_channels.endpoint.request import Refusal
from mcp_channels.endpoint.upstream import Upstream
from mcp_channels.listen import frames
from mcp_channels.listen.filter import Filter
from mcp_channels.resources import authorize
from mcp_channels.server import MCPServer


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
    ) -> None:
        """
        See ``MCPConsumer.as_asgi``.

        Raises:
            TypeError: the server is not an ``MCPServer``.
        """
        if not isinstance(server, MCPServer):
            raise TypeError(f"server must be an mcp_channels.MCPServer, not {type(server).__name__}")
        self.server = server
        self.name = name or server.name
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
            Refusal: 401 or 403.
        """
        anonymous = self._allow_anonymous
        try:
            return authenticate(
                request,
                self._classes(),
                allow_anonymous=settings.allow_anonymous if anonymous is None else anonymous,
            )
        except NotAuthenticatedError as error:
            raise Refusal(
                401, types.INVALID_REQUEST, str(error), headers={"WWW-Authenticate": error.challenge}
            ) from None
        except NotPermittedError as error:
            raise Refusal(403, types.INVALID_REQUEST, str(error)) from None

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
        known: dict[Hashable, frozenset[str]] = {}
        decisions: list[Admitted | Exception] = []
        for asked in batch:
            try:
                caller = self.authenticate(asked.request)
                decisions.append(Admitted(caller, self._rows(caller, asked.filter, known)))
            except Exception as error:  # one request's trouble is not the others'
                decisions.append(error)
        return decisions

    def _rows(self, caller: Caller, asked: Filter | None, known: dict[Hashable, frozenset[str]]) -> frozenset[str]:
        resources = self.server.model_resources
        if asked is None or not asked.resource_subscriptions or not resources:
            return frozenset()
        # Permission classes may look at the request, and no two requests are the same.
        if any(resource.permission_classes for resource in resources):
            return frozenset(authorize.readable(resources, caller, asked.resource_subscriptions))
        key = (caller.principal.pk, caller.principal.name, caller.scopes, asked.resource_subscriptions)
        if key not in known:
            known[key] = frozenset(authorize.readable(resources, caller, asked.resource_subscriptions))
        return known[key]
