"""
From the reading of a stream to those who consume it. Nobody who consumes can hold up the reading, or anybody else: each
consumer has a backlog of its own, and a callback runs in a task of its own.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from mcp_channels.client.backlog import Backlog
from mcp_channels.client.events import Event
from mcp_channels.client.tasks import Tasks, ended

DRAIN_TIMEOUT: Final = 1.0
"""Seconds that callbacks may take for their last events when the client is closed."""

Callback = Callable[[Event], Awaitable[None] | None]
"""
Called with each event, one at a time. It may be a coroutine function. What it raises is logged. It must not block the
thread.
"""

logger = logging.getLogger("mcp_channels.client")


class Consumer:
    """
    One who consumes: an iterator of events, or a callback.
    """

    def __init__(self, callback: Callback | None, tasks: Tasks, *, name: str) -> None:
        self.backlog = Backlog()
        self.error: Exception | None = None
        self._callback = callback
        self._task: asyncio.Task[None] | None = None
        if callback is not None:
            self._task = tasks.start(self._call(callback), name=f"{name} callback")

    async def next(self) -> Event:
        """
        Wait for the next event.

        Raises:
            StopAsyncIteration: there are no more.
            RuntimeError: a callback consumes them.
        """
        if self._callback is not None:
            raise RuntimeError("The events go to a callback")
        event = await self.backlog.get()
        if event is not None:
            return event
        if self.error is not None:
            raise self.error
        raise StopAsyncIteration

    async def close(self) -> None:
        """
        Consume no more: what waits is forgotten, and a callback that runs is cancelled, unless it is the caller.
        """
        self.backlog.clear()
        self.backlog.end()
        await ended(self._task)

    async def drain(self) -> None:
        """
        Let a callback have what waits, for a while, and then close.
        """
        self.backlog.end()
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task], timeout=DRAIN_TIMEOUT)
            await ended(self._task)

    async def _call(self, callback: Callback) -> None:
        while (event := await self.backlog.get()) is not None:
            try:
                result = callback(event)
                if inspect.isawaitable(result):
                    await result
            except Exception:  # the edge of one consumer: its fault is not the stream's
                logger.exception("A callback failed for %s", type(event).__name__)


class Handle:
    """
    What somebody holds who consumes events: an async iterator, and an async context manager that closes it.
    """

    def __init__(self, on_event: Callback | None, tasks: Tasks, *, name: str) -> None:
        self._consumer = Consumer(on_event, tasks, name=name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await self._consumer.next()

    async def __aenter__(self) -> Self:
        try:
            await self._entered()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """
        End it. To close what is over does nothing.
        """
        raise NotImplementedError

    async def drain(self) -> None:
        """
        Let a callback have what waits.
        """
        await self._consumer.drain()

    async def _entered(self) -> None:
        return None


H = TypeVar("H", bound=Handle)


class Opening(Generic[H]):
    """
    A handle to come: ``await`` it, or enter it with ``async with``, which closes the handle at the end.
    """

    def __init__(self, start: Callable[[], Awaitable[H]]) -> None:
        self._start = start
        self._handle: H | None = None

    def __await__(self):  # type: ignore[no-untyped-def]  # a generator of whatever the event loop waits for
        return self._start().__await__()

    async def __aenter__(self) -> H:
        self._handle = await self._start()
        return await self._handle.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        await self._handle.__aexit__(kind, error, trace)
