"""
Calls of a blocking function that wait together are made together; what is too much for one call is made in portions.

What arrives while the database is busy with others is taken in one go, and hops to the database's thread once. Nothing
is kept from one batch to the next.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async

LARGEST_BATCH: Final = 64
"""The most calls that are taken together; the others wait for the next turn."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def portions(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """
    The items, in sequences of ``size`` of them; the last may be shorter.
    """
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Batcher(Generic[_Item, _Result]):
    """
    A function of many items, to be called with one. On each event loop one batch is under way at a time.
    """

    def __init__(
        self,
        work: Callable[[Sequence[_Item]], Sequence[_Result | Exception]],
        *,
        abandoned: Callable[[_Result], None] | None = None,
    ) -> None:
        """
        Args:
            work: takes items, and returns for each, in their order, its result or the exception to raise. It blocks,
                and runs where Django's synchronous code does.
            abandoned: takes, on the event loop, the result of a call that was cancelled while its batch was under way.
        """
        self._work = work
        self._abandoned = abandoned
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[_Item, _Result]] = WeakKeyDictionary()

    async def call(self, item: _Item) -> _Result:
        """
        Wait for the result of one item. Cancelling it lets the others of its batch go on.

        Raises whatever the function raises, or returns in the result's place.
        """
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = _Queue(self._work, self._abandoned)
        return await queue.put(item)


class _Queue(Generic[_Item, _Result]):
    def __init__(
        self,
        work: Callable[[Sequence[_Item]], Sequence[_Result | Exception]],
        abandoned: Callable[[_Result], None] | None,
    ) -> None:
        self._work = work
        self._abandoned = abandoned
        self._waiting: list[tuple[_Item, asyncio.Future[_Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def put(self, item: _Item) -> _Result:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._empty(), name="mcp_channels-batch")
        return await future

    async def _empty(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
            live = [(item, future) for item, future in batch if not future.done()]
            results: Sequence[Any]
            try:
                results = await database_sync_to_async(self._work)([item for item, _ in live])
            except Exception as error:  # whatever it is, it is the answer to each of them
                results = [error] * len(live)
            except asyncio.CancelledError:
                for _, future in live:
                    future.cancel()
                raise
            for (_, future), result in zip(live, results, strict=True):
                if future.done():
                    if self._abandoned is not None and not isinstance(result, Exception):
                        self._abandoned(result)
                elif isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
