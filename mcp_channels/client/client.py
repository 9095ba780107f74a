"""
The client: one endpoint, the SDK's connection to it, and all that listens there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.caching import CacheConfig

from mcp_channels.client.connection import Target
from mcp_channels.client.credentials import BearerAuth, TokenSource
from mcp_channels.client.delivery import Callback, Opening
from mcp_channels.client.errors import ConnectionLostError
from mcp_channels.client.events import Event
from mcp_channels.client.filter import Filter
from mcp_channels.client.legacy import Listener, Listeners, subscribe, unsubscribe
from mcp_channels.client.peer import Invalidate, Peer
from mcp_channels.client.relisten import Relisten
from mcp_channels.client.subscription import Subscription
from mcp_channels.client.watches import Watch, Watches

DEFAULT_ACK_TIMEOUT: Final = 30.0
"""Seconds to wait for an acknowledgment, where the client has no read timeout."""

SILENCE_TIMEOUT: Final = 120.0
"""Seconds without a byte, keep-alives included, after which a stream counts as lost."""

URIS_PER_STREAM: Final = 1000
"""What this project's server takes, unless its ``MAX_FILTER_ENTRIES`` says otherwise."""

T = TypeVar("T")


class ListenClient:
    """
    A client of one MCP endpoint over Streamable HTTP. It connects when it is first used, and again when that is lost.

    Enter it with ``async with``; leaving closes what it opened. It belongs to the event loop that it is entered in.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | TokenSource | None = None,
        auth: httpx2.Auth | None = None,
        headers: Mapping[str, str] | None = None,
        http: Callable[[], httpx2.AsyncClient] | None = None,
        mode: str = "auto",
        read_timeout: float | None = None,
        silence_timeout: float | None = SILENCE_TIMEOUT,
        relisten: Relisten | None = Relisten(),  # noqa: B008  # frozen
        cache: CacheConfig | None = None,
        uris_per_stream: int = URIS_PER_STREAM,
        on_event: Callback | None = None,
        on_invalidate: Invalidate | None = None,
    ) -> None:
        """
        Args:
            url: the endpoint.
            token: a bearer token, or a function that gives one for each request; its argument is True where the server
                has just refused the last one.
            auth: another authentication, such as one of the SDK's for OAuth; not together with ``token``.
            headers: headers of every request.
            http: makes the HTTP clients, where the default won't do: a proxy, a certificate authority.
            mode: how the SDK's client negotiates: ``auto``, ``legacy``, or a protocol version to be taken for granted.
            read_timeout: seconds that any request but listen may take; None: no limit but the HTTP client's.
            silence_timeout: seconds without a byte on a stream, keep-alives included, after which it counts as lost;
                None: never.
            relisten: how lost streams and sessions are asked for again; None: never.
            cache: the SDK's response cache; None: its default.
            uris_per_stream: watched URIs that one stream may carry; no more than the server takes in one filter.
            on_event: called with every event of every stream, after the stream's own consumer has it.
            on_invalidate: called before a consumer hears of a change, with the notification, or with the filter of a
                stream that was lost and is back. It must return at once.
        """
        if token is not None and auth is not None:
            raise ValueError("token and auth are two ways of one thing: give one of them")
        if httpx2.URL(url).scheme not in ("http", "https"):
            raise ValueError(f"The endpoint is no http or https URL: {url!r}")
        self.url = url
        self._auth = auth if token is None else BearerAuth(token)
        self._headers = dict(headers or {})
        self._make_http = http or _default_http
        self._relisten = relisten or Relisten(attempts=0)
        self._ack_timeout = read_timeout or DEFAULT_ACK_TIMEOUT
        target = Target(url, self._new_http, read_timeout, _cache(cache, url), _client_info(), mode)
        self._peer = peer = Peer(target, silence=silence_timeout, on_event=on_event, on_invalidate=on_invalidate)
        self._watches = Watches(
            self._watched, peer.tasks, peer.announce, per_stream=uris_per_stream, timeout=self._ack_timeout
        )
        self._listeners = Listeners(peer, self._relisten, peer.tasks, call_timeout=read_timeout)
        peer.on_legacy, peer.on_lost = self._listeners.deliver, self._listeners.lost
        self._open: set[Subscription] = set()

    async def __aenter__(self) -> Self:
        self._peer.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close("shutdown")

    async def disconnect(self) -> None:
        """
        Close everything: the subscriptions, the connection, and every task. The client can't be used any more.
        """
        await self._close("disconnected")

    async def _close(self, reason: str) -> None:
        await self._listeners.close(reason)
        await self._watches.close()
        await asyncio.gather(*(subscription.close() for subscription in list(self._open)))
        await self._peer.close()

    async def connect(self) -> Client:
        """
        The SDK's client, connected. It is another one after a connection was lost.

        Raises:
            ConnectionLostError: there is no server.
            ListenRefusedError: the server refused.
        """
        return (await self._peer.session()).client

    @property
    def protocol_version(self) -> str | None:
        """
        The negotiated protocol version; None while there is no connection.
        """
        return self._peer.version

    async def list_tools(self, **options: Any) -> types.ListToolsResult:
        """
        See the SDK's ``Client.list_tools``; so with the other requests. Those that only read are sent once more where
        the connection is lost over them.
        """
        return await self._read(lambda client: client.list_tools(**options))

    async def list_prompts(self, **options: Any) -> types.ListPromptsResult:
        """
        See the SDK's client.
        """
        return await self._read(lambda client: client.list_prompts(**options))

    async def list_resources(self, **options: Any) -> types.ListResourcesResult:
        """
        See the SDK's client.
        """
        return await self._read(lambda client: client.list_resources(**options))

    async def read_resource(self, uri: str, **options: Any) -> types.ReadResourceResult:
        """
        See the SDK's client.
        """
        return await self._read(lambda client: client.read_resource(uri, **options))

    async def _read(self, call: Callable[[Client], Awaitable[T]]) -> T:
        connection = await self._peer.session()
        try:
            return await call(connection.client)
        except (MCPError, ConnectionLostError):
            if not connection.is_lost:
                raise
        return await call(await self.connect())

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | None = None, **options: Any
    ) -> types.CallToolResult:
        """
        See the SDK's client.
        """
        return await (await self.connect()).call_tool(name, arguments, **options)

    def listen(
        self,
        filter: Filter | Mapping[str, Any],  # noqa: A002  # the protocol's word
        *,
        ack_timeout: float | Literal[False] | None = None,
        on_event: Callback | None = None,
        relisten: Relisten | None = None,
    ) -> Opening[Subscription]:
        """
        Open a subscription on a modern server. ``await`` it for one that is pending, or enter it with ``async with``
        for one that is acknowledged.

        Args:
            filter: what to listen for, in camelCase or snake_case: ``tools_list_changed``, ``prompts_list_changed``,
                ``resources_list_changed``, ``resource_subscriptions`` (URIs), ``task_ids``.
            ack_timeout: seconds to wait for the acknowledgment of each request; None: the client's read timeout, or 30;
                False: for ever for the first request, whose stream's silence isn't bounded either, and as with None for
                those that follow.
            on_event: called with each event, instead of iterating.
            relisten: how a lost stream is asked for again, if not as the client's others. With its ``first``, the
                subscription is pending from the start, and even the connection is made as often as it takes.

        Raises:
            TypeError, ValueError: the filter is wrong; nothing is sent.
            LegacyPeerError: the server's protocol version has no ``subscriptions/listen``.
            ConnectionLostError, ListenRefusedError: there is no connection.
        """
        requested, policy = Filter.parse(filter), relisten or self._relisten
        if ack_timeout is not None and ack_timeout is not False and ack_timeout <= 0:
            raise ValueError(f"ack_timeout is a positive number of seconds, None or False, not {ack_timeout!r}")

        async def start() -> Subscription:
            if not policy.first:
                await self._peer.modern()
            self._peer.check_open()
            subscription = self._subscription(requested, ack_timeout=ack_timeout, relisten=policy, on_event=on_event)
            subscription.start()
            return subscription

        return Opening(start)

    async def watch(self, uri: str, *, timeout: float | None = None, on_event: Callback | None = None) -> Watch:
        """
        Watch one resource on a modern server. It returns once an acknowledgment that stands covers the URI. Watches
        share streams; those of one URI share one. Every call is a watch of its own, to be closed by its ``close()``, by
        ``async with``, or by ``unwatch()``.

        Args:
            uri: the resource.
            timeout: seconds to wait; None: as an acknowledgment.
            on_event: called with each event, instead of iterating.

        Raises:
            WatchRefusedError: the server's acknowledgment left the URI out.
            AcknowledgmentTimeoutError: none came in time.
            LegacyPeerError, ListenError: as ``listen()``, or the server ended the stream.
        """
        if not isinstance(uri, str):
            raise TypeError(f"A URI is a string, not {uri!r}")
        await self._peer.modern()
        return await self._watches.open(uri, timeout=timeout, on_event=on_event)

    async def unwatch(self, uri: str) -> bool:
        """
        Close the youngest watch of a URI, and say whether there was one.
        """
        return await self._watches.close_latest(uri)

    def subscribe_notifications(
        self,
        filter: Filter | Mapping[str, Any],  # noqa: A002  # the protocol's word
        *,
        on_event: Callback | None = None,
        owner: "asyncio.Task[Any] | Literal['current'] | None" = "current",
    ) -> Opening[Listener]:
        """
        Listen on a legacy server, with the same filter as on a modern one. ``await`` it, or enter it with
        ``async with``.

        Args:
            filter: as of ``listen()``, without task ids.
            on_event: called with each event, instead of iterating.
            owner: the task with which the listener ends, unless it ended before; the one that awaits this, unless
                another is named; None: it ends with the client.

        Raises:
            TypeError, ValueError: the filter is wrong, or has task ids; nothing is sent.
            UseListen: the server has ``subscriptions/listen``.
            SubscribeFailed: a URI could not be subscribed to; those before it are released.
            ConnectionLostError, ListenRefusedError: there is no connection.
        """
        requested = Filter.parse(filter)
        if requested.tasks:
            raise ValueError("A legacy server has no notifications of tasks: task_ids can't be listened for")

        async def start() -> Listener:
            task = asyncio.current_task() if owner == "current" else owner
            return await self._listeners.open(requested, on_event=on_event, owner=task)

        return Opening(start)

    async def subscribe_resource(self, uri: str) -> None:
        """
        Send ``resources/subscribe`` to a legacy server. It isn't counted with the listeners.
        """
        await subscribe(await self.connect(), uri)

    async def unsubscribe_resource(self, uri: str) -> None:
        """
        Send ``resources/unsubscribe`` to a legacy server. It isn't counted, and so silences a listener of that URI.
        """
        await unsubscribe(await self.connect(), uri)

    def _watched(self, requested: Filter, sink: Callable[[Event], None]) -> Subscription:
        return self._subscription(requested, ack_timeout=None, relisten=replace(self._relisten, first=False), sink=sink)

    def _subscription(self, requested: Filter, **options: Any) -> Subscription:
        subscription = Subscription(
            self._peer, requested, default_ack_timeout=self._ack_timeout, on_closed=self._open.discard, **options
        )
        self._open.add(subscription)
        return subscription

    def _new_http(self) -> httpx2.AsyncClient:
        http = self._make_http()
        http.headers.update(self._headers)
        if self._auth is not None:
            http.auth = self._auth
        return http


def _default_http() -> httpx2.AsyncClient:
    # Each stream holds a connection of the pool for as long as it lasts.
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(timeout=httpx2.Timeout(30.0, read=300.0), limits=limits)


def _cache(config: CacheConfig | None, url: str) -> CacheConfig:
    config = config or CacheConfig()
    # The SDK sees a transport, and no URL to tell one server's entries from another's.
    return config if config.target_id is not None else replace(config, target_id=url)


def _client_info() -> types.Implementation:
    try:
        return types.Implementation(name="mcp-channels", version=version("mcp-channels"))
    except PackageNotFoundError:
        return types.Implementation(name="mcp-channels", version="0")
