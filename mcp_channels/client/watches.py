"""
Watching single resources, over as few streams as possible: ``packing`` says what is to be done, and it is done here.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Final

from mcp_channels.client.delivery import Callback, Handle
from mcp_channels.client.errors import AcknowledgmentTimeoutError, SubscriptionEndedError
from mcp_channels.client.events import Acknowledged, Closed, Event, Notification, Resynchronised
from mcp_channels.client.filter import Filter
from mcp_channels.client.packing import Action, Close, Cover, Fail, Linger, Open, Packing, Tell
from mcp_channels.client.subscription import Subscription
from mcp_channels.client.tasks import Tasks

LINGER: Final = 0.25
"""Seconds for which a stream that was replaced is read on."""

logger = logging.getLogger("mcp_channels.client")


class Watch(Handle):
    """
    One watch of one resource: iterate over its events, and close it. They are ``Notification``, ``Resynchronised``
    after a gap, and at last ``Closed`` if the server ends it; the iteration then raises ``error``.
    """

    def __init__(self, watches: "Watches", number: int, uri: str, on_event: Callback | None) -> None:
        super().__init__(on_event, watches.tasks, name="watch")
        self._watches = watches
        self.number = number
        """Its number among the client's watches."""
        self.uri = uri
        """The resource's URI."""
        self.error: Exception | None = None
        """What ended it, unless it was closed."""
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once an acknowledgment covers it, or it is over."""

    async def close(self) -> None:
        """
        Watch no longer. The stream is closed with the last watch on it.
        """
        await self._watches.close_one(self.number)
        if not self.settled.done():
            self.error = SubscriptionEndedError("The watch was closed")
            self.cover()
        await self._consumer.close()

    def cover(self) -> None:
        """
        An acknowledgment covers it.
        """
        if not self.settled.done():
            self.settled.set_result(None)

    def put(self, event: Event) -> None:
        """
        Hand it an event.
        """
        self._consumer.backlog.put(event)

    def fail(self, error: Exception) -> None:
        """
        It is over.
        """
        self.error = self._consumer.error = error
        self._consumer.backlog.put(Closed(str(error), graceful=False, final=True))
        self._consumer.backlog.end()
        self.cover()


class Watches:
    """
    All watches of one client.
    """

    def __init__(
        self,
        subscribe: Callable[[Filter, Callable[[Event], None]], Subscription],
        tasks: Tasks,
        announce: Callable[[Event], None],
        *,
        per_stream: int,
        timeout: float,
    ) -> None:
        """
        Args:
            subscribe: makes a subscription for a filter, whose events go to a function.
            tasks: those that end with the client.
            announce: passes an event on to the general callback.
            per_stream: URIs that one stream may carry.
            timeout: seconds that a watch may take to be covered, unless it is said with it.
        """
        self._subscribe = subscribe
        self._timeout = timeout
        self._packing = Packing(per_stream=per_stream)
        self.numbers = count(1)
        self._watches: dict[int, Watch] = {}
        self._streams: dict[int, Subscription] = {}
        self.tasks = tasks
        self._announce = announce

    async def open(self, uri: str, *, timeout: float | None, on_event: Callback | None) -> Watch:
        """
        Watch a URI; see ListenClient.watch().
        """
        watch = Watch(self, next(self.numbers), uri, on_event)
        self._watches[watch.number] = watch
        self._perform(self._packing.watch(watch.number, uri))
        limit = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit) as deadline:
                await asyncio.shield(watch.settled)
            if watch.error is not None:
                raise watch.error
        except BaseException as error:
            await watch.close()
            if isinstance(error, TimeoutError) and deadline.expired():
                raise AcknowledgmentTimeoutError(f"No acknowledgment covered {uri!r} within {limit:g} s") from None
            raise
        return watch

    async def close_latest(self, uri: str) -> bool:
        """
        Close the youngest watch of a URI, and say whether there was one.
        """
        number = self._packing.latest(uri)
        if number is None:
            return False
        await self._watches[number].close()
        return True

    async def close_one(self, number: int) -> None:
        """
        Take a watch away, and wait until the streams that it alone had are closed.
        """
        if self._watches.pop(number, None) is not None:
            closing = self._perform(self._packing.unwatch(number))
            if closing:
                await asyncio.wait(closing)

    async def close(self) -> None:
        """
        Close all.
        """
        for watch in list(self._watches.values()):
            await watch.close()
        for stream in list(self._streams.values()):
            await stream.close()

    def _perform(self, actions: Iterable[Action]) -> list[asyncio.Task[None]]:
        closing, announced = [], None
        for action in actions:
            match action:
                case Open(number, uris):
                    stream = self._subscribe(Filter(uris=uris), partial(self._take, number))
                    self._streams[number] = stream
                    stream.start()
                case Close(number) if number in self._streams:
                    closing.append(self.tasks.start(self._streams.pop(number).close(), name="closing"))
                case Linger(number):
                    self.tasks.start(self._linger(number), name="lingering")
                case Tell(number) | Cover(number) | Fail(number) if number in self._watches:
                    self._pass_on(self._watches[number], action)
            # Once for all who watch the resource.
            if isinstance(action, Tell) and action.event is not announced:
                announced = action.event
                self._announce(announced)
        return closing

    def _pass_on(self, watch: Watch, action: Tell | Cover | Fail) -> None:
        match action:
            case Tell(_, event):
                watch.put(event)
            case Cover():
                watch.cover()
            case Fail(number, error):
                del self._watches[number]
                watch.fail(error)

    async def _linger(self, number: int) -> None:
        await asyncio.sleep(LINGER)
        self._perform(self._packing.lingered(number))

    def _take(self, number: int, event: Event) -> None:
        if number not in self._streams:
            return
        match event:
            case Acknowledged(honoured) | Resynchronised(honoured):
                self._perform(self._packing.acknowledged(number, Filter.honoured(honoured).uri_set))
            case Notification(_, params):
                self._perform(self._packing.updated(number, str(params.get("uri")), event))
            case Closed(reason, final=True):
                stream = self._streams.pop(number)
                error = stream.error or SubscriptionEndedError(f"The server ended the stream: {reason}")
                self._perform(self._packing.closed(number, error))
            case Closed():
                self._perform(self._packing.lost(number))
