"""
The database's part in letting a request in: who calls, and what of the filter they may hear.

Requests that arrive while the database is busy with others are taken together: one hop to the database's thread, one
look-up of their credentials, one authorisation for those that ask the same. Nothing is kept from one batch to the next.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async
from django.http import HttpRequest

from mcp_channels.auth.principals import Caller
from mcp_channels.listen.filter import Filter

LARGEST_BATCH: Final = 64
"""The most requests that are taken together; the others wait for the next turn."""


class Admitted(NamedTuple):
    """
    A caller who may call, and those of the URIs asked for that are rows which they may read.
    """

    caller: Caller
    rows: frozenset[str]


class Asked(NamedTuple):
    """
    A request to be let in; ``filter`` is None if it doesn't listen.
    """

    request: HttpRequest
    filter: Filter | None


Decide = Callable[[Sequence[Asked]], Sequence["Admitted | Exception"]]
"""Decides on a batch, in its order. Blocks."""


class Admissions:
    """
    An endpoint's requests on their way in.
    """

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()

    async def admit(self, request: HttpRequest, asked: Filter | None = None) -> Admitted:
        """
        Wait for the decision on one request. Cancelling it lets the others of its batch go on.

        Raises whatever the decision is, if it isn't an ``Admitted``.
        """
        loop = asyncio.get_running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            queue = self._queues[loop] = _Queue(self._decide)
        return await queue.put(Asked(request, asked))


class _Queue:
    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._waiting: list[tuple[Asked, asyncio.Future[Admitted]]] = []
        self._task: asyncio.Task[None] | None = None

    async def put(self, asked: Asked) -> Admitted:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Admitted] = loop.create_future()
        self._waiting.append((asked, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work(), name="mcp_channels-admissions")
        return await future

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:LARGEST_BATCH], self._waiting[LARGEST_BATCH:]
            live = [(asked, future) for asked, future in batch if not future.done()]
            decisions: Sequence[Any]
            try:
                decisions = await database_sync_to_async(self._decide)([asked for asked, _ in live])
            except Exception as error:  # whatever it is, it is the answer to each of them
                decisions = [error] * len(live)
            except asyncio.CancelledError:
                for _, future in live:
                    future.cancel()
                raise
            for (_, future), decision in zip(live, decisions, strict=True):
                if future.done():
                    continue
                if isinstance(decision, Exception):
                    future.set_exception(decision)
                else:
                    future.set_result(decision)
