"""
One connection of the SDK's client, in a task of its own.

The SDK's client ends, together with the task that entered it, when one of its requests finds no server. So that this
ends no program, it is entered in a task of its own, whose end is reported; the next call makes another connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.caching import CacheConfig
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client

from mcp_channels.client.errors import ConnectionLostError, ListenError, ListenRefusedError
from mcp_channels.client.sdk import is_modern
from mcp_channels.client.tasks import ended
from mcp_channels.client.transport import Watched, WatchedBody
from mcp_channels.client.wire import failure

CLOSE_TIMEOUT: Final = 2.0
"""Seconds that the SDK's client may take to end its session."""

NEGOTIATION_TIMEOUT: Final = 30.0
"""Seconds that connecting may take, where the client has no read timeout."""

STREAM_TIMEOUT: Final = 2.0
"""Seconds to wait for the answer to the request for a legacy server's stream. Some answer with the first message."""

SESSION_ID: Final = "mcp-session-id"

logger = logging.getLogger("mcp_channels.client")


@dataclass(frozen=True)
class Target:
    """
    Where to connect, and how.
    """

    url: str
    make_http: Callable[[], httpx2.AsyncClient]
    read_timeout: float | None
    cache: CacheConfig
    client_info: types.Implementation
    mode: str


class Connection:
    """
    The SDK's client at one endpoint, from its negotiation to its end.
    """

    def __init__(
        self,
        target: Target,
        *,
        on_notification: Callable[["Connection", types.ServerNotification], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self._target = target
        self._on_notification = on_notification
        self._on_lost = on_lost
        self._client: Client | None = None
        self._ready: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._refusal: ListenRefusedError | None = None
        self._answers = 0
        self._is_stream_asked_for = self._is_resuming = False
        self._stream_answered = asyncio.Event()
        self.is_lost = False
        """Whether it is of no further use."""

    @property
    def client(self) -> Client:
        """
        The SDK's client.
        """
        if self._client is None:
            raise ConnectionLostError("There is no connection")
        return self._client

    @property
    def version(self) -> str:
        """
        The negotiated protocol version.
        """
        return self.client.protocol_version

    async def open(self) -> None:
        """
        Connect and negotiate.

        Raises:
            ConnectionLostError: there is no server.
            ListenRefusedError: the server refused.
        """
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(), name="mcp_channels.client connection")
        limit = self._target.read_timeout or NEGOTIATION_TIMEOUT
        try:
            async with asyncio.timeout(limit):
                await self._ready
        except TimeoutError:
            await ended(self._task)
            raise ConnectionLostError(f"The server did not negotiate within {limit:g} s") from None
        except BaseException:
            await ended(self._task)
            raise

    async def wait_for_stream(self) -> None:
        """
        Wait until a legacy server has the stream on which it tells of changes: of one that it tells of at once, it
        would find nobody to tell.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stream_answered.wait(), STREAM_TIMEOUT)

    async def close(self) -> None:
        """
        End it, and a legacy session with it.
        """
        self.is_lost = True
        self._closing.set()
        if self._task is not None:
            if self._ready is not None and self._ready.done():
                await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT)
            await ended(self._task)

    async def _hold(self) -> None:
        assert self._ready is not None
        error: BaseException = ConnectionLostError("The connection was closed")
        try:
            async with self._target.make_http() as http:
                hooks = http.event_hooks
                hooks["request"].append(self._before)
                hooks["response"].append(self._after)
                http.event_hooks = hooks
                async with Client(
                    Watched(streamable_http_client(self._target.url, http_client=http), self._abandon),
                    read_timeout_seconds=self._target.read_timeout,
                    message_handler=self._heard,
                    cache=self._target.cache,
                    client_info=self._target.client_info,
                    mode=self._target.mode,
                ) as client:
                    self._client = client
                    if is_modern(client.protocol_version):
                        self._stream_answered.set()
                    self._ready.set_result(None)
                    await self._closing.wait()
        except Exception as raised:  # whatever the SDK ends with is the end of this connection, and of no more
            error = self._translated(raised)
        finally:
            if not self._ready.done():
                self._ready.set_exception(error)
                # Nobody may be waiting any longer.
                self._ready.exception()
            elif not self._closing.is_set():
                logger.debug("The connection to %s ended: %s", self._target.url, error)
            self._lose()

    def _translated(self, raised: BaseException) -> BaseException:
        error = _first(raised)
        if isinstance(error, MCPError):
            if self._refusal is not None:
                return self._refusal
            return ListenRefusedError(None, f"{error.error.code}: {error.error.message}", code=error.error.code)
        if isinstance(error, httpx2.HTTPError):
            return ConnectionLostError(str(error) or type(error).__name__)
        if isinstance(error, RuntimeError | ValueError) and not isinstance(error, ListenError):
            # How the SDK says that it can make nothing of an answer.
            return ListenRefusedError(None, str(error)[:500])
        return error

    def _lose(self) -> None:
        self._client = None
        if not self.is_lost:
            self.is_lost = True
            self._stream_answered.set()
            self._on_lost(self)

    async def _heard(self, message: IncomingMessage) -> None:
        if not isinstance(message, Exception) and not self.is_lost:
            self._on_notification(self, message)

    async def _before(self, request: httpx2.Request) -> None:
        if request.method == "GET" and _is_ours(request):
            if self._is_stream_asked_for:
                # The SDK tries again: the request before failed without an answer.
                self._abandon()
            self._is_stream_asked_for = True
        if self._client is not None or not _is_ours(request) or request.headers.get("mcp-method") == "server/discover":
            return
        if self._target.mode != "auto":
            return
        # After any failure of its first request the SDK would take the server for a legacy one. But who gets no answer,
        # is not let in, or comes at a bad time has learnt nothing of the era.
        if self._answers == 0:
            raise httpx2.ReadTimeout("The server did not answer", request=request)
        if self._refusal is not None and (self._refusal.status in (401, 403) or self._refusal.is_passing):
            raise self._refusal

    async def _after(self, response: httpx2.Response) -> None:
        request, status = response.request, response.status_code
        if not _is_ours(request):
            return
        if request.method == "GET":
            await self._after_get(response)
        elif self._client is None:
            self._answers += 1
            self._refusal = await _refusal(response) if status >= 400 else None
        elif status == 404 and SESSION_ID in request.headers:
            # The server has forgotten the session (MCP 2025-11-25 basic/transports): a new one is needed.
            self._abandon()

    async def _after_get(self, response: httpx2.Response) -> None:
        self._is_stream_asked_for = False
        if response.status_code == 200:
            response.stream = WatchedBody(response.stream, self._stream_ended)
        elif response.status_code == 404 or self._is_resuming:
            self._abandon()
        else:
            logger.debug("The server has no stream of its own: HTTP %s", response.status_code)
        self._stream_answered.set()

    def _stream_ended(self, *, is_resumable: bool) -> None:
        # The SDK asks for the stream again. Where its messages have ids, it goes on after the last one. Otherwise what
        # the server says in between is lost, so the session is replaced instead, and everybody is told.
        self._is_resuming = is_resumable
        if not is_resumable:
            self._abandon()

    def _abandon(self) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._lose()


def _is_ours(request: httpx2.Request) -> bool:
    """
    Whether a request is one of the transport's, and not one of an authentication that uses the same client.
    """
    return "text/event-stream" in request.headers.get("accept", "")


async def _refusal(response: httpx2.Response) -> ListenRefusedError:
    await response.aread()
    return await failure(response)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
