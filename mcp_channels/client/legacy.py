"""
Listening on servers of MCP 2024-11-05 to 2025-11-25, with the filter of later ones.

Their notifications belong to the session and to no request, so it is decided here who gets them. URIs are subscribed to
once for all listeners, one call at a time. A session that is lost is replaced, and its listeners are told.
"""

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from mcp import Client, MCPDeprecationWarning, MCPError

from mcp_channels.client.connection import Connection
from mcp_channels.client.delivery import Callback, Handle
from mcp_channels.client.errors import ListenError, ListenRefusedError, SubscribeFailed, UseListen
from mcp_channels.client.events import Closed, Event, Notification, Reconnected
from mcp_channels.client.filter import Filter
from mcp_channels.client.references import References
from mcp_channels.client.relisten import Backoff, Relisten
from mcp_channels.client.sdk import is_modern
from mcp_channels.client.tasks import Tasks, ended

CALL_TIMEOUT: Final = 30.0
"""Seconds for one ``resources/subscribe``, where the client has no read timeout."""

logger = logging.getLogger("mcp_channels.client")


class Sessions(Protocol):
    """
    What listeners need of the client that they belong to.
    """

    async def session(self) -> Connection:
        """
        The connection, made if there is none.
        """

    async def invalidate(self, event: Notification | Filter) -> None:
        """
        Take out of the caches what a notification, or a gap, makes stale.
        """


class Listener(Handle):
    """
    One who listens on a legacy session: iterate over its events, and close it. They are ``Notification``,
    ``Reconnected`` after a session was lost, and at last ``Closed``, whose reason is one of ``reconnect_exhausted``,
    ``transport_closed``, ``era_changed``, ``disconnected`` and ``shutdown``.
    """

    def __init__(self, listeners: "Listeners", requested: Filter, on_event: Callback | None, tasks: Tasks) -> None:
        super().__init__(on_event, tasks, name="listener")
        self._listeners = listeners
        self._tasks = tasks
        self._owner: asyncio.Task[Any] | None = None
        self.filter = requested
        """What it listens for. Nothing else is delivered, whatever the server sends."""
        self.reason: str | None = None
        """Why it ended; None while it listens, and if it was closed."""
        self.is_paused = False
        """Whether the session is lost, and delivery waits for another."""

    async def close(self) -> None:
        """
        Listen no longer, and release its URIs: those that nobody else listens for are unsubscribed from.
        """
        await self._listeners.remove(self)
        await self._consumer.close()

    def own(self, owner: asyncio.Task[Any]) -> None:
        """
        End it with a task.
        """
        self._owner = owner
        owner.add_done_callback(self._owner_ended)

    def disown(self) -> None:
        """
        It is over, whatever its owner does.
        """
        if self._owner is not None:
            self._owner.remove_done_callback(self._owner_ended)

    def _owner_ended(self, owner: asyncio.Task[Any]) -> None:
        self._tasks.start(self.close(), name="owner ended")

    def put(self, event: Event) -> None:
        """
        Hand it an event.
        """
        self._consumer.backlog.put(event)

    def end(self, reason: str) -> None:
        """
        It is over.
        """
        self.reason = reason
        self.put(Closed(reason, graceful=False, final=True))
        self._consumer.backlog.end()


class Listeners:
    """
    All listeners of one client.
    """

    def __init__(self, sessions: Sessions, policy: Relisten, tasks: Tasks, *, call_timeout: float | None) -> None:
        self._sessions = sessions
        self._policy = policy
        self._call_timeout = call_timeout or CALL_TIMEOUT
        self._listeners: dict[Listener, None] = {}
        self._references = References()
        self._calls = asyncio.Lock()
        self._tasks = tasks
        self._reconnecting: asyncio.Task[None] | None = None
        self._backoff = Backoff(policy)
        self._connected_at: float | None = None

    async def open(self, requested: Filter, *, on_event: Callback | None, owner: asyncio.Task[Any] | None) -> Listener:
        """
        Listen; see ListenClient.subscribe_notifications().
        """
        connection = await self._sessions.session()
        if is_modern(connection.version):
            raise UseListen(connection.version)
        self._connected_at = self._connected_at or asyncio.get_running_loop().time()
        listener = Listener(self, requested, on_event, self._tasks)
        # From here on, since a server may tell of a change together with its answer.
        self._listeners[listener] = None
        try:
            async with self._calls:
                await self._acquire(listener)
        except BaseException:
            await asyncio.shield(self._tasks.start(listener.close(), name="rollback"))
            raise
        if owner is not None:
            listener.own(owner)
        return listener

    async def remove(self, listener: Listener) -> None:
        """
        End a listener, and release what it acquired.
        """
        if listener not in self._listeners:
            return
        del self._listeners[listener]
        listener.disown()
        async with self._calls:
            for uri in self._references.held(listener):
                if self._references.release(listener, uri):
                    try:
                        await self._call(uri, unsubscribe)
                    except (ListenError, MCPError, TimeoutError) as error:
                        logger.warning("resources/unsubscribe failed: %s", error)

    def deliver(self, event: Notification) -> None:
        """
        Hand a notification to those who listen for it.
        """
        for listener in self._listeners:
            if not listener.is_paused and listener.filter.admits(event.method, event.params, below=False):
                listener.put(event)

    def lost(self) -> None:
        """
        The session is lost.
        """
        self._references.lose_session()
        if self._connected_at is not None:
            self._backoff.lasted(asyncio.get_running_loop().time() - self._connected_at)
            self._connected_at = None
        for listener in self._listeners:
            listener.is_paused = True
        if self._reconnecting is not None:
            # What it has found out belongs to a session that is no more.
            self._reconnecting.cancel()
            self._reconnecting = None
        if self._listeners and self._policy.attempts == 0:
            self._end_all("transport_closed")
        elif self._listeners:
            self._reconnecting = self._tasks.start(self._reconnect(), name="reconnecting")

    async def close(self, reason: str) -> None:
        """
        End all listeners. The session ends as well, so nothing is unsubscribed from.
        """
        ending = list(self._listeners)
        self._end_all(reason)
        await ended(self._reconnecting)
        await asyncio.gather(*(listener.drain() for listener in ending))

    def _end_all(self, reason: str) -> None:
        for listener in list(self._listeners):
            del self._listeners[listener]
            for uri in self._references.held(listener):
                self._references.release(listener, uri)
            listener.disown()
            listener.end(reason)

    async def _acquire(self, listener: Listener) -> None:
        for uri in listener.filter.uris:
            if self._references.acquire(listener, uri):
                await self._subscribe(uri)

    async def _subscribe(self, uri: str) -> None:
        try:
            await self._call(uri, subscribe)
        except (ListenError, MCPError, TimeoutError) as error:
            self._references.refused(uri)
            raise SubscribeFailed(uri, str(error) or type(error).__name__) from error

    async def _call(self, uri: str, call: Callable[[Client, str], Awaitable[object]]) -> None:
        connection = await self._sessions.session()
        if is_modern(connection.version):
            raise UseListen(connection.version)
        async with asyncio.timeout(self._call_timeout):
            await connection.wait_for_stream()
            await call(connection.client, uri)

    async def _reconnect(self) -> None:
        loop = asyncio.get_running_loop()
        # Whoever comes from here on is served by the session to come, and has lost nothing.
        waiting = list(self._listeners)
        retry_after: float | None = None
        while True:
            delay = self._backoff.delay(loop.time(), retry_after=retry_after)
            if delay is None:
                self._end_all("reconnect_exhausted")
                return
            await asyncio.sleep(delay)
            try:
                connection = await self._sessions.session()
                break
            except ListenRefusedError as error:
                logger.warning("The server refused another session: %s", error)
                if error.status in (401, 403):
                    self._end_all("reconnect_exhausted")
                    return
                retry_after = error.retry_after
            except ListenError as error:
                logger.debug("There is no other session: %s", error)
                retry_after = None
        if is_modern(connection.version):
            self._end_all("era_changed")
            return
        self._connected_at = loop.time()
        await self._resubscribe(waiting, connection)

    async def _resubscribe(self, waiting: list[Listener], connection: Connection) -> None:
        failed: dict[str, str] = {}
        async with self._calls:
            for uri in self._references.missing(waiting):
                self._references.subscribing(uri)
                try:
                    await self._subscribe(uri)
                except SubscribeFailed as error:
                    failed[uri] = error.reason
                if connection.is_lost:
                    return
        for listener in waiting:
            if listener in self._listeners:
                await self._sessions.invalidate(listener.filter)
                uris = listener.filter.uris
                listener.is_paused = False
                listener.put(
                    Reconnected(
                        tuple(uri for uri in uris if uri not in failed),
                        tuple((uri, failed[uri]) for uri in uris if uri in failed),
                    )
                )


def subscribe(client: Client, uri: str) -> Awaitable[object]:
    """
    Send ``resources/subscribe``.
    """
    return _of_its_time(client.session.subscribe_resource, uri)


def unsubscribe(client: Client, uri: str) -> Awaitable[object]:
    """
    Send ``resources/unsubscribe``.
    """
    return _of_its_time(client.session.unsubscribe_resource, uri)


def _of_its_time(request: Callable[[str], Awaitable[object]], uri: str) -> Awaitable[object]:
    """
    A request that the SDK warns of, since the newest protocol version has it no longer.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        return request(uri)
