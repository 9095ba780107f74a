"""
The endpoint as an ASGI application for Channels' routing.

``MCPConsumer`` owns its ``__call__``: the stock HTTP consumer doesn't see a client leave while a handler runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import mcp_types as types
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from channels.consumer import AsyncConsumer
from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest

from mcp_channels import sdk
from mcp_channels.auth.principals import Caller, NotAuthenticatedError, NotPermittedError, authenticate
from mcp_channels.conf import settings
from mcp_channels.endpoint import request as incoming
from mcp_channels.endpoint.flow import flow_of
from mcp_channels.endpoint.request import ClientGoneError, ListenRequest, Refusal
from mcp_channels.endpoint.shutdown import watch_for_shutdown
from mcp_channels.endpoint.upstream import Upstream, replay
from mcp_channels.listen import frames
from mcp_channels.listen.filter import Filter
from mcp_channels.listen.hub import Hub, HubFullError
from mcp_channels.listen.stream import Limits, Stream
from mcp_channels.resources import authorize
from mcp_channels.server import Call, MCPServer

STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

CORS_HEADERS: Final = (
    "authorization, content-type, accept, mcp-protocol-version, mcp-method, mcp-name, mcp-session-id, last-event-id"
)

LAST_WORD_TIMEOUT: Final = 1.0
"""Seconds for the empty body that ends a response; a socket that takes nothing is left to the server."""

logger = logging.getLogger("mcp_channels.endpoint")


class Endpoint:
    """
    One mounted URL with one server: what all its requests share.
    """

    def __init__(
        self,
        server: MCPServer,
        *,
        name: str | None = None,
        allow_anonymous: bool | None = None,
        authentication_classes: Sequence[Any] | None = None,
    ) -> None:
        if not isinstance(server, MCPServer):
            raise TypeError(f"server must be an mcp_channels.MCPServer, not {type(server).__name__}")
        self.server = server
        self.name = name or server.name
        self._allow_anonymous = allow_anonymous
        self._authentication_classes = authentication_classes
        self.upstream = Upstream(server, max_body_size=settings.max_body_size)
        self.server_info = frames.dumps(sdk.server_info(server))
        server.is_served = True

    def authenticate(self, request: HttpRequest) -> Caller:
        """
        Who is calling. Blocks.

        Raises:
            Refusal: 401 or 403.
        """
        classes = self._authentication_classes
        anonymous = self._allow_anonymous
        try:
            return authenticate(
                request,
                settings.authentication_classes if classes is None else classes,
                allow_anonymous=settings.allow_anonymous if anonymous is None else anonymous,
            )
        except NotAuthenticatedError as error:
            raise Refusal(
                401, types.INVALID_REQUEST, str(error), headers={"WWW-Authenticate": error.challenge}
            ) from None
        except NotPermittedError as error:
            raise Refusal(403, types.INVALID_REQUEST, str(error)) from None

    def admit(self, request: HttpRequest, asked: Filter) -> tuple[Caller, set[str]]:
        """
        Who is calling, and which of the URIs asked for are rows that they may read. Blocks: all of a listen request's
        business with the database, in one go.
        """
        who = self.authenticate(request)
        if "resources" not in self.server.offers:
            return who, set()
        return who, authorize.readable(self.server.model_resources, who, asked.resource_subscriptions)


class MCPConsumer(AsyncConsumer):
    """
    Serves an MCP server over Streamable HTTP (MCP 2026-07-28 basic/transports/streamable-http): listen streams itself,
    everything else by the SDK.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @classmethod
    def as_asgi(cls, **initkwargs: Any) -> Any:
        """
        The ASGI application to mount under a path.

        Args:
            server: the ``MCPServer``.
            name: how the endpoint is called in logs; the server's name, unless given.
            allow_anonymous: whether callers without credentials are served; None: ``ALLOW_ANONYMOUS``.
            authentication_classes: DRF authentication classes; None: ``AUTHENTICATION_CLASSES``.
        """
        endpoint = Endpoint(**initkwargs)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await cls(endpoint)(scope, receive, send)

        app.consumer_class = cls  # type: ignore[attr-defined]  # Channels' own marks
        app.consumer_initkwargs = initkwargs  # type: ignore[attr-defined]
        return app

    async def __call__(self, scope: Any, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """
        Answer one request.
        """
        if scope["type"] != "http":
            raise ValueError(f"MCPConsumer serves http, not {scope['type']}")
        watch_for_shutdown(send)
        exchange = _Exchange(self.endpoint, incoming.cleaned(scope), receive, send)
        try:
            await exchange.answer()
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except ClientGoneError:
            pass
        except Exception as error:  # the edge of one request: the log has the trace, the client doesn't
            logger.exception("A request to endpoint %s failed", self.endpoint.name)
            if exchange.started:
                raise
            if isinstance(error, (DatabaseError, InterfaceError)):
                await exchange.refuse(_busy("The database is not available"))
            else:
                await exchange.refuse(Refusal(500, types.INTERNAL_ERROR, "Internal error"))


class _Exchange:
    """
    One request and its response.
    """

    def __init__(
        self, endpoint: Endpoint, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        self.endpoint = endpoint
        self.scope = scope
        self.receive = receive
        self.started = False
        self._send: Any = send
        self._origin: str | None = None

    async def answer(self) -> None:
        request = incoming.django_request(self.scope)
        self._origin = incoming.check_origin(request, settings.allowed_origins)
        method = self.scope["method"]
        if method == "OPTIONS" and self._origin is not None:
            await self._preflight()
        elif method in ("GET", "DELETE") and incoming.header(self.scope, incoming.SESSION_HEADER) is not None:
            await self._pass_on(await self._authenticate(request), self.receive)
        elif method != "POST":
            raise Refusal(405, None, headers={"Allow": "POST"})
        elif incoming.may_be_listen(self.scope):
            await self._answer_listen(request)
        else:
            await self._pass_on(await self._authenticate(request), self.receive)

    async def refuse(self, refusal: Refusal) -> None:
        body = refusal.body()
        headers = {**refusal.headers, "Content-Length": str(len(body))}
        if body:
            headers["Content-Type"] = "application/json"
        await self._start(refusal.status, [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _preflight(self) -> None:
        headers = [
            (b"access-control-allow-methods", b"POST, GET, DELETE"),
            (b"access-control-allow-headers", CORS_HEADERS.encode()),
            (b"access-control-max-age", b"600"),
        ]
        await self._start(204, headers)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _authenticate(self, request: HttpRequest) -> Caller:
        caller: Caller = await database_sync_to_async(self.endpoint.authenticate)(request)
        return caller

    async def _pass_on(self, caller: Caller, receive: Callable[[], Awaitable[Any]]) -> None:
        send = self._send if self._origin is None else self._send_with_cors
        await self.endpoint.upstream(self.scope, receive, send, call=Call(caller, streams=True))

    async def _send_with_cors(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *self._cors()]}
        await self._send(message)

    def _cors(self) -> list[tuple[bytes, bytes]]:
        if self._origin is None:
            return []
        return [
            (b"access-control-allow-origin", self._origin.encode("latin-1")),
            (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
            (b"vary", b"Origin"),
        ]

    async def _start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self._cors()]})

    # Listening

    async def _answer_listen(self, request: HttpRequest) -> None:
        try:
            body = await incoming.read_body(self.scope, self.receive, settings.max_body_size)
            listen = incoming.read_listen(self.scope, body, max_entries=settings.max_filter_entries)
        except Refusal:
            # Who may not call at all is told that first, whatever else is wrong.
            await self._authenticate(request)
            raise
        if listen is None:
            await self._pass_on(await self._authenticate(request), replay(body, self.receive))
            return
        del body
        caller, rows = await database_sync_to_async(self.endpoint.admit)(request, listen.filter)
        stream = await self._open(listen, caller, rows)
        expires_at = caller.expires_at
        del listen, caller, rows, request
        await self._serve(*stream, expires_at=expires_at)

    async def _open(self, listen: ListenRequest, caller: Caller, rows: set[str]) -> tuple[Any, Filter]:
        server = self.endpoint.server
        asked = listen.filter
        uris: set[str] = set()
        if "resources" in server.offers and asked.resource_subscriptions:
            uris = await server.readable(caller, asked.resource_subscriptions, checked=rows)
        return listen.id, asked.narrow(lists=server.offers, uris=uris)

    async def _serve(self, listen_id: str | int, honoured: Filter, *, expires_at: datetime | None) -> None:
        layer = get_channel_layer(settings.channel_layer)
        if layer is None:
            raise _busy(f"No channel layer {settings.channel_layer!r} is configured", listen_id)
        hub = Hub.current(layer)
        stream = Stream(
            listen_id,
            honoured,
            endpoint=self.endpoint.name,
            server_info=self.endpoint.server_info,
            limits=_limits(),
            expires_in=None if expires_at is None else (expires_at - datetime.now(UTC)).total_seconds(),
        )
        try:
            try:
                await hub.attach(stream, honoured.topics(), max_streams=settings.max_streams)
            except HubFullError:
                raise _busy("The server holds as many streams as it can", listen_id) from None
            await self._stream(stream)
        finally:
            hub.detach(stream)

    async def _stream(self, stream: Stream) -> None:
        flow = flow_of(self._send)
        send = self._send

        async def write(data: bytes) -> None:
            if flow is not None:
                await flow.wait()
            await send({"type": "http.response.body", "body": data, "more_body": True})

        watcher = asyncio.create_task(_watch(self.receive, stream), name="mcp_channels-disconnect")
        try:
            await self._start(200, STREAM_HEADERS)
            await stream.serve(write)
        finally:
            watcher.cancel()
            if flow is not None:
                flow.close()
            # Without this, some servers would never end the response.
            await self._last_word()

    async def _last_word(self) -> None:
        try:
            async with asyncio.timeout(LAST_WORD_TIMEOUT):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:  # the client is gone, or its socket takes nothing: the server sees to it
            logger.debug("The last message of a stream could not be sent: %r", error)


async def _watch(receive: Callable[[], Any], stream: Stream) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:  # a server may raise where another sends a message
        logger.debug("Waiting for a client to leave failed: %r", error)
    stream.end("client_closed")


def _limits() -> Limits:
    return Limits(
        keep_alive=settings.keep_alive_interval,
        lifetime=settings.max_stream_lifetime,
        idle=settings.listen_idle_timeout,
        send_timeout=settings.send_timeout,
        max_queue=settings.listen_max_queue,
    )


def _busy(message: str, request_id: str | int | None = None) -> Refusal:
    headers: Mapping[str, str] = {"Retry-After": str(incoming.RETRY_AFTER)}
    return Refusal(503, types.INTERNAL_ERROR, message, request_id=request_id, headers=headers)
