"""
What waits to be consumed. Notifications are level triggers, so it is a set in order of arrival, not a queue: a consumer
that is slow, or never comes, costs no more than there are things in its filter.
"""

import asyncio
from collections.abc import Hashable, Mapping
from typing import Final

from mcp_channels.client.events import Acknowledged, Event, Notification, Resynchronised
from mcp_channels.client.filter import Filter

LIMIT: Final = 1000
"""
Notifications of things that the filter doesn't name, such as resources below a URI. When as many wait, they become one
``Resynchronised``: everything is to be read again.
"""


class Backlog:
    """
    The events of one consumer, which takes them one by one with ``get()``.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._events: dict[Hashable, Event] = {}
        self._arrived = asyncio.Event()
        self._honoured: Mapping[str, object] = {}
        self._named: frozenset[str] = frozenset()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """
        Add an event. A notification of what is already waiting keeps its place, and has the newest content; of other
        kinds only the newest is kept, at the end.
        """
        if self._is_over:
            return
        if isinstance(event, Notification):
            self._put_notification(event)
        else:
            if isinstance(event, Acknowledged | Resynchronised):
                self._honoured = event.honoured
                self._named = Filter.honoured(event.honoured).uri_set
            key = type(event).__name__
            self._events.pop(key, None)
            self._events[key] = event
        self._arrived.set()

    def _put_notification(self, event: Notification) -> None:
        key = topic(event)
        if key not in self._events and key[1] not in self._named and len(self._events) >= self._limit:
            self._events = {
                waiting: other for waiting, other in self._events.items() if not isinstance(other, Notification)
            }
            self.put(Resynchronised(self._honoured))
            return
        self._events[key] = event

    def end(self) -> None:
        """
        Take in no more. What waits can still be consumed.
        """
        self._is_over = True
        self._arrived.set()

    def clear(self) -> None:
        """
        Forget what waits.
        """
        self._events.clear()

    async def get(self) -> Event | None:
        """
        Wait for the next event, and take it out; None once there are no more. Cancelling loses nothing.
        """
        while not self._events:
            if self._is_over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.pop(next(iter(self._events)))


def topic(event: Notification) -> tuple[str, object]:
    """
    What a notification says changed: the method, and the URI or the task where it names one.
    """
    name = event.params.get("uri", event.params.get("taskId"))
    return event.method, name if isinstance(name, str) else None
