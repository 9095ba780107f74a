"""
The endpoint as an ASGI application for Channels' routing.

``MCPConsumer`` owns its ``__call__``: the stock HTTP consumer doesn't see a client leave while a handler runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import mcp_types as types
from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from channels.consumer import AsyncConsumer
from channels.layers import get_channel_layer
from django.http import HttpRequest
from mcp.shared.inbound import MCP_METHOD_HEADER

from mcp_channels.auth.principals import Caller
from mcp_channels.conf import settings
from mcp_channels.endpoint import request as incoming
from mcp_channels.endpoint.endpoint import Endpoint, seconds_until
from mcp_channels.endpoint.flow import BoundedSend, Flow, flow_of
from mcp_channels.endpoint.request import ClientGoneError, Refusal
from mcp_channels.endpoint.shutdown import watch_for_shutdown
from mcp_channels.endpoint.upstream import replay
from mcp_channels.listen import frames
from mcp_channels.listen.admission import Candidate, NotAdmittedError
from mcp_channels.listen.checking import Held
from mcp_channels.listen.hub import Hub, HubFullError
from mcp_channels.listen.places import FULL, places
from mcp_channels.listen.stream import Limits, Stream
from mcp_channels.models import LiveStream
from mcp_channels.server import Call

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
            can_subscribe: a function of a ``Principal`` and a URI which the caller may read, synchronous or not, that
                says whether they may subscribe to it. What it raises is logged, and means no.
            scope: the scope, or a list of scopes, that every caller needs.
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
        del scope
        try:
            listener = await exchange.answer()
            if listener is not None:
                serving = exchange.serve(listener)
                # What the request brought is let go of here: a stream may be open for hours.
                del listener
                await serving
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except ClientGoneError:
            pass
        except Exception as error:  # the edge of one request: the log has the trace, the client doesn't
            logger.exception("A request to endpoint %s failed", self.endpoint.name)
            if exchange.started:
                raise
            await exchange.refuse(incoming.failure(error))


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

    async def answer(self) -> "_Listener | None":
        """
        Answer the request; a listen that may be granted comes back as the stream to serve.
        """
        request = incoming.django_request(self.scope)
        self._origin = incoming.check_origin(request, settings.allowed_origins)
        method = self.scope["method"]
        if method == "OPTIONS" and self._origin is not None:
            await self._preflight()
        elif method in ("GET", "DELETE") and incoming.header(self.scope, incoming.SESSION_HEADER) is not None:
            is_stream = method == "GET"
            await self._pass_on(request, self.receive, is_stream=is_stream, takes_place=is_stream)
        elif method != "POST":
            raise Refusal(405, None, headers={"Allow": "POST"})
        elif incoming.may_be_listen(self.scope):
            return await self._answer_listen(request)
        else:
            is_call = incoming.header(self.scope, MCP_METHOD_HEADER) == incoming.CALL
            await self._pass_on(request, self.receive, takes_place=is_call)
        return None

    async def serve(self, listener: "_Listener") -> None:
        """
        Serve a stream until it ends, if its principal may hold one.
        """
        held, stream = listener.held, listener.held.stream
        layer = get_channel_layer(settings.channel_layer)
        if layer is None:
            raise _busy(f"No channel layer {settings.channel_layer!r} is configured", stream.request_id)
        hub = Hub.current(layer)
        watcher = asyncio.create_task(_watch(self.receive, stream), name="mcp_channels-disconnect")
        flow = None
        try:
            await self._admit(hub, listener)
            del listener
            flow = flow_of(self.scope, self._send)
            self.scope = None  # type: ignore[assignment]  # it isn't needed any more, and it is large
            await stream.serve(self._write, flow)
        finally:
            watcher.cancel()
            # A client that takes nothing holds up neither this nor that.
            hub.drop(stream, stream.topics)
            releasing = asyncio.create_task(hub.node.release(held), name="mcp_channels-release")
            if hub.draining:
                # A server may exit as soon as its last response has ended.
                await releasing
            try:
                # At once: a server that cancels its requests waits for nothing that comes later.
                if flow is not None:
                    await self._finish(flow, is_stalled=stream.is_stalled)
            finally:
                # Its place is taken until its response is over.
                hub.detach(stream)
                await releasing

    async def _admit(self, hub: Hub, listener: "_Listener") -> None:
        stream = listener.held.stream
        try:
            # A process that is full supersedes nobody.
            await hub.attach(stream, max_streams=settings.max_streams)
            is_admitted = await hub.node.admit(listener.held, listener.candidate)
        except HubFullError as error:
            raise _busy(str(error), stream.request_id) from None
        except NotAdmittedError as error:
            raise Refusal(403, types.INVALID_REQUEST, str(error), request_id=stream.request_id) from None
        if not is_admitted:
            raise _busy(f"The stream ended before it was open: {stream.reason}", stream.request_id)

    async def refuse(self, refusal: Refusal) -> None:
        """
        Answer with an error.
        """
        logger.info("A request to endpoint %s was refused: %d %s", self.endpoint.name, refusal.status, refusal)
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

    async def _pass_on(
        self,
        request: HttpRequest,
        receive: Callable[[], Awaitable[Any]],
        *,
        takes_place: bool,
        is_stream: bool = False,
    ) -> None:
        """
        Let the SDK answer. What may be streamed takes one of the process's places.
        """
        caller = (await self.endpoint.admit(request)).caller
        if not takes_place:
            if await self._forward(caller, receive, self._send):
                await self._finish(Flow())
        elif places.take(settings.max_streams):
            flow = flow_of(self.scope, self._send)
            send = BoundedSend(self._send, flow, seconds=settings.send_timeout)
            try:
                if await self._forward(caller, receive, send, is_stream=is_stream):
                    await self._finish(flow)
            except Exception:
                if not send.is_stalled:
                    raise
            finally:
                flow.close()
                places.give_back()
        else:
            raise _busy(FULL)

    async def _forward(
        self,
        caller: Caller,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
        *,
        is_stream: bool = False,
    ) -> bool:
        """
        Return whether the response was cut off, and is still to be ended.
        """
        if self._origin is not None:
            send = self._with_cors(send)
        if is_stream:
            send = _opening(send)
        limits = [settings.max_stream_lifetime, seconds_until(caller)] if is_stream else []
        return await self.endpoint.upstream(
            self.scope,
            receive,
            send,
            call=Call(caller, streams=True),
            lasts=min((limit for limit in limits if limit is not None), default=None),
            is_stream=is_stream,
        )

    def _with_cors(self, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        async def send_with_cors(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._cors()]}
            await send(message)

        return send_with_cors

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

    async def _answer_listen(self, request: HttpRequest) -> "_Listener | None":
        try:
            body = await incoming.read_body(self.scope, self.receive, settings.max_body_size)
            listen = incoming.read_listen(self.scope, body, max_entries=settings.max_filter_entries)
        except Refusal:
            # Who may not call at all is told that first, whatever else is wrong.
            await self.endpoint.admit(request)
            raise
        if listen is None:
            await self._pass_on(request, replay(body, self.receive), takes_place=incoming.is_call(body))
            return None
        checked_at = asyncio.get_running_loop().time()
        admitted = await self.endpoint.admit(request, listen.filter)
        caller, honoured = admitted.caller, await self.endpoint.honour(admitted, listen.filter)
        stream = Stream(
            listen.id,
            honoured,
            endpoint=self.endpoint.name,
            server_info=self.endpoint.server_info,
            limits=_limits(),
            expires_in=seconds_until(caller),
            principal=caller.principal.pk,
        )
        row = LiveStream(
            token=caller.token,
            endpoint=self.endpoint.name[:190],
            kinds=", ".join(honoured.kinds()),
            uri_count=len(honoured.resource_subscriptions),
            client_name=_text(listen.client_info.get("name")),
            client_version=_text(listen.client_info.get("version")),
            address=request.META.get("REMOTE_ADDR", "")[:64],
        )
        held = Held(stream, self.endpoint.check, incoming.Credentials(self.scope), checked_at)
        return _Listener(held, Candidate(caller.principal, row))

    async def _write(self, data: bytes) -> None:
        if not self.started:
            # With the first write, so that it has no longer: an earlier response may stand in the way of the head.
            await self._start(200, STREAM_HEADERS)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _finish(self, flow: Flow, *, is_stalled: bool = False) -> None:
        flow.close()
        if is_stalled and flow.abort():
            return
        try:
            # Without this, some servers would never end the response.
            async with asyncio.timeout(LAST_WORD_TIMEOUT):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:  # the client is gone, or its socket takes nothing: the server sees to it
            logger.debug("The last message of a stream could not be sent: %r", error)
            flow.abort()


class _Listener(NamedTuple):
    held: Held
    candidate: Candidate


def _opening(send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """
    A ``send`` that puts a comment behind the head of a stream: Daphne sends a head with the first of its body.
    """

    async def send_opened(message: Any) -> None:
        await send(message)
        if message["type"] == "http.response.start" and message["status"] == 200:
            await send({"type": "http.response.body", "body": frames.KEEP_ALIVE, "more_body": True})

    return send_opened


async def _watch(receive: Callable[[], Any], stream: Stream) -> None:
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            await asyncio.sleep(0)  # a middleware may answer for ever without waiting
    except Exception as error:  # a server may raise where another sends a message
        logger.debug("Waiting for a client to leave failed: %r", error)
    stream.end("client_closed")


def _text(value: object) -> str:
    """
    What a client says of itself, as any database takes it.
    """
    if not isinstance(value, str):
        return ""
    return value.encode("utf-8", "replace").decode().replace("\0", "")[:190]


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
