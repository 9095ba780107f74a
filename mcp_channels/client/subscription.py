"""
One subscription: the listen requests that carry it, one after the other, and the handle that its owner holds.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mcp_channels.client.attempt import Attempt, Granted
from mcp_channels.client.delivery import Callback, Handle
from mcp_channels.client.errors import (
    AcknowledgmentTimeoutError,
    ConnectionLostError,
    ListenError,
    ListenRefusedError,
    SubscriptionEndedError,
)
from mcp_channels.client.events import Acknowledged, Closed, Event, Notification, Reconnecting, Resynchronised
from mcp_channels.client.filter import Filter
from mcp_channels.client.relisten import FINAL_REASONS, Backoff, Relisten
from mcp_channels.client.tasks import Tasks, ended

State = Literal["pending", "active", "reconnecting", "closed"]

CLOSING_TIMEOUT = 2.0
"""Seconds to wait for the result after a ``notifications/cancelled``."""

CLIENT_CLOSED = "client_closed"

logger = logging.getLogger("mcp_channels.client")


class Channel(Protocol):
    """
    What a subscription needs of the client that it belongs to.
    """

    tasks: Tasks
    """The tasks that end with the client."""

    def new_id(self) -> int | str:
        """
        An id that no other request of the client has.
        """

    def messages(self, request_id: int | str, requested: Filter, *, endless: bool) -> AsyncIterator[object]:
        """
        Send a listen request, connecting first where needed, and yield what the server answers. ``endless``: the
        silence of the connection is not bounded.
        """

    async def invalidate(self, event: Notification | Filter) -> None:
        """
        Take out of the caches what a notification, or a gap in the stream of a filter, makes stale.
        """

    def announce(self, event: Event) -> None:
        """
        Pass an event on to the general callback.
        """

    async def era_error(self) -> ListenError | None:
        """
        Negotiate anew; the error that says so, if the server is a legacy one.
        """


@dataclass(frozen=True, slots=True)
class End:
    """
    How one request ended, and whether another may follow.
    """

    reason: str
    graceful: bool = False
    error: Exception | None = None
    again: bool = True
    retry_after: float | None = None


class Subscription(Handle):
    """
    A subscription: iterate over its events, and close it. Entered with ``async with`` it waits for the acknowledgment.

    The iteration ends when the subscription does, after what came before; it raises the error, if one ended it.
    """

    def __init__(
        self,
        channel: Channel,
        requested: Filter,
        *,
        ack_timeout: float | Literal[False] | None,
        default_ack_timeout: float,
        relisten: Relisten,
        on_event: Callback | None = None,
        sink: Callable[[Event], None] | None = None,
        on_closed: Callable[["Subscription"], None],
    ) -> None:
        super().__init__(on_event, channel.tasks, name="subscription")
        self._channel = channel
        self._requested = requested
        self._on_closed = on_closed
        self._policy = relisten
        self._first_timeout = default_ack_timeout if ack_timeout is None else (ack_timeout or None)
        self._later_timeout = ack_timeout or default_ack_timeout
        self._sink = sink or self._put
        self._granted: Granted | None = None
        self._last: Filter | None = None
        self._acknowledged_at: float | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.id: int | str | None = None
        """The id of the request that carries it."""
        self.state: State = "pending"
        """``pending``, ``active``, ``reconnecting`` or ``closed``."""
        self.closed_gracefully = False
        """Whether the server ended it with a result that says ``complete``."""
        self.reason: str | None = None
        """Why it is closed: the server's reason, ``client_closed``, or what went wrong."""
        self.error: Exception | None = None
        """What closed it, if it was a fault."""

    @property
    def requested(self) -> Mapping[str, Any]:
        """
        The filter that was asked for, as it is on the wire.
        """
        return self._requested.to_wire()

    @property
    def honoured(self) -> Mapping[str, Any] | None:
        """
        The filter of the acknowledgment that stands, as it came; None while there is none.
        """
        return None if self._granted is None else self._granted.wire

    @property
    def unsupported(self) -> Mapping[str, Any]:
        """
        What was asked for and is not granted by the acknowledgment that stands; nothing while there is none.
        """
        return {} if self._granted is None else self._requested.without(self._granted.honoured).to_wire()

    def start(self) -> None:
        """
        Send the first request.
        """
        self._task = self._channel.tasks.start(self._run(), name="subscription")

    async def wait_acknowledged(self) -> Mapping[str, Any]:
        """
        Wait until an acknowledgment stands, and return its filter.

        Raises:
            ListenError: the subscription closed first.
        """
        while self.state != "closed":
            if self._granted is not None:
                return self._granted.wire
            await self._changed.wait()
        raise self.error or SubscriptionEndedError(f"The subscription was closed: {self.reason}")

    async def wait_closed(self) -> None:
        """
        Wait until it is closed, by whoever.
        """
        while self.state != "closed":
            await self._changed.wait()

    async def close(self) -> None:
        """
        Close it: the response stream is closed, and what was not consumed is forgotten.
        """
        if self.state != "closed":
            self._finish(End(CLIENT_CLOSED), tell=False)
        await ended(self._task)
        await self._consumer.close()

    async def _entered(self) -> None:
        await self.wait_acknowledged()

    async def _run(self) -> None:
        loop, backoff, timeout = asyncio.get_running_loop(), Backoff(self._policy), self._first_timeout
        while True:
            end = await self._request(timeout)
            timeout = self._later_timeout
            self._granted = None
            if self._acknowledged_at is not None:
                backoff.lasted(loop.time() - self._acknowledged_at)
                self._acknowledged_at = None
            delay = None
            if end.again and (self._last is not None or self._policy.first):
                delay = backoff.delay(loop.time(), retry_after=end.retry_after)
            if delay is None:
                self._finish(end)
                return
            self._sink(Closed(end.reason, graceful=end.graceful))
            self._sink(Reconnecting(round(delay, 3)))
            self._change("reconnecting")
            await asyncio.sleep(delay)

    async def _request(self, timeout: float | None) -> End:
        attempt = Attempt(self._channel.new_id())
        self.id = attempt.id
        try:
            await self._read(attempt, timeout)
        except ListenRefusedError as error:
            return await self._refused(error)
        except ConnectionLostError as error:
            return End(str(error), error=error)
        except Exception as error:  # the edge of one request: its fault is told, in the consumer's own task
            return End(str(error) or type(error).__name__, error=error, again=False)
        if attempt.is_complete or attempt.is_cancelled:
            reason = attempt.reason or ("complete" if attempt.is_complete else "cancelled")
            return End(reason, graceful=attempt.is_complete, again=reason not in FINAL_REASONS)
        if isinstance(attempt.error, ListenRefusedError) and attempt.honoured is None:
            return await self._refused(attempt.error)
        if attempt.error is not None:
            return End(str(attempt.error), error=attempt.error, again=False)
        return End("connection lost", error=ConnectionLostError("The stream broke off"))

    async def _read(self, attempt: Attempt, timeout: float | None) -> None:
        loop, is_closing = asyncio.get_running_loop(), False
        deadline = asyncio.timeout(timeout)
        try:
            async with (
                deadline,
                aclosing(self._channel.messages(attempt.id, self._requested, endless=timeout is None)) as messages,  # type: ignore[type-var]
            ):
                async for message in messages:
                    outcome = attempt.read(message)
                    if isinstance(outcome, Granted):
                        deadline.reschedule(None)
                        await self._acknowledge(outcome)
                    elif outcome is not None:
                        await self._deliver(outcome)
                    if attempt.is_over:
                        return
                    if attempt.is_cancelled and not is_closing:
                        is_closing = True
                        deadline.reschedule(loop.time() + CLOSING_TIMEOUT)
        except TimeoutError:
            if not deadline.expired():
                raise
            if not is_closing:
                # The deadline is this request's: whatever carries the subscription later has its own.
                raise AcknowledgmentTimeoutError(
                    f"The listen request was not acknowledged within {timeout:g} s"
                ) from None

    async def _refused(self, error: ListenRefusedError) -> End:
        if error.is_passing or self._last is None:
            return End(str(error), error=error, again=error.is_passing, retry_after=error.retry_after)
        # What was granted before and is refused now may come of another server in the same place.
        return End(str(error), error=await self._channel.era_error() or error, again=False)

    async def _acknowledge(self, granted: Granted) -> None:
        last, self._last = self._last, granted.honoured
        if missing := self._requested.without(granted.honoured):
            logger.warning("Subscription %r was acknowledged without %s", self.id, missing.to_wire())
        self._acknowledged_at = asyncio.get_running_loop().time()
        if last is not None:
            await self._channel.invalidate(last)
        self._granted = granted
        if last is None:
            event: Event = Acknowledged(granted.wire)
        else:
            event = Resynchronised(granted.wire, narrowed=last.without(granted.honoured).to_wire())
        self._change("active")
        self._sink(event)

    async def _deliver(self, event: Notification) -> None:
        # The order is a promise: who hears of a change and asks again is not answered from a cache.
        await self._channel.invalidate(event)
        self._sink(event)

    def _put(self, event: Event) -> None:
        self._consumer.backlog.put(event)
        self._channel.announce(event)

    def _finish(self, end: End, *, tell: bool = True) -> None:
        if self.state == "closed":
            return
        self._granted = None
        self.closed_gracefully, self.reason, self.error = end.graceful, end.reason, end.error
        self._change("closed")
        self._consumer.error = end.error
        if tell:
            self._sink(Closed(end.reason, graceful=end.graceful, final=True))
        self._consumer.backlog.end()
        self._on_closed(self)

    def _change(self, state: State) -> None:
        self.state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
