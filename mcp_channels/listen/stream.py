"""
One open listen stream, as its one writer sees it.

Every notification is a level trigger ("this changed, read it again"), so a stream keeps a *set* of topics to tell its
client of, in order of arrival, and not a queue of messages. While the socket is blocked, a topic that changes again is
in the set already: a slow reader costs no memory beyond its own filter, and loses nothing.

A stream owns no timer. The hub's sweep calls ``tick``; everyone else only marks a topic or names an ending.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from typing import Final, Literal, cast, get_args

from mcp_channels import signals, telemetry
from mcp_channels.listen import frames
from mcp_channels.listen.filter import Filter
from mcp_channels.listen.flow import Flow
from mcp_channels.topics import Topic

Reason = Literal[
    "client_closed",
    "max_lifetime",
    "token_expired",
    "idle_timeout",
    "superseded",
    "revoked",
    "shutdown",
    "server_error",
]
"""Why a stream ended; on the wire (but for ``client_closed``, which nobody is left to read), in logs and in signals."""

REASONS: Final = frozenset(get_args(Reason))
"""All of them."""

Write = Callable[[bytes], Awaitable[None]]
"""Writes bytes to the client, and returns when they are on their way."""

OnTaken = Callable[["Stream", Sequence[Topic]], None]
"""Hears which topics a stream is telling of."""

FRAMES_AT_ONCE: Final = 256
"""The most notifications in one write: the rest stay in the set, where a newer change costs nothing."""

LOOKS: Final = 10
"""How often or so, in the time that a write may take, it is looked whether the client has taken something of it."""

CLOSING_TIME: Final = 1.5
"""Seconds that a stream which must end may still spend on all of its writes."""

logger = logging.getLogger("mcp_channels.streams")


class _WriteError(Exception):
    """
    The socket took nothing: a server tells of a client that left by exceptions of its own.
    """


@dataclass(frozen=True, slots=True)
class Limits:
    """
    What bounds a stream. Times are seconds; None means no limit.
    """

    keep_alive: float = 15
    lifetime: float | None = None
    idle: float | None = None
    send_timeout: float = 30
    max_queue: int = 1000


class Stream:
    """
    One stream: its honoured filter, what is still to be told, and how it ends.

    All methods are to be called on the event loop that serves it.
    """

    __slots__ = (
        "__weakref__",
        "_closes_by",
        "_expires_at",
        "_flow",
        "_idle_since",
        "_is_held",
        "_keep_alive_due",
        "_lasts_until",
        "_limits",
        "_look_at",
        "_loop",
        "_opened_at",
        "_server_info",
        "_silent_since",
        "_tail",
        "_taken",
        "_task",
        "_waiter",
        "_writing_until",
        "delivered",
        "delivered_at",
        "endpoint",
        "filter",
        "id",
        "is_stalled",
        "on_taken",
        "pending",
        "principal",
        "reason",
        "request_id",
        "topics",
    )

    def __init__(
        self,
        subscription_id: str | int,
        honoured: Filter,
        *,
        endpoint: str,
        server_info: bytes,
        limits: Limits,
        expires_in: float | None = None,
        principal: object = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.request_id = subscription_id
        """The listen request's id."""
        self.id = frames.dumps(subscription_id)
        """The same, as JSON."""
        self.filter: Filter | None = honoured
        """The honoured filter; None once it is acknowledged, since the topics say it all."""
        self.topics: tuple[Topic, ...] = tuple(honoured.topics())
        """The topics to hear of; the hub puts its own objects in their place."""
        self.endpoint = endpoint
        """The name of the endpoint, for telemetry."""
        self.reason: Reason | None = None
        """Why the stream ends, once it does. The first reason stands."""
        self.delivered = 0
        """Notifications written."""
        self.delivered_at = self._loop.time()
        """When the last of them was, by the loop's clock."""
        self.principal = principal
        """The principal's key, for the log alone."""
        self.on_taken: OnTaken | None = None
        """
        Is called once with the topics of each write, as they are pending no more, until none is; whoever wants to know
        of that sets it anew.
        """
        self.is_stalled = False
        """Whether it was ended in the middle of a write, which the client did not take."""
        self._server_info = server_info
        self._limits = limits
        self._tail = frames.frame(b"", self.id)
        self.pending: dict[Topic, bytes] = {}
        """What is still to be told: topics, and their frames up to the subscription id."""
        self._opened_at = self._idle_since = self._silent_since = self._loop.time()
        self._expires_at = None if expires_in is None else self._opened_at + expires_in
        self._lasts_until: float | None = None
        self._keep_alive_due = False
        self._writing_until: float | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._flow = Flow()
        self._taken: int | None = None
        self._look_at = 0.0
        self._closes_by: float | None = None
        self._is_held = False

    def mark(self, topic: Topic, head: bytes) -> bool:
        """
        Say that ``topic`` changed; ``head`` is its frame up to the subscription id. The writer takes it when it is
        through with what it writes, or when it is woken. Returns whether it is pending that was not before.
        """
        pending = self.pending
        if topic in pending or self.reason is not None:
            return False
        if len(pending) >= self._limits.max_queue:
            telemetry.emit(signals.notification_dropped, Stream, endpoint=self.endpoint, kind=topic.kind)
            return False
        pending[topic] = head
        return True

    def wake(self) -> None:
        """
        Let the writer go on, if it waits for something to do.
        """
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, reason: Reason) -> None:
        """
        End the stream: its writer writes what is pending and the closing frames, and returns.
        """
        if self.reason is not None:
            return
        self.reason = reason
        self._closes_by = self._loop.time() + CLOSING_TIME
        if self._writing_until is not None:
            self._writing_until = min(self._writing_until, self._closes_by)
        self.wake()

    async def ends_within(self, seconds: float) -> bool:
        """
        Wait, before the stream is served, for so long or until it ends; whether it did.
        """
        deadline = self._loop.time() + seconds
        while self.reason is None and (left := deadline - self._loop.time()) > 0:
            # What is to be told wakes it too.
            self._waiter = self._loop.create_future()
            try:
                await asyncio.wait([self._waiter], timeout=left)
            finally:
                self._waiter = None
        return self.reason is not None

    def hold(self) -> None:
        """
        Write no notification until ``resume``: it is in doubt whether the caller may hear it.
        """
        self._is_held = True

    def resume(self) -> None:
        """
        Write notifications again.
        """
        if self._is_held:
            self._is_held = False
            self.wake()

    def lose(self, lost: Collection[Topic]) -> None:
        """
        Hear no more of these topics, and don't tell of them if they are still to be told.
        """
        for topic in lost:
            self.pending.pop(topic, None)
        gone = set(lost)
        self.topics = tuple(topic for topic in self.topics if topic not in gone)
        if self.filter is not None:
            # All that is acknowledged is delivered.
            self.filter = Filter.of(self.topics)

    def expire_in(self, seconds: float | None) -> None:
        """
        Let the stream's credential end in so many seconds; None: it doesn't end.
        """
        self._expires_at = None if seconds is None else self._loop.time() + seconds

    def tick(self, now: float) -> float:
        """
        Do what is due at ``now`` (the loop's clock), and return when to look again.
        """
        if self._writing_until is not None and not self._is_taken(now):
            self._abort()
            return now + CLOSING_TIME
        if self.reason is None:
            self._end_if_over(now)
        if self.reason is not None:
            return now + CLOSING_TIME if self._writing_until is None else self._writing_until
        if self._task is None:
            # It is still being let in: what counts from the acknowledgment has not begun.
            return now + CLOSING_TIME if self._expires_at is None else self._expires_at
        due = [at for at in (self._expires_at, self._lasts_until, self._writing_until) if at is not None]
        if self._writing_until is None:
            if now >= self._silent_since + self._limits.keep_alive:
                self._keep_alive(now)
                due.append(now + self._limits.keep_alive)
            else:
                due.append(self._silent_since + self._limits.keep_alive)
        return min(due)

    def _is_taken(self, now: float) -> bool:
        """
        Whether there is time left for what is being written. A client that takes some of it isn't stalled, and has half
        of the time from then on. Not all: of a client that stalls, the kernel still takes a little for some seconds.
        """
        assert self._writing_until is not None  # something is being written
        if self.reason is None and (now >= self._look_at or now >= self._writing_until):
            # To ask costs a call of the system, and very many may be stalled: neither often, nor all at once.
            self._look_at = now + random.uniform(0.5, 1.5) * self._limits.send_timeout / LOOKS  # noqa: S311  # no secret
            before, self._taken = self._taken, self._flow.taken()
            if before is not None and self._taken != before:
                self._writing_until = max(self._writing_until, now + self._limits.send_timeout / 2)
        return now < self._writing_until

    def _end_if_over(self, now: float) -> None:
        if self._is_expired(now):
            self.end("token_expired")
        elif self._lasts_until is not None and now >= self._lasts_until:
            self.end("max_lifetime")

    def _is_expired(self, now: float) -> bool:
        return self._expires_at is not None and now >= self._expires_at

    def _keep_alive(self, now: float) -> None:
        # Keep-alives are not activity: the idle timeout is judged here, and before one is written.
        if self._limits.idle is not None and now >= self._idle_since + self._limits.idle:
            self.end("idle_timeout")
        else:
            self._keep_alive_due = True
            self.wake()

    async def serve(self, write: Write, flow: Flow | None = None) -> None:
        """
        Write the stream until it ends; the calling task is its only writer. ``flow`` is what is known of the socket.

        Cancelling it from outside is a shutdown of the server: the closing frames are written, then it raises.
        """
        assert self.filter is not None  # a stream is served once
        self._task = cast("asyncio.Task[object]", asyncio.current_task())
        if flow is not None:
            self._flow = flow
        self._begin(self._loop.time())
        kinds = self.filter.kinds()
        started = False
        try:
            await self._acknowledge(write)
            started = True
            telemetry.emit(signals.stream_started, Stream, endpoint=self.endpoint, kinds=kinds)
            await self._pump(write)
            await self._close(write)
        except asyncio.CancelledError:
            if self.is_stalled and self._task.uncancel() == 0:
                self.end("client_closed")
                return
            self.end("shutdown")
            await self._close_at_last(write)
            raise
        except _WriteError as error:
            logger.debug("A write failed: %r", error.__cause__)
            self.end("client_closed")
        except Exception:  # the edge of one stream: whatever is wrong with it is nobody else's business
            logger.exception("A stream of endpoint %s failed", self.endpoint)
            # Whatever it was that could not be written is not tried again.
            self.pending.clear()
            self.end("server_error")
            await self._close_at_last(write)
        finally:
            self._task = None
            self._flow = Flow()
            self.pending.clear()
            if started:
                self._report(kinds)

    async def _acknowledge(self, write: Write) -> None:
        assert self.filter is not None  # see serve
        acknowledgment = frames.acknowledged(self.filter.to_wire(), self.id)
        self.filter = None
        await self._write(write, acknowledgment)

    def _begin(self, now: float) -> None:
        """
        Count from here: being let in may take some time, which isn't the stream's.
        """
        if self._limits.lifetime is not None:
            self._lasts_until = now + self._limits.lifetime
        self._opened_at = self._idle_since = self._silent_since = now

    async def _pump(self, write: Write) -> None:
        while self.reason is None:
            if self._has_news():
                await self._write_news(write)
            elif self._keep_alive_due:
                await self._write(write, frames.KEEP_ALIVE)
            elif self.pending and not self._is_held:
                # The sweep may be a moment late; what the caller may no longer hear isn't told in it.
                self.end("token_expired")
            else:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None

    def _has_news(self) -> bool:
        """
        Whether there is something to tell that the caller may hear.
        """
        if not self.pending or self._is_held or self.reason in ("revoked", "token_expired"):
            return False
        return not self._is_expired(self._loop.time())

    async def _write_news(self, write: Write) -> None:
        with self._writing():
            # Before it is settled what to tell: while the socket is full, a newer change costs nothing, and it may turn
            # out that the caller may not hear it.
            await self._flow.wait()
            if not self._has_news():
                return
            heads = self._take()
            await _write_to(write, self._tail.join(heads) + self._tail)
        self.delivered += len(heads)
        self._idle_since = self.delivered_at = self._silent_since

    def _take(self) -> list[bytes]:
        """
        Take from the set what goes into one write.
        """
        pending = self.pending
        heads = list(islice(pending.values(), FRAMES_AT_ONCE))
        tail, piece = len(self._tail), self._flow.piece
        if sum(map(len, heads)) + len(heads) * tail > piece:
            ends = accumulate(len(head) + tail for head in heads)
            del heads[max(1, sum(1 for _ in takewhile(piece.__ge__, ends))) :]
        taken = list(islice(pending, len(heads)))
        if len(taken) == len(pending):
            pending.clear()
        else:
            for topic in taken:
                del pending[topic]
        if self.on_taken is not None:
            self.on_taken(self, taken)
            if not pending:
                self.on_taken = None
        return heads

    async def _write(self, write: Write, data: bytes) -> None:
        with self._writing():
            await self._flow.wait()
            await _write_to(write, data)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """
        Bound the time of a write.
        """
        now = self._loop.time()
        self._keep_alive_due = False
        self._silent_since = now
        self._taken = None
        self._writing_until = now + self._limits.send_timeout if self._closes_by is None else self._closes_by
        try:
            yield
        finally:
            self._writing_until = None

    async def _close(self, write: Write) -> None:
        if self.reason is None or self.reason == "client_closed":
            return
        while self._has_news():
            await self._write_news(write)
        data = frames.closing(self.id, reason=self.reason, server_info=self._server_info)
        await self._write(write, data)

    async def _close_at_last(self, write: Write) -> None:
        """
        Write the closing frames where little may be left to write them with.
        """
        try:
            async with asyncio.timeout(CLOSING_TIME):
                await self._close(write)
        except _WriteError as error:
            logger.debug("A write failed: %r", error.__cause__)
        except TimeoutError:
            pass
        except Exception:  # as in serve; what the stream ends with is the end of its body
            logger.exception("The end of a stream of endpoint %s could not be written", self.endpoint)

    def _abort(self) -> None:
        if self._task is not None and not self.is_stalled:
            self.is_stalled = True
            self._task.cancel()

    def _report(self, kinds: tuple[str, ...]) -> None:
        duration = self._loop.time() - self._opened_at
        logger.info(
            "A stream of endpoint %s ended: %s, %d notifications in %.1f s",
            self.endpoint,
            self.reason,
            self.delivered,
            duration,
            extra={
                "endpoint": self.endpoint,
                "principal": self.principal,
                "kinds": kinds,
                "reason": self.reason,
                "delivered": self.delivered,
                "duration": duration,
            },
        )
        telemetry.emit(
            signals.stream_stopped,
            Stream,
            endpoint=self.endpoint,
            kinds=kinds,
            reason=self.reason,
            duration=duration,
            delivered=self.delivered,
        )


async def _write_to(write: Write, data: bytes) -> None:
    try:
        await write(data)
    except Exception as error:
        raise _WriteError from error
