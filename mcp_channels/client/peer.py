"""
The server that a client listens at: the connections to it, the requests on them, and the caches of what it said.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from itertools import count
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client

from mcp_channels.client import sdk, wire
from mcp_channels.client.backlog import topic
from mcp_channels.client.connection import Connection, Target
from mcp_channels.client.delivery import Callback, Consumer
from mcp_channels.client.errors import ConnectionLostError, LegacyPeerError, ListenError, ListenRefusedError
from mcp_channels.client.events import Event, Notification
from mcp_channels.client.filter import LIST_FIELDS, UPDATED, Filter
from mcp_channels.client.tasks import Tasks

Invalidate = Callable[[Notification | Mapping[str, Any]], None]

logger = logging.getLogger("mcp_channels.client")


class Peer:
    """
    One server, as ``Channel`` and ``Sessions`` describe it to those who listen.
    """

    def __init__(
        self, target: Target, *, silence: float | None, on_event: Callback | None, on_invalidate: Invalidate | None
    ) -> None:
        self.tasks = Tasks()
        self.on_legacy: Callable[[Notification], None] | None = None
        """Called with each notification of a legacy session."""
        self.on_lost: Callable[[], None] | None = None
        """Called when a connection is lost."""
        self._target = target
        self._silence = silence
        self._on_event, self._on_invalidate = on_event, on_invalidate
        self._ids = count(1)
        self._http: httpx2.AsyncClient | None = None
        self._general: Consumer | None = None
        self._connection: Connection | None = None
        self._opening: Connection | None = None
        self._connecting = asyncio.Lock()
        self._stale: dict[object, Notification | Filter] = {}

    @property
    def version(self) -> str | None:
        """
        The negotiated protocol version; None while there is no connection.
        """
        connection = self._connection
        return None if connection is None or connection.is_lost else connection.version

    def open(self) -> None:
        """
        Begin; nothing is sent.
        """
        if self._http is not None:
            raise RuntimeError("The client is entered already")
        self._http = self._target.make_http()
        if self._on_event is not None:
            self._general = Consumer(self._on_event, self.tasks, name="general")

    async def close(self) -> None:
        """
        End the connection and every task.
        """
        http, self._http = self._http, None
        if self._opening is not None:
            await self._opening.close()
        async with self._connecting:
            if self._connection is not None:
                await self._connection.close()
        if self._general is not None:
            await self._general.drain()
        await self.tasks.close()
        if http is not None:
            await http.aclose()

    async def session(self) -> Connection:
        """
        See Sessions.
        """
        self.check_open()
        async with self._connecting:
            self.check_open()
            if self._connection is None or self._connection.is_lost:
                if self._connection is not None:
                    await self._connection.close()
                connection = Connection(self._target, on_notification=self._heard, on_lost=self._lost)
                self._opening = connection
                try:
                    await connection.open()
                finally:
                    self._opening = None
                self._connection = connection
                for event in list(self._stale.values()):
                    await self._evict(connection.client, event)
                self._stale.clear()
            return self._connection

    async def modern(self) -> Client:
        """
        The SDK's client, connected to a modern server.

        Raises:
            LegacyPeerError: it is a legacy one.
        """
        client = (await self.session()).client
        if not sdk.is_modern(client.protocol_version):
            raise LegacyPeerError(client.protocol_version)
        return client

    def new_id(self) -> int | str:
        """
        See Channel.
        """
        # A text that is no number can't be taken for one of the SDK's own ids.
        return f"listen-{next(self._ids)}"

    async def messages(self, request_id: int | str, requested: Filter, *, endless: bool) -> AsyncIterator[object]:
        """
        See Channel.
        """
        client = await self.modern()
        params, headers = sdk.stamped(client, wire.METHOD, {"notifications": requested.to_wire()})
        request = {"jsonrpc": "2.0", "id": request_id, "method": wire.METHOD, "params": params}
        silence = None if endless else self._silence
        http = self.check_open()
        async with aclosing(wire.messages(http, self._target.url, request, headers, silence=silence)) as messages:  # type: ignore[type-var]
            async for message in messages:
                yield message

    async def era_error(self) -> ListenError | None:
        """
        See Channel.
        """
        if self._connection is not None:
            await self._connection.close()
        try:
            await self.modern()
        except LegacyPeerError as error:
            return error
        except (ConnectionLostError, ListenRefusedError):
            pass
        return None

    async def invalidate(self, event: Notification | Filter) -> None:
        """
        See Channel.
        """
        connection = self._connection
        if connection is not None and not connection.is_lost:
            await self._evict(connection.client, event)
        elif self._target.cache.store is not None:
            # The streams outlive the connection, and so does such a store: what it holds is stale when it is used next.
            self._stale[event if isinstance(event, Filter) else topic(event)] = event
        self._invalidate_own(event)

    def announce(self, event: Event) -> None:
        """
        See Channel.
        """
        if self._general is not None:
            self._general.backlog.put(event)

    def check_open(self) -> httpx2.AsyncClient:
        """
        The HTTP client of the streams.
        """
        if self._http is None:
            raise RuntimeError("The client is closed, or was never entered: use it within `async with`")
        return self._http

    async def _evict(self, client: Client, event: Notification | Filter) -> None:
        if isinstance(event, Filter):
            await sdk.evict_all(client, event)
        else:
            await sdk.evict(client, event.method, event.params)

    def _invalidate_own(self, event: Notification | Filter) -> None:
        if self._on_invalidate is not None:
            try:
                self._on_invalidate(event.to_wire() if isinstance(event, Filter) else event)
            except Exception:  # the hook is its owner's: its fault is not the stream's
                logger.exception("The invalidation hook failed")

    def _heard(self, connection: Connection, notification: types.ServerNotification) -> None:
        if connection is not self._connection or sdk.is_modern(connection.version) or self.on_legacy is None:
            return
        event = Notification(*sdk.wire_form(notification))
        if event.method in LIST_FIELDS or event.method == UPDATED:
            # The SDK's cache has been invalidated by its own handler, before it called this one.
            self._invalidate_own(event)
            self.on_legacy(event)
            self.announce(event)

    def _lost(self, connection: Connection) -> None:
        if connection is self._connection and self.on_lost is not None:
            self.on_lost()
