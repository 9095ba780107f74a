"""
The way from what happens to the receivers of the signals.

Receivers are the project's code: they may raise, block, or ask the database. What happens, happens on an event loop
that holds thousands of streams. So an event is put in a queue, and a thread of its own calls the receivers, in order. A
process without receivers has neither. What doesn't fit into the queue is dropped and counted: telemetry may be lost, a
stream may not be held up.
"""

import atexit
import concurrent.futures.thread  # noqa: F401  # registered for the exit before this module
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any, Final, NamedTuple

from django.db import close_old_connections, connections
from django.dispatch import Signal

MAX_WAITING: Final = 10_000
"""Events that wait for the receivers; past it they are dropped."""

BATCH: Final = 100
"""The most events between two looks at whether the receivers' database connections are still good."""

LOOK_INTERVAL: Final = 0.05
"""The least seconds between two looks at whether what a receiver waits for is there: one costs more than an event."""

LOG_INTERVAL: Final = 60.0
"""The least seconds between two log lines about dropped events."""

EXIT_TIMEOUT: Final = 1.0
"""Seconds that a process which exits waits for its receivers."""

logger = logging.getLogger("mcp_channels.telemetry")


class _Event(NamedTuple):
    signal: Signal
    sender: object
    payload: dict[str, Any]


class Dispatcher:
    """
    A process's queue of events, and the thread that empties it. Use the module's functions.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """
        Forget everything: what waits, and the thread. A forked child starts with it; its parent sends what waited.
        """
        self._changed = threading.Condition()
        self._waiting: deque[_Event] = deque()
        self._thread: threading.Thread | None = None
        self._is_sending = False
        self._is_ending = False
        self._exit_by: float | None = None
        self._logged_at = float("-inf")
        self.dropped = 0
        """Events that were dropped, since the process started."""

    def put(self, event: _Event) -> None:
        """
        Have the receivers called soon. Returns at once, from any thread.
        """
        with self._changed:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(event)
                self._start()
                self._changed.notify_all()
                return
            self.dropped += 1
            now = time.monotonic()
            is_silent = now - self._logged_at < LOG_INTERVAL
            if not is_silent:
                self._logged_at = now
        if not is_silent:
            logger.warning("Receivers of signals are too slow: %d events were dropped up to now", self.dropped)

    def flush(self, timeout: float) -> bool:
        """
        See ``flush``.
        """
        if threading.current_thread() is self._thread:
            # A receiver would wait for itself.
            return False
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._is_sending), timeout)

    def stop(self) -> None:
        """
        Wait a little for what is left, and end the thread. The process ends with it.
        """
        # Several hooks call this, and all of them together may take that long.
        if self._exit_by is None:
            self._exit_by = time.monotonic() + EXIT_TIMEOUT
        self.flush(max(self._exit_by - time.monotonic(), 0))
        with self._changed:
            thread, self._is_ending = self._thread, True
            self._changed.notify_all()
        if thread is not None:
            thread.join(max(self._exit_by - time.monotonic(), 0))

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="mcp_channels-telemetry", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down
            self._thread = None
            return
        # A child of multiprocessing ends without running atexit. The publisher's last events come before.
        Finalize(None, self.stop, exitpriority=90)

    def _run(self) -> None:
        try:
            while events := self._take():
                for event in events:
                    _send(event)
                _tidy()
        finally:
            connections.close_all()

    def _take(self) -> list[_Event]:
        """
        Wait for the next events. None come when the thread is to end.
        """
        with self._changed:
            self._is_sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            events = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
            self._is_sending = bool(events)
            if not events:
                self._thread = None
            return events


def _send(event: _Event) -> None:
    try:
        event.signal.send_robust(event.sender, **event.payload)
    except BaseException:  # whatever a receiver raises, and whatever Django's log of it does, the next events are sent
        logger.exception("A receiver of a signal could not be called")


def _tidy() -> None:
    try:
        # As Django does after a request.
        close_old_connections()
    except Exception as error:  # a connection that can't even be closed must not end the thread
        logger.debug("A connection could not be closed: %r", error)


_dispatcher = Dispatcher()
_unconnected: list[Callable[[], bool]] = []
_looked_at = float("-inf")


def emit(signal: Signal, sender: object, **payload: Any) -> None:
    """
    Tell the receivers of ``signal``, soon and in a thread of their own. Returns at once, from any thread; without a
    receiver it does nothing. ``at`` is added to the payload: the time, in seconds since the epoch.
    """
    if _unconnected:
        _connect()
    if signal.receivers:
        _dispatcher.put(_Event(signal, sender, {**payload, "at": time.time()}))


def connect_when_ready(connect: Callable[[], bool]) -> None:
    """
    Have ``connect`` called from time to time, before an event, until it returns True: it connects receivers that are of
    use only once the project has set something up. It must be quick.
    """
    _unconnected.append(connect)


def flush(timeout: float) -> bool:
    """
    Wait up to ``timeout`` seconds until the receivers have been told of all events, and say whether that is so. Blocks.
    In a receiver it returns False at once.
    """
    return _dispatcher.flush(timeout)


def dropped() -> int:
    """
    How many events this process dropped because its receivers were too slow.
    """
    return _dispatcher.dropped


def _connect() -> None:
    global _looked_at
    now = time.monotonic()
    if now - _looked_at < LOOK_INTERVAL:
        return
    _looked_at = now
    for connect in list(_unconnected):
        try:
            is_done = connect()
        except Exception:  # it must not reach a stream; and what fails once would fail with each event
            logger.exception("Receivers of signals could not be connected")
            is_done = True
        if is_done:
            with suppress(ValueError):  # another thread was quicker
                _unconnected.remove(connect)


# A thread doesn't survive a fork: the child starts its own when something happens.
os.register_at_fork(after_in_child=_dispatcher.reset)
# What atexit runs comes too late for receivers that need a thread: by then Python has shut its pools down.
if hasattr(threading, "_register_atexit"):
    threading._register_atexit(_dispatcher.stop)  # noqa: SLF001  # see above; there is no public way
atexit.register(_dispatcher.stop)
