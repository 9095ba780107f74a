"""
The endpoint as a Django view, for a project on WSGI: everything but ``subscriptions/listen``.

A view answers with one body, so a listen request is answered -32601, and ``server/discover`` promises no notifications.
Each request stands alone: there are no sessions, so clients of older revisions are served without one.
"""

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from mcp_channels.conf import settings
from mcp_channels.endpoint.endpoint import Endpoint
from mcp_channels.endpoint.request import Refusal, check_host, check_origin
from mcp_channels.endpoint.upstream import serve_once
from mcp_channels.server import Call, MCPServer


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

    endpoint: Endpoint | None = None
    """What the attributes above make; ``as_view`` sets it."""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """
        As Django's.

        Raises:
            TypeError: the server is not an ``MCPServer``.
        """
        names = ("server", "name", "allow_anonymous", "authentication_classes")
        options = {name: initkwargs.get(name, getattr(cls, name)) for name in names}
        return super().as_view(**{**initkwargs, "endpoint": Endpoint(**options)})

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """
        Answer one JSON-RPC message.
        """
        endpoint = self.endpoint
        assert endpoint is not None  # as_view has set it
        try:
            check_host(request)
            check_origin(request, settings.allowed_origins)
            call = Call(endpoint.authenticate(request), streams=False)
            if len(request.body) > settings.max_body_size:
                raise Refusal(413, types.INVALID_REQUEST, f"The body is longer than {settings.max_body_size} bytes")
        except Refusal as refusal:
            return HttpResponse(
                refusal.body(), status=refusal.status, content_type="application/json", headers=refusal.headers
            )
        status, headers, body = async_to_sync(serve_once)(endpoint.server, _scope(request), request.body, call)
        content_type = headers.pop("content-type", "text/plain")
        return HttpResponse(body, status=status, content_type=content_type, headers=headers)


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
