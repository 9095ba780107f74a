"""
The endpoint as a Django view, for a project on WSGI: everything but ``subscriptions/listen``. And the view that tells
OAuth clients of an endpoint.

A view answers with one body, so a listen request is answered -32601, and ``server/discover`` promises no notifications.
Each request stands alone: there are no sessions, so clients of older revisions are served without one.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured, RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from mcp_channels.auth.challenges import WELL_KNOWN, resource_url
from mcp_channels.conf import settings
from mcp_channels.endpoint.endpoint import Endpoint, scope_names
from mcp_channels.endpoint.request import Refusal, check_host, check_origin, failure
from mcp_channels.endpoint.upstream import serve_once
from mcp_channels.server import Call, MCPServer

METADATA_HEADERS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD",
    "Access-Control-Allow-Headers": "*",
}

logger = logging.getLogger("mcp_channels.endpoint")


@method_decorator(csrf_exempt, name="dispatch")
class MCPView(View):
    """
    Serves an MCP server without streams: ``path("mcp", MCPView.as_view(server=server))``.

    CSRF is DRF's business: its session authentication asks for the token, bearer tokens need none.
    """

    http_method_names = ["post"]

    server: MCPServer | None = None
    """The server."""

    name: str | None = None
    """How the endpoint is called in logs."""

    allow_anonymous: bool | None = None
    """Whether callers without credentials are served; None: ``ALLOW_ANONYMOUS``."""

    authentication_classes: Any = None
    """DRF authentication classes; None: ``AUTHENTICATION_CLASSES``."""

    scope: Any = ()
    """The scope, or a list of scopes, that every caller needs."""

    endpoint: Endpoint | None = None
    """What the attributes above make; ``as_view`` sets it."""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """
        As Django's.

        Raises:
            TypeError: the server is not an ``MCPServer``.
            ValueError: a scope's name has characters that OAuth doesn't allow.
        """
        names = ("server", "name", "allow_anonymous", "authentication_classes", "scope")
        options = {name: initkwargs.get(name, getattr(cls, name)) for name in names}
        return super().as_view(**{**initkwargs, "endpoint": Endpoint(**options)})

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """
        Answer one JSON-RPC message.
        """
        endpoint = self.endpoint
        assert endpoint is not None  # as_view has set it
        try:
            return self._answer(endpoint, request)
        except Refusal as refusal:
            return _refused(refusal)
        except Exception as error:  # the edge of one request: Django's own page for errors would show its headers
            logger.exception("A request to endpoint %s failed", endpoint.name)
            return _refused(failure(error))

    @staticmethod
    def _answer(endpoint: Endpoint, request: HttpRequest) -> HttpResponse:
        check_host(request)
        check_origin(request, settings.allowed_origins)
        call = Call(endpoint.authenticate(request), streams=False)
        try:
            body = request.body
        except RequestDataTooBig:
            raise Refusal(413, types.INVALID_REQUEST, "The body is longer than DATA_UPLOAD_MAX_MEMORY_SIZE") from None
        if len(body) > settings.max_body_size:
            raise Refusal(413, types.INVALID_REQUEST, f"The body is longer than {settings.max_body_size} bytes")
        status, headers, answer = async_to_sync(serve_once)(endpoint.server, _scope(request), body, call)
        content_type = headers.pop("content-type", "text/plain")
        return HttpResponse(answer, status=status, content_type=content_type, headers=headers)


class ProtectedResourceView(View):
    """
    Tells OAuth clients who issues tokens for an endpoint (RFC 9728; MCP 2026-07-28
    basic/authorization/authorization-server-discovery). Beside an endpoint at ``/mcp``::

        path(".well-known/oauth-protected-resource/mcp", ProtectedResourceView.as_view(server=server))

    404 where ``AUTHORIZATION_SERVERS`` is empty.
    """

    http_method_names = ["get", "head", "options"]

    server: MCPServer | None = None
    """The endpoint's server."""

    scope: Any = ()
    """The endpoint's own scope, or a list of its scopes."""

    path: str | None = None
    """The endpoint's path; None: what follows ``/.well-known/oauth-protected-resource`` in the view's own URL."""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """
        As Django's.

        Raises:
            TypeError: the server is not an ``MCPServer``.
            ValueError: a scope's name has characters that OAuth doesn't allow.
        """
        server = initkwargs.get("server", cls.server)
        if not isinstance(server, MCPServer):
            raise TypeError(f"server must be an mcp_channels.MCPServer, not {type(server).__name__}")
        scope_names(initkwargs.get("scope", cls.scope))
        return super().as_view(**initkwargs)

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """
        The metadata, as JSON.
        """
        issuers = settings.authorization_servers
        if not issuers:
            return HttpResponse(status=404, headers=METADATA_HEADERS)
        assert self.server is not None  # as_view has checked it
        # A refresh token is the client's business, no requirement of a resource.
        scopes = {*scope_names(self.scope), *self.server.scopes} - {"offline_access"}
        metadata = {
            "resource": resource_url(request, self._path(request)),
            "authorization_servers": issuers,
            "scopes_supported": sorted(scopes),
            "bearer_methods_supported": ["header"],
            "resource_name": self.server.title or self.server.name,
        }
        return JsonResponse(metadata, headers=METADATA_HEADERS)

    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """
        What a browser asks before it asks for the metadata.
        """
        return HttpResponse(status=204, headers={**METADATA_HEADERS, "Allow": "GET, HEAD, OPTIONS"})

    def _path(self, request: HttpRequest) -> str:
        if self.path is not None:
            return self.path
        prefix, found, own = request.path.partition(WELL_KNOWN)
        if not found:
            raise ImproperlyConfigured(f"{type(self).__name__} needs a path: its URL doesn't name the endpoint's.")
        return prefix + own


def _refused(refusal: Refusal) -> HttpResponse:
    return HttpResponse(refusal.body(), status=refusal.status, content_type="application/json", headers=refusal.headers)


def _scope(request: HttpRequest) -> Mapping[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": request.scheme or "http",
        "path": request.path,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (name.lower().encode("latin-1"), value.strip().encode("latin-1")) for name, value in request.headers.items()
        ],
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        "server": (request.get_host(), None),
    }
