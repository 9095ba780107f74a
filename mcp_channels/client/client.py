"""
The client: one endpoint, the SDK's connection to it, and all that listens there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from types import TracebackType
from typing import Any, Final, Literal, Self

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.caching import CacheConfig

from mcp_channels.client import sdk, wire
from mcp_channels.client.connection import Connection, Target
from mcp_channels.client.credentials import BearerAuth, TokenSource
from mcp_channels.client.delivery import Callback, Consumer, Opening
from mcp_channels.client.errors import ConnectionLostError, LegacyPeerError, ListenError, ListenRefusedError
from mcp_channels.client.events import Event, Notification
from mcp_channels.client.filter import Filter
from mcp_channels.client.relisten import Relisten
from mcp_channels.client.subscription import Subscription

DEFAULT_ACK_TIMEOUT: Final = 30.0
"""Seconds to wait for an acknowledgment, where the client has no read timeout."""

SILENCE_TIMEOUT: Final = 120.0
"""Seconds without a byte, keep-alives included, after which a stream counts as lost."""

logger = logging.getLogger("mcp_channels.client")


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
        read_timeout: float | None = None,
        silence_timeout: float | None = SILENCE_TIMEOUT,
        relisten: Relisten | None = Relisten(),  # noqa: B008  # frozen
        cache: CacheConfig | None = None,
        on_event: Callback | None = None,
        on_invalidate: Callable[[Notification | Mapping[str, Any]], None] | None = None,
    ) -> None:
        """
        Args:
            url: the endpoint.
            token: a bearer token, or a function that gives one for each request; its argument is True where the server
                has just refused the last one.
            auth: another authentication, such as one of the SDK's for OAuth; not together with ``token``.
            headers: headers of every request.
            http: makes the HTTP clients, where the default won't do: a proxy, a certificate authority.
            read_timeout: seconds that any request but listen may take; None: no limit but the HTTP client's.
            silence_timeout: seconds without a byte on a stream, keep-alives included, after which it counts as lost;
                None: never.
            relisten: how lost streams and sessions are asked for again; None: never.
            cache: the SDK's response cache; None: its default.
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
        self._make_http = http or self._default_http
        self._read_timeout = read_timeout
        self._silence = silence_timeout
        self._relisten = relisten or Relisten(attempts=0)
        self._target = Target(url, self._new_http, read_timeout, cache or CacheConfig(), _client_info())
        self._on_event, self._on_invalidate = on_event, on_invalidate
        self._ids = count(1)
        self._http: httpx2.AsyncClient | None = None
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._open: set[Subscription] = set()
        self._general: Consumer | None = None
        self._is_entered = False

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise RuntimeError("The client is entered already")
        self._is_entered = True
        self._http = self._new_http()
        if self._on_event is not None:
            self._general = Consumer(self._on_event, name="general")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def disconnect(self) -> None:
        """
        Close everything: the subscriptions, the connection, and every task. The client can't be used any more.
        """
        http, self._http = self._http, None
        await asyncio.gather(*(subscription.close() for subscription in list(self._open)))
        async with self._connecting:
            if self._connection is not None:
                await self._connection.close()
        if self._general is not None:
            await self._general.close()
        if http is not None:
            await http.aclose()

    async def connect(self) -> Client:
        """
        The SDK's client, connected. It is another one after a connection was lost.

        Raises:
            ConnectionLostError: there is no server.
            ListenRefusedError: the server refused.
        """
        self._check_entered()
        async with self._connecting:
            self._check_entered()
            if self._connection is None or self._connection.is_lost:
                if self._connection is not None:
                    await self._connection.close()
                connection = Connection(self._target, on_notification=self._heard, on_lost=self._lost)
                await connection.open()
                self._connection = connection
            return self._connection.client

    @property
    def protocol_version(self) -> str | None:
        """
        The negotiated protocol version; None while there is no connection.
        """
        connection = self._connection
        return None if connection is None or connection.is_lost else connection.version

    async def list_tools(self, **options: Any) -> types.ListToolsResult:
        """
        See the SDK's ``Client.list_tools``; so with the other requests.
        """
        return await (await self.connect()).list_tools(**options)

    async def list_prompts(self, **options: Any) -> types.ListPromptsResult:
        """
        See the SDK's client.
        """
        return await (await self.connect()).list_prompts(**options)

    async def list_resources(self, **options: Any) -> types.ListResourcesResult:
        """
        See the SDK's client.
        """
        return await (await self.connect()).list_resources(**options)

    async def read_resource(self, uri: str, **options: Any) -> types.ReadResourceResult:
        """
        See the SDK's client.
        """
        return await (await self.connect()).read_resource(uri, **options)

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
                False: for ever for the first request, and as with None for those that follow.
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
                await self._modern()
            self._check_entered()
            subscription = self._subscription(requested, ack_timeout=ack_timeout, relisten=policy, on_event=on_event)
            subscription.start()
            return subscription

        return Opening(start)

    def _subscription(self, requested: Filter, **options: Any) -> Subscription:
        subscription = Subscription(
            self, requested, default_ack_timeout=self._read_timeout or DEFAULT_ACK_TIMEOUT, **options
        )
        self._open.add(subscription)
        return subscription

    def new_id(self) -> str:
        """
        See Channel.
        """
        # A text that is no number can't be taken for one of the SDK's own ids.
        return f"listen-{next(self._ids)}"

    async def messages(self, request_id: int | str, requested: Filter, *, endless: bool) -> AsyncIterator[object]:
        """
        See Channel.
        """
        client = await self._modern()
        params, headers = sdk.stamped(client, wire.METHOD, {"notifications": requested.to_wire()})
        request = {"jsonrpc": "2.0", "id": request_id, "method": wire.METHOD, "params": params}
        silence = None if endless else self._silence
        http = self._check_entered()
        async with aclosing(wire.messages(http, self.url, request, headers, silence=silence)) as messages:  # type: ignore[type-var]
            async for message in messages:
                yield message

    async def invalidate(self, event: Notification | Filter) -> None:
        """
        See Channel.
        """
        connection = self._connection
        if connection is not None and not connection.is_lost:
            if isinstance(event, Filter):
                await sdk.evict_all(connection.client, event)
            else:
                await sdk.evict(connection.client, event.method, event.params)
        if self._on_invalidate is not None:
            try:
                self._on_invalidate(event.to_wire() if isinstance(event, Filter) else event)
            except Exception:  # the hook is its owner's: its fault is not the stream's
                logger.exception("The invalidation hook failed")

    def announce(self, event: Event) -> None:
        """
        See Channel.
        """
        if self._general is not None:
            self._general.backlog.put(event)

    async def era_error(self) -> ListenError | None:
        """
        See Channel.
        """
        if self._connection is not None:
            await self._connection.close()
        try:
            await self._modern()
        except LegacyPeerError as error:
            return error
        except (ConnectionLostError, ListenRefusedError):
            pass
        return None

    async def _modern(self) -> Client:
        client = await self.connect()
        if not sdk.is_modern(client.protocol_version):
            raise LegacyPeerError(client.protocol_version)
        return client

    def _check_entered(self) -> httpx2.AsyncClient:
        if self._http is None:
            raise RuntimeError("The client is closed, or was never entered: use it within `async with`")
        return self._http

    def _new_http(self) -> httpx2.AsyncClient:
        http = self._make_http()
        http.headers.update(self._headers)
        if self._auth is not None:
            http.auth = self._auth
        return http

    def _default_http(self) -> httpx2.AsyncClient:
        # Each stream holds a connection of the pool for as long as it lasts.
        limits = httpx2.Limits(max_connections=None)
        return httpx2.AsyncClient(timeout=httpx2.Timeout(30.0, read=300.0), limits=limits)

    def _heard(self, connection: Connection, notification: types.ServerNotification) -> None:
        pass

    def _lost(self, connection: Connection) -> None:
        pass


def _client_info() -> types.Implementation:
    try:
        return types.Implementation(name="mcp-channels", version=version("mcp-channels"))
    except PackageNotFoundError:
        return types.Implementation(name="mcp-channels", version="0")
